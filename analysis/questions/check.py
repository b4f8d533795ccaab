"""`python -m analysis check`: validity checks of runs and of comparisons."""

from collections.abc import Sequence
from typing import Any

from analysis.output.finding import Finding, add_question
from analysis.output.tables import Table
from analysis.questions.frameworks import pairs_of, tuned_notes
from analysis.runs.cells import Cell, cells_of
from analysis.runs.labels import framework_label
from analysis.runs.table import Selection
from analysis.runs.validity import flags_of, pair_flags
from common.distributed.console import counted


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    add_question(commands, "check", find, "validity checks of runs and comparisons")


def find(selection: Selection) -> Finding:
    """Check every run, runs of the same settings, and pairs of both frameworks."""
    cells = cells_of(selection.runs)
    pairs, _ = pairs_of(cells)
    flags = flags_of(selection.rows, cells)
    flags += [flag for pair in pairs for flag in pair_flags(*pair)]
    flags = list(dict.fromkeys(flags))
    looked_at = f"{counted(len(selection.runs), 'run')}, {counted(len(pairs), 'pair')} of frameworks"
    answer = f"{counted(len(flags), 'finding')} in {looked_at}." if flags else f"No findings in {looked_at}."
    return Finding(
        name="check",
        question="Are these runs and comparisons valid?",
        answer=answer,
        tables=[_table(cells)],
        flags=flags,
        notes=tuned_notes(pairs),
    )


def _table(cells: Sequence[Cell]) -> Table:
    headings = ["framework", "model, data set, np", "runs", "finished", "timed", "seeds", "metered", "profiled"]
    rows = []
    for cell in cells:
        rows.append(
            [framework_label(cell.framework), cell.label, len(cell.runs), len(cell.finished), len(cell.timed),
             len({run.seed for run in cell.runs} - {None}) or None, sum(run.metered for run in cell.runs),
             sum(run.profiled for run in cell.runs)]
        )  # fmt: skip
    return Table("Runs by their settings", headings, rows, dict.fromkeys(headings[2:], "d"))
