"""`python -m analysis clouds`: the same experiment on different sites; without runs, what is known of CTE and AWS.

python -m analysis clouds                                   CTE or AWS: published, computed, projected
python -m analysis clouds --output clouds.html              the same as a page
python -m analysis clouds RUNS... --base cte-power          runs side by side
"""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from analysis.clouds.known import QUESTION, as_one, findings_behind, known_findings
from analysis.output.finding import Finding, add_show_options, selected, show, with_left_out
from analysis.output.options import add_margin_option, add_parser, add_target_option, number_or_nan
from analysis.output.tables import Table
from analysis.questions.clouds.finding import BASES, assigned, find
from analysis.questions.clouds.pricing import JOB_MINUTES, Pricing
from analysis.report.page import Chapter, Page, facts_of, write_page
from analysis.runs.arguments import add_runs_options
from analysis.runs.examples import NOTE as EXAMPLES
from common.errors import UserError
from common.sites.prices import read_day
from common.sites.table import SITES_FILE, read_sites
from common.utils.command_line import check_new_file, path
from common.utils.workers import side_by_side

FIRST_PLOTS = ("clouds-cost-against-time", "clouds-break-even", "clouds-projected")
FIRST_PLOTS_OF_RUNS = ("clouds-time", "clouds-cost-time", "clouds-accuracy")
MOST_MINUTES = 1e6  # two years


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_parser(
        commands,
        "clouds",
        run,
        "the same experiment on different sites: time, accuracy, cost, energy",
        more="Without RUNS: CTE-POWER or AWS, from what is published, computed and projected.",
    )
    add_runs_options(parser)
    add_show_options(parser)
    parser.add_argument("--output", type=path, metavar="FILE", help="write the tables and plots as one HTML page")
    parser.add_argument("--force", action="store_true", help="replace the page if it exists")
    parser.add_argument(
        "--base", metavar="SITE", help=f"site to divide by (default: {' or '.join(BASES)} if it has runs)"
    )
    parser.add_argument("--table", type=path, default=SITES_FILE, metavar="FILE", help="a table of sites of your own")
    parser.add_argument("--on", metavar="DATE", help="prices of this day, as 2025-10-31 (default: the latest known)")
    parser.add_argument(
        "--job-minutes",
        type=_minutes,
        default=JOB_MINUTES,
        metavar="MINUTES",
        help="set-up of rented machines and until they stop, on the bill of a job (default: %(default)g)",
    )
    parser.add_argument(
        "--site-of",
        action="append",
        default=[],
        metavar="RUNS=SITE",
        help="the site where the runs in a folder were made",
    )
    add_margin_option(parser)
    add_target_option(parser, shown="cost")


def _minutes(text: str) -> float:
    minutes = number_or_nan(text)
    if not 0 <= minutes <= MOST_MINUTES:
        raise argparse.ArgumentTypeError(f"expected minutes, 0 to {MOST_MINUTES:g}. Received: {text}")
    return minutes


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: an unknown site, no date, no table; an option of runs without runs.
    """
    if options.output:
        check_new_file(options.output, replaced=options.force)
    pricing = Pricing(sites=read_sites(options.table), on=read_day(options.on), job_minutes=options.job_minutes)
    if options.runs or options.examples:
        findings = [_of_runs(options, pricing)]
    else:
        _refuse_options_of_runs(options)
        findings = known_findings(pricing)
    whole = findings[0] if len(findings) == 1 else as_one(findings)
    if not options.output:
        show(whole, options)
        return
    # The page has the tables, and it draws the plots once more, for a phone: theirs come first.
    show(replace(whole, tables=() if options.format == "text" else whole.tables), options)
    print(f"page: {write_page(_page(findings, options), options.output)}")


def _page(found: Sequence[Finding], options: argparse.Namespace) -> Page:
    of_runs = bool(options.runs or options.examples)
    findings = [*found, *([] if of_runs else findings_behind())]
    commands = {"frameworks": "frameworks --examples"} | {one.name: _without_output(options) for one in found}
    first_plots = FIRST_PLOTS_OF_RUNS if of_runs else FIRST_PLOTS

    def chapter_of(finding: Finding) -> Chapter:
        return Chapter.of(finding, command=commands.get(finding.name, finding.name), first_plots=first_plots)

    return Page(
        title=found[0].question if of_runs else QUESTION,
        facts=facts_of(_contents(options), command=options.command_line),
        first_plots=first_plots,
        chapters=side_by_side(chapter_of, findings),
        left_out=Table("", ["folder, and why"], [], {}),
    )


def _without_output(options: argparse.Namespace) -> str:
    """Return the words of this command without those that say where the page and plots go."""
    where = argparse.ArgumentParser(add_help=False)
    for flag in ("--output", "--plots"):
        where.add_argument(flag)
    where.add_argument("--force", action="store_true")
    words = shlex.split(options.command_line)[len(("python", "-m", "analysis")) :]
    return shlex.join(where.parse_known_args(words)[1])


def _contents(options: argparse.Namespace) -> dict[str, str]:
    """Return of what kind the figures of the page are."""
    if not (options.runs or options.examples):
        kinds = (
            "published: by a source; computed: from makers' figures and prices; projected: by a model; measured: in "
            "runs of this project"
        )
        return {"Figures": kinds}
    published = " and published results" if options.published is not None else ""
    return {"Figures": f"of runs{published}; prices and makers' peaks from the table of sites"} | (
        {"Examples": EXAMPLES} if options.examples else {}
    )


def _of_runs(options: argparse.Namespace, pricing: Pricing) -> Finding:
    selection = selected(options)
    for words in options.site_of:
        selection = assigned(selection, words, sites=pricing.sites)
    finding = find(
        selection,
        pricing=pricing,
        base=options.base,
        margin=options.margin,
        target=options.target,
        machines=True,
    )
    return with_left_out(finding, selection)


def _refuse_options_of_runs(options: argparse.Namespace) -> None:
    given = {"--base": options.base, "--target": options.target, "--published": options.published,
             "--site-of": options.site_of or None}  # fmt: skip
    for flag, value in given.items():
        if value is not None:
            raise UserError(f"this option is about runs. Received: {flag} and no RUNS. Name some, or leave it out")
