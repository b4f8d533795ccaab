"""`python -m analysis report`: every answer about the runs, in one self-contained HTML file.

This module imports no chapter: that takes longer than to find out that the page is up to date.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.output.options import add_parser, refuse_flags
from analysis.report.made_from import NEVER, MadeFrom, made_from, written_from
from analysis.runs.arguments import add_runs_options, found_in
from analysis.runs.folders import Found
from common.utils.command_line import check_new_file, word
from common.utils.garbage import pause_garbage_collection, resume_garbage_collection


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
    _make(options, found, sources)


def _make(options: argparse.Namespace, found: Found, sources: MadeFrom) -> None:
    pause_garbage_collection()
    from analysis.output.finding import selected
    from analysis.report.assembly import page_of
    from analysis.report.page import write_page

    resume_garbage_collection()
    selection = selected(options, found)
    page = page_of(selection, folders=options.runs, examples=options.examples, title=options.title)
    if (selection.runs["state"] == "running").any():  # time alone makes such a run one that was killed
        sources = replace(sources, files=NEVER)
    page = replace(page, made_from=str(sources))
    flags = [str(row[0]) for row in (*page.left_out.rows, *page.flags.rows)]
    refuse_flags(flags, options)
    print(f"report: {write_page(page, Path(options.output))}, folders left out {len(page.left_out.rows)}")
