"""A finding: the question and answer of a command, its tables, plots, flags and notes; and how it is shown.

Every command returns a `Finding`. On the terminal it becomes tables and lines, in `report` a chapter.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from analysis.output.options import add_parser, refuse_flags
from analysis.output.plots import save_figure
from analysis.output.tables import FORMATS, Table, render, render_first_rows, write_csv
from analysis.runs.arguments import add_runs_options, found_in
from analysis.runs.examples import NOTE as EXAMPLES
from analysis.runs.folders import Found
from analysis.runs.published import checked_sources, published_notes, published_runs
from analysis.runs.reading import load_runs
from analysis.runs.table import Selection
from analysis.runs.validity import said_once
from common.utils.command_line import path, word
from common.utils.printable import printable


@dataclass(frozen=True)
class Plot:
    """A figure and its numbers; files are named after `name`."""

    name: str
    figure: Figure
    data: Table


def numbered(plots: Sequence[Plot]) -> list[Plot]:
    """Return the plots with unique names: a number is appended to repeated ones."""
    seen: Counter[str] = Counter()
    renamed = []
    for plot in plots:
        seen[plot.name] += 1
        renamed.append(replace(plot, name=f"{plot.name}-{seen[plot.name]}") if seen[plot.name] > 1 else plot)
    return renamed


ANSWER_WORDS = 50  # which take about ten seconds to read


def brief(statements: Sequence[str]) -> str:
    """Return an answer of the first statements, as many as a reader takes in at once; the tables have the rest.

    Args:
        statements: a sentence or two each, the most important first.
    """
    shown = list(statements[:1])
    for statement in statements[1:]:
        if len(" ".join([*shown, statement]).split()) > ANSWER_WORDS:
            break
        shown.append(statement)
    more = len(statements) - len(shown)
    return " ".join([*shown, *([f"For {more} more, see the tables."] if more else [])])


def figures_in(words: str) -> int:
    """Return how many numbers there are in words."""
    return len(re.findall(r"\d+(?:\.\d+)?", words))


def named_briefly(label: str, *, figures: int) -> str:
    """Return a label as an answer names it: its first parts, with at most so many figures; the tables have the rest."""
    first, *rest = re.sub(r" \(.*?\)", "", label).split(", ")
    shown = first
    for number, part in enumerate(rest):
        if figures_in(f"{shown}, {part}") > figures:
            return f"{shown} and {'one more option' if number == len(rest) - 1 else 'further options'}"
        shown += f", {part}"
    return shown


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The answer of a command.

    Attributes:
        name: of the command.
        question: that it answers.
        answer: one sentence or a few, each of at most three figures; the tables have the rest.
        tables, plots: the evidence.
        flags: why something is not comparable, or a run is invalid; an error with --strict.
        notes: methods, what was not measured, and what could not be drawn and why.
    """

    name: str
    question: str
    answer: str
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    flags: Sequence[str] = ()
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "flags", said_once(self.flags))


def add_show_options(parser: argparse.ArgumentParser, *, plots: str = "write the plots there, and their data") -> None:
    """Add the options for output; `plots` is the help text of --plots."""
    parser.add_argument("--format", default="text", choices=FORMATS, help="default: %(default)s; csv needs --folder")
    parser.add_argument(
        "--folder", dest="csv_folder", type=path, metavar="FOLDER", help="for --format csv: a file per table there"
    )
    parser.add_argument("--plots", type=word, metavar="FOLDER", help=plots)
    parser.add_argument("--strict", action="store_true", help="exit code 2 if anything is flagged")


def add_question(
    commands: Any, name: str, find: Callable[..., Finding], what: str, *, keywords: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """Add a command that shows what `find` finds in runs; return its parser, for further options.

    Args:
        commands: argparse's subcommands.
        name: of the command.
        find: the selected runs, and the options named in `keywords` -> finding.
        what: the command shows, in a few words.
        keywords: names of further options.
    """

    def run(options: argparse.Namespace) -> None:
        selection = selected(options)
        finding = find(selection, **{name: getattr(options, name) for name in keywords})
        show(with_left_out(finding, selection), options)

    parser = add_parser(commands, name, run, what)
    add_runs_options(parser)
    add_show_options(parser)
    return parser


def with_left_out(finding: Finding, selection: Selection) -> Finding:
    """Return a finding that also flags the folders that could not be used."""
    return replace(finding, flags=[*selection.left_out, *finding.flags])


def selected(options: argparse.Namespace, found: Found | None = None) -> Selection:
    """Return the runs of `add_runs_options`, published results last.

    Args:
        found: their folders, where they have been searched for.

    Raises:
        UserError: there are no runs, or a source is unknown.
    """
    sources = checked_sources(options.published)
    return load_runs(found or found_in(options), added=published_runs(sources), published=sources)


def show(finding: Finding, options: argparse.Namespace) -> None:
    """Print a finding, and write its plots if --plots is given.

    JSON output is one object; CSV is a file per table in --folder. In the other formats tables are printed on standard
    output, each under its title if there are several; text in a terminal has the first rows of long ones. The answer,
    notes and flags are printed on standard output with text, and on standard error with all other formats, so that
    programs read tables only.

    Raises:
        UserError: something is flagged and --strict is given, or files cannot be written.
    """
    notes = [EXAMPLES] if getattr(options, "examples", False) else []
    notes += [*finding.notes, *published_notes(checked_sources(getattr(options, "published", None)))]
    finding = replace(finding, notes=notes)
    files = [f"plot: {file}" for plot in finding.plots for file in _plot_files(plot, options)]
    if options.format == "json":
        print(_as_json(finding))
    elif options.format == "csv":
        files += [f"table: {file}" for file in _table_files(finding, options.csv_folder)]
    else:
        several = len(finding.tables) > 1  # a single table is a plain file of its format
        shortens = options.format == "text" and sys.stdout.isatty() and not getattr(options, "all", False)
        for table in finding.tables:
            title = _TITLES[options.format].format(table.title) if several else ""
            text = render_first_rows(table) if shortens else render(table, options.format)
            shown = title + text + ("\n" if several or options.format == "text" else "")
            print(printable(shown, keep="\n"))
    lines = [f"note: {note}" for note in finding.notes] + [f"flag: {flag}" for flag in finding.flags] + files
    shown = "\n".join([printable(finding.answer, keep="\n"), *map(printable, lines)])
    if options.format == "text":
        print(shown)
    elif not (options.strict and finding.flags):  # a refusal is a single line
        print(shown, file=sys.stderr)
    refuse_flags(finding.flags, options)


def _plot_files(plot: Plot, options: argparse.Namespace) -> list[Path]:
    """Write a plot and its data, if --plots is given; return the files."""
    if not options.plots:
        return []
    folder = Path(options.plots)
    pictures = save_figure(plot.figure, folder, plot.name, made_by=options.command_line)
    return [*pictures, write_csv(plot.data, folder, plot.name)]


def _table_files(finding: Finding, folder: Path) -> list[Path]:
    """Write a file per table, named after the command and the table's number and title; return the files."""
    files = []
    for number, table in enumerate(finding.tables, start=1):
        title = re.sub(r"[^a-z0-9]+", "-", table.title.lower().split("(")[0]).strip("-")[:_LONGEST_TITLE]
        files.append(write_csv(table, folder, f"{finding.name}-{number}-{title}".strip("-")))
    return files


_TITLES = {"text": "", "md": "**{}**\n\n", "latex": "% {}\n"}
_LONGEST_TITLE = 60  # letters of it in the name of a file


def _as_json(finding: Finding) -> str:
    words = {name: getattr(finding, name) for name in ("name", "question", "answer", "flags", "notes")}
    return json.dumps(words | {"tables": [json.loads(render(table, "json")) for table in finding.tables]}, indent=1)
