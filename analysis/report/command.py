"""`python -m analysis report`: every answer about the runs, in one self-contained HTML file."""

import argparse
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.output.finding import Finding, add_runs_options, found_in, refuse_flags, selected
from analysis.output.options import add_parser
from analysis.output.tables import Table
from analysis.questions import aa_test, check, compare, faults, frameworks, times
from analysis.questions.clouds import finding as clouds
from analysis.questions.energy import command as energy
from analysis.questions.hyperparameters import command as hyperparameters
from analysis.questions.scaling import command as scaling
from analysis.questions.strategies import command as strategies
from analysis.report import chapters as report_chapters
from analysis.report.made_from import NEVER, made_from, written_from
from analysis.report.page import Chapter, Page, facts_of, write_page
from analysis.runs.examples import NOTE as EXAMPLES
from analysis.runs.published import published_notes
from analysis.runs.table import Selection
from analysis.thesis import command as thesis
from common.utils.command_line import word
from common.utils.new_file import check_new_file
from common.utils.workers import side_by_side

Find = Callable[[Selection], Finding]
# Answers first, then what the runs were.
CHAPTERS: tuple[Find, ...] = (
    frameworks.find,
    clouds.find,
    scaling.find,
    strategies.find,
    energy.find,
    hyperparameters.find,
    times.find,
    compare.find,
    aa_test.find,
    faults.find,
    report_chapters.parity,
    check.find,
    report_chapters.machines,
    report_chapters.settings,
    report_chapters.commands,
    report_chapters.not_measured,
)
# The plots that open the page: time, by site where there are several, cost against time, accuracy.
FIRST_PLOTS = ("clouds-time", "clouds-cost-time", "frameworks-accuracy")
FIRST_PLOTS_OF_A_SITE = ("frameworks-time", *FIRST_PLOTS[1:])
MOST_NAMED = 5  # folders in the command shown at the top


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_parser(commands, "report", run, "everything in one HTML file, for a browser, a phone and paper")
    add_runs_options(parser)
    parser.add_argument("-o", "--output", type=word, default="report.html", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--title", help="heading of the page")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists, even if up to date")
    parser.add_argument("--strict", action="store_true", help="write nothing, with exit code 2, if anything is flagged")


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: the file exists and another command made it, or it cannot be written; with --strict, if something is
            flagged.
    """
    output = Path(options.output)
    found = found_in(options)
    before, sources = written_from(output), made_from(options, found)
    if before == sources and not options.force:
        print(f"report: {output} is up to date: the runs, the options and the program are as they were (else: --force)")
        return
    own = before is not None and before.command == sources.command  # the page that the same command wrote
    check_new_file(output, option="-o", replaced=options.force or own)
    selection = selected(options, found)
    page = page_of(selection, folders=options.runs, examples=options.examples, title=options.title)
    if (selection.runs["state"] == "running").any():  # time alone makes such a run one that was killed
        sources = replace(sources, files=NEVER)
    page = replace(page, made_from=str(sources))
    flags = [str(row[0]) for row in (*page.left_out.rows, *page.flags.rows)]
    refuse_flags(flags, options)
    print(f"report: {write_page(page, output)}, folders left out {len(page.left_out.rows)}")


def page_of(selection: Selection, *, folders: Sequence[str], examples: bool = False, title: str | None = None) -> Page:
    """Return the page about some runs.

    Args:
        selection: the runs.
        folders: their paths, as the user gave them.
        examples: whether the project's own runs are among them.
        title: None: one that names the models.
    """
    chapters = [*CHAPTERS]
    arguments = _arguments(selection, folders, examples=examples)
    if (selection.runs["origin"] == "imported").any():
        chapters.append(thesis.find)
    if selection.published:
        chapters.append(_published)
    first_plots = FIRST_PLOTS if selection.runs["site"].nunique() > 1 else FIRST_PLOTS_OF_A_SITE

    def chapter_of(find: Find) -> Chapter:
        finding = _without(find(selection), selection.left_out)
        return Chapter.of(finding, command=f"{finding.name} {arguments}", first_plots=first_plots)

    return Page(
        title=title or _title(selection),
        facts=_facts(selection, arguments, examples=examples),
        first_plots=first_plots,
        chapters=side_by_side(chapter_of, chapters),
        left_out=Table("", ["folder, and why"], [[line.removeprefix("left out: ")] for line in selection.left_out], {}),
    )


def _published(selection: Selection) -> Finding:
    """Return the published results among the runs, with their places and remarks."""
    notes = [[note.removeprefix("published ")] for note in published_notes(selection.published)]
    return Finding(
        name="published",
        question="Which published results are among these runs?",
        answer=f"From the sources {' and '.join(selection.published)}; they cannot be checked.",
        tables=[Table("Published results and claims", ["name, place, number of runs, remark"], notes, {})],
    )


def _title(selection: Selection) -> str:
    models = list(selection.runs["model"].unique())
    named = ", ".join(models[:3]) + (f" and {len(models) - 3} more models" if len(models) > 3 else "")
    return f"Keras and PyTorch on Horovod: {named}"


def _arguments(selection: Selection, folders: Sequence[str], *, examples: bool) -> str:
    """Return the arguments by which every command finds these runs."""
    named = [shlex.quote(folder) for folder in folders[:MOST_NAMED]]
    more = [f"and {len(folders) - MOST_NAMED} more"] if len(folders) > MOST_NAMED else []
    published = ["--published", *selection.published] if selection.published else []
    return " ".join([*named, *more, *published, *["--examples"][: int(examples)]])


def _facts(selection: Selection, arguments: str, *, examples: bool) -> dict[str, str]:
    contents = {
        "Runs": f"{len(selection.runs):,} run{'' if len(selection.runs) == 1 else 's'}",
        **({"Examples": EXAMPLES} if examples else {}),
    }
    return facts_of(contents, command=f"python -m analysis report {arguments}")


def _without(finding: Finding, left_out: Sequence[str]) -> Finding:
    """Return the finding without flags for folders left out, which the page shows once."""
    said = set(left_out)
    return replace(finding, flags=[flag for flag in dict.fromkeys(finding.flags) if flag not in said])
