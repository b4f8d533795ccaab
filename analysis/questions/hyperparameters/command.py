"""`python -m analysis hyperparameters`: searches, and accuracies and times by batch, resolution and validation share.

python -m analysis hyperparameters runs/SEARCH                         what `python -m launch search` found
python -m analysis hyperparameters runs/SEARCH --recipe-out best.toml  and its best settings as a recipe
python -m analysis hyperparameters RUNS                                runs that differ in batch or resolution
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.output.finding import Finding, Plot, add_question, brief, numbered
from analysis.output.tables import Table, in_percent
from analysis.questions.hyperparameters.plots import plot_accuracies, plot_shares, plot_times
from analysis.questions.hyperparameters.recipe import write_recipe
from analysis.questions.hyperparameters.search_plots import plots_of
from analysis.questions.hyperparameters.searches import Search, notes, searches_of, statements
from analysis.questions.hyperparameters.searches import tables as tables_of_search
from analysis.questions.hyperparameters.sweep import (
    SweepPoint,
    batch_sweeps,
    family_of,
    point_of,
    share_label,
    share_sweeps,
    told_apart,
)
from analysis.runs.cells import cells_of
from analysis.runs.labels import framework_label
from analysis.runs.table import Selection
from analysis.runs.validity import cell_runs, flags_of
from analysis.stats.inference import median_of
from common.errors import UserError
from common.utils.command_line import path

NEAR = 0.05  # of accuracy, as a fraction: what is nearly as accurate as the best


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_question(
        commands,
        "hyperparameters",
        find,
        "what a search found; accuracy curves and total times by batch and resolution",
        keywords=["recipe_out"],
    )
    parser.add_argument(
        "--recipe-out", type=path, metavar="FILE", help="write the best settings of a search there, as a recipe"
    )


def find(selection: Selection, *, recipe_out: Path | None = None) -> Finding:
    """Report what searches found, or how batch, resolution and share of validation samples affect time and accuracy.

    Args:
        selection: the runs.
        recipe_out: file for the best settings of a search; None: none is written.

    Raises:
        UserError: there is not one search whose settings could be written, or the file exists.
    """
    searches = searches_of(selection)
    written = _written_recipe(searches, recipe_out)
    sweeps = _find_sweeps(selection)
    if not searches:
        return sweeps
    has_sweeps = sweeps.answer != _NOTHING
    statements_of_all = [words for search in searches for words in statements(search)]
    return Finding(
        name="hyperparameters",
        question="Which settings are best, how fast were they found, and what do single settings change?",
        answer=brief([*statements_of_all, *([sweeps.answer] if has_sweeps else [])] or [_NO_TRIAL]),
        tables=[*(table for search in searches for table in tables_of_search(search)), *sweeps.tables],
        plots=numbered([*(plot for search in searches for plot in plots_of(search)), *sweeps.plots]),
        flags=sweeps.flags,
        notes=[*written, *(note for search in searches for note in notes(search)), *sweeps.notes],
    )


_NO_TRIAL = "No trial of the search is finished."


def _written_recipe(searches: Sequence[Search], file: Path | None) -> list[str]:
    """Write the best settings if a file is named; return a note on it."""
    if file is None:
        return []
    if len(searches) != 1:
        names = ", ".join(str(search.folder) for search in searches) or "no search"
        raise UserError(f"a recipe is written from one search. Received: {names}. Name its folder, such as runs/search")
    best = write_recipe(file, searches[0])
    return [f"{file} has the settings of {best.run}: python {best.framework}_impl/train.py --recipe {file}"]


def _find_sweeps(selection: Selection) -> Finding:
    """Report how batch, resolution and share of validation samples affect time and accuracy."""
    families: dict[Hashable, list[SweepPoint]] = defaultdict(list)
    for cell in cells_of(selection.runs):
        if cell.finished:
            families[family_of(cell)].append(point_of(cell))
    sweeps = told_apart([sweep for family in families.values() for sweep in batch_sweeps(family)])
    shares = told_apart([sweep for family in families.values() for sweep in share_sweeps(family)])
    used = {id(point.cell): point.cell for sweep in (*sweeps, *shares) for point in sweep}
    tables = [_table(sweeps), _share_table(shares)]
    plots: list[Plot] = []
    for group in _by_figure(sweeps):
        drawn = plot_accuracies(selection.epochs, group), plot_times(group)
        plots += [plot for plot in drawn if plot is not None]
    plots += [plot for sweep in shares if (plot := plot_shares(sweep)) is not None]
    remarks = []
    if any(point.best is None and point.last is not None for sweep in sweeps for point in sweep):
        remarks.append("runs without validation have no accuracy curve; their accuracy is that on the test samples")
    if sweeps:
        remarks.append("time: train + validation + test; accuracies: on the validation samples; all medians over runs")
    if any(point.share is None for sweep in shares for point in sweep):
        remarks.append("the share of validation samples of some runs is not recorded: they are listed by name")
    words = [one for sweep in sweeps for one in _statements(sweep)]
    words += [one for sweep in shares for one in _share_statements(sweep)]
    cells = list(used.values())
    flags = flags_of(cell_runs(cells), cells)
    flags += [flag for sweep in sweeps for flag in _share_flags(sweep)]
    return Finding(
        name="hyperparameters",
        question="How do batch, resolution and the share of validation samples affect time and accuracy?",
        answer=brief(words) if words else _NOTHING,
        tables=[table for table in tables if table.rows],
        plots=numbered(plots),
        flags=flags,
        notes=remarks,
    )


_NOTHING = (
    "There are no runs that differ only in batch, resolution or the share of validation samples: there is nothing to "
    "compare."
)


def _share_flags(sweep: Sequence[SweepPoint]) -> list[str]:
    shares = {share_label(point): point for point in sweep}
    named = " and ".join(f"{point.label} {share}" for share, point in shares.items())
    return [f"{_title(sweep[0])}: the share of validation samples differs too: {named}"] if len(shares) > 1 else []


def _by_figure(sweeps: Sequence[list[SweepPoint]]) -> list[list[list[SweepPoint]]]:
    """Return the sweeps of both frameworks that go into one figure."""
    groups: dict[Hashable, list[list[SweepPoint]]] = defaultdict(list)
    for sweep in sweeps:
        first = sweep[0].cell.first
        sizes = tuple(sorted({point.size for point in sweep}))
        shares = tuple(point.share for point in sweep)
        groups[first.model, first.np, first.origin, first.site, shares, sizes, sweep[0].work].append(sweep)
    return list(groups.values())


# Words


def _title(point: SweepPoint) -> str:
    first = point.cell.first
    return _of_what(point) + (f", np {first.np}" if first.np else "")


def _of_what(point: SweepPoint) -> str:
    first = point.cell.first
    return ", ".join(filter(None, [framework_label(first.framework), first.model, point.work]))


def _statements(sweep: Sequence[SweepPoint]) -> list[str]:
    timed = [point for point in sweep if point.seconds]
    judged = [point for point in timed if point.last is not None]
    words = []
    if timed:
        fastest = min(timed, key=_seconds)
        words.append(f"the fastest is {fastest.label} ({_percent(fastest.last)})")
    if judged:
        best = max(judged, key=_accuracy)
        near = min((point for point in judged if _accuracy(point) >= _accuracy(best) - NEAR), key=_seconds)
        words.append(f"the most accurate at the end is {best.label} ({_percent(best.last)})")
        words += [f"within {100 * NEAR:g} points of it, {near.label} is the fastest"] if near is not best else []
    if remarks := [f"{point.label} {point.remark}" for point in sweep if point.remark]:
        several = f"{len(remarks)} of {len(sweep)} collapsed, fell or never learned: see the remarks"
        words.append(remarks[0] if len(remarks) == 1 else several)
    first, *others = words or ["no times and no accuracies"]
    return [f"{_of_what(sweep[0])}: {first}.", *(f"{other[0].upper()}{other[1:]}." for other in others)]


def _seconds(point: SweepPoint) -> float:
    return float(np.median(list(point.seconds.values())))


def _accuracy(point: SweepPoint) -> float:
    return point.last or 0.0


def _percent(fraction: float | None) -> str:
    return "accuracy not known" if fraction is None else f"{100 * fraction:.1f} %"


def _share_statements(sweep: Sequence[SweepPoint]) -> list[str]:
    totals = sorted(
        ((total, share_label(point)) for point in sweep if (total := median_of(point.seconds.values()))),
    )
    if len(totals) < 2:
        return []
    (least, short), (most, long) = totals[0], totals[-1]
    title = f"{_of_what(sweep[0])}, by share of validation samples"
    return [f"{title}: {short} takes {least / most:.2f} times as long as {long}."]


# Tables


def _table(sweeps: Sequence[Sequence[SweepPoint]]) -> Table:
    headings = ["framework", "model", "np", "differs in", "resolution", "batch", "n", "total, s", "min", "max",
                "last accuracy, %", "best accuracy, %", "remark"]  # fmt: skip
    rows: list[list[Any]] = []
    for sweep in sweeps:
        for point in sweep:
            first, seconds = point.cell.first, list(point.seconds.values())
            percents = [in_percent(point.last), in_percent(point.best)]
            rows.append(
                [framework_label(first.framework), first.model, first.np or None, point.work, point.size, point.batch,
                 point.n, median_of(point.seconds.values()), min(seconds, default=None),
                 max(seconds, default=None), *percents, point.remark]
            )  # fmt: skip
    formats = dict.fromkeys(("total, s", "min", "max"), ",.2f") | dict.fromkeys(("np", "batch", "n"), "d")
    formats |= {headings[10]: ".2f", headings[11]: ".2f"}
    return Table("Time and validation accuracy by resolution and batch (medians)", headings, rows, formats)


def _share_table(sweeps: Sequence[Sequence[SweepPoint]]) -> Table:
    headings = ["framework", "model", "differs in", "resolution", "batch", "validation samples", "n",
                "training, s/epoch", "validation, s/epoch", "total, s"]  # fmt: skip
    rows: list[list[Any]] = []
    for sweep in sweeps:
        for point in sweep:
            first = point.cell.first
            rows.append(
                [framework_label(first.framework), first.model, point.work, point.size, point.batch or None,
                 share_label(point), len(point.seconds), point.median("epoch_seconds"),
                 point.median("validation_epoch_seconds"), median_of(point.seconds.values())]
            )  # fmt: skip
    formats = {"batch": "d", "n": "d", headings[7]: ".3f", headings[8]: ".3f", "total, s": ",.2f"}
    return Table("Time by the share of validation samples (medians)", headings, rows, formats)
