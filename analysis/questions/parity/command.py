"""`python -m analysis parity`: what the proofs showed, or whether two runs were the same experiment."""

import argparse
import math
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from analysis.output.finding import Finding, Plot, add_show_options, show
from analysis.output.options import add_parser
from analysis.output.tables import Table
from analysis.questions.parity.plots import plot_losses, plot_ranks
from analysis.runs.sameness import HASHES, onednn_differs, why_not_the_same
from common.checks.differences import worst_difference
from common.checks.parity_cases import DTYPES
from common.checks.parity_record import ArrayComparison, ParityRecord, read_parity
from common.errors import UserError
from common.model.weights import load_weights
from common.run_folder.records import WEIGHTS_FILE, DataRecord, NotRecorded, RecordedRun, read_run
from common.utils.command_line import word


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_parser(
        commands, "parity", run, "what `launch parity` showed; or whether two runs were the same experiment"
    )
    parser.add_argument(
        "folders", type=word, nargs="+", metavar="FOLDER", help="one folder with parity.json, or two run folders"
    )
    parser.add_argument("--all", action="store_true", help="a row for every comparison")
    add_show_options(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: with --strict, if something differs; always for what cannot be read.
    """
    folders = [Path(folder) for folder in options.folders]
    if len(folders) > 2:
        raise UserError(
            f"two runs are compared. Received: {len(folders)} folders. Name one folder of proofs, or two runs"
        )
    if len(folders) == 2:
        runs = [read_run(folder) for folder in folders]
        show(_finding([runs_table(*runs)], reasons=why_not_the_same(*runs), times=_times(*runs)), options)
        return
    show(find(folders[0], every=options.all), options)


def find(folder: Path, *, every: bool = False) -> Finding:
    """Return what the proofs in a folder showed.

    Args:
        folder: of `python -m launch parity`.
        every: a row for every comparison.

    Raises:
        UserError: there are none, or they cannot be read.
    """
    record = read_parity(folder)
    runs = [read_run(folder / name) for name in record.runs]
    reasons, times = parity_flags(record), []
    if len(runs) == 2:
        reasons, times = [*reasons, *why_not_the_same(*runs)], _times(*runs)
    plots = [
        Plot(name, figure, _curves_table(record))
        for name, figure in (("losses", plot_losses(record)), ("ranks", plot_ranks(record)))
        if figure is not None
    ]
    return _finding([parity_table(record, every=every)], reasons=reasons, times=times, plots=plots)


def _times(first: RecordedRun, second: RecordedRun) -> list[str]:
    """Return why the times of two runs do not compare, whether or not they are the same experiment."""
    return onednn_differs(first.record, second.record)


def _finding(tables: list[Table], *, reasons: list[str], times: list[str], plots: Sequence[Plot] = ()) -> Finding:
    return Finding(
        name="parity",
        question="Did both frameworks run the same experiment?",
        answer=_answer(reasons, times),
        tables=tables,
        plots=plots,
        flags=[*reasons, *times],
    )


def _answer(reasons: list[str], times: list[str]) -> str:
    if reasons:
        return "There are flags: it may not be the same experiment."
    return "The same experiment, but its times do not compare." if times else "Nothing to flag: the same experiment."


def _curves_table(record: ParityRecord) -> Table:
    headings = ["model", "optimizer", "dtype", "between", "state exchanged", "update", "loss", "loss of the other",
                "weights, relative difference"]  # fmt: skip
    rows = [
        [one.model, one.optimizer, one.dtype, " and ".join(one.between), str(one.exchanged), number, *values]
        for one in record.curves
        for number, values in enumerate(zip_longest(*one.losses, one.weights_difference), start=1)
    ]
    return Table("Update by update", headings, rows, {})


def parity_flags(record: ParityRecord) -> list[str]:
    """Return what is wrong with a record of proofs, in plain words."""
    wrong = [one for one in record.comparisons if one.differs]
    flags = [f"differs: {one.description}" for one in wrong]
    if not record.comparisons:
        flags.append("nothing was compared")
    if record.ended_at is None:
        flags.append(f"the proofs were not finished: {len(record.comparisons)} comparisons were made before the end")
    return flags


def parity_table(record: ParityRecord, *, every: bool = False) -> Table:
    """Return the proofs as a table.

    Args:
        record: the proofs.
        every: a row for every comparison; else the worst of all optimizers and numbers of ranks in one row.
    """
    groups: dict[tuple[Any, ...], list[ArrayComparison]] = {}
    for one in record.comparisons:
        same_framework = one.between[0].split()[0] == one.between[1].split()[0]
        apart = (one.between, one.optimizer) if every else same_framework
        groups.setdefault((one.model, one.what, apart), []).append(one)
    order = {model: number for number, model in enumerate(record.settings.models)}
    rows = [_row(group) for group in sorted(groups.values(), key=lambda group: order.get(group[0].model, len(order)))]
    headings = ["model", "compared", "between", "optimizer", "dropout"]
    formats: dict[str, str] = {}
    for dtype in DTYPES:
        headings += [dtype, f"limit {dtype}"]
        formats |= {dtype: ".1e", f"limit {dtype}": ".0e"}
    headings.append("verdict")
    commit, changed, _ = record.environment.source_revision.partition("+")
    title = (
        f"Parity of {record.started_at[:10]}, commit {commit[:10]}{'+changes' if changed else ''}: "
        "relative differences, the worst of each"
    )
    return Table(title, headings, rows, formats)


def _row(group: list[ArrayComparison]) -> list[str | float | None]:
    cells: list[str | float | None] = [
        group[0].model,
        group[0].what,
        _between(group),
        _optimizers(group),
        group[0].dropout,
    ]
    for dtype in DTYPES:
        of_dtype = [one for one in group if one.dtype == dtype]
        differences = [math.inf if math.isnan(one.difference) else one.difference for one in of_dtype]
        cells.append(max(differences, default=None))
        limits = [one.tolerance for one in of_dtype if one.tolerance is not None]
        cells.append(min(limits) if limits else "not judged" if of_dtype else None)
    judged = [one for one in group if one.tolerance is not None]
    cells.append("DIFFERS" if any(one.differs for one in judged) else "same" if judged else "shown")
    return cells


def _between(group: Sequence[ArrayComparison]) -> str:
    (ours, theirs) = (sorted({one.between[side] for one in group}) for side in (0, 1))
    names = [sorted({name.split()[0] for name in side}) for side in (ours, theirs)]
    numbers = [sorted({int(name.split()[-1]) for name in side}) for side in (ours, theirs)]
    if names[0] != names[1]:
        return f"{names[0][0]} and {names[1][0]}, np {_listed(numbers[0])}"
    return f"np {_listed(numbers[0])} and {_listed(numbers[1])}, {_listed(names[0])}"


def _optimizers(group: Sequence[ArrayComparison]) -> str:
    names = list(dict.fromkeys(one.optimizer for one in group if one.optimizer))
    if len(names) <= 3:
        return _listed(names)
    worst = max(group, key=lambda one: (one.dtype == "float64", one.difference))
    return f"{len(names)}, worst {worst.optimizer}"


def _listed(items: Sequence[Any]) -> str:
    return ", ".join(str(item) for item in items)


def runs_table(first: RecordedRun, second: RecordedRun) -> Table:
    """Return two runs next to each other: hashes, what they trained, how far apart they ended."""
    rows: list[list[Any]] = []
    for name, title in {**HASHES, "final_weights": "final weights"}.items():
        hashes = [run.record.hashes for run in (first, second)]
        values = [one if isinstance(one, NotRecorded) else getattr(one, name) or "not yet" for one in hashes]
        rows.append([title, *map(_cell, values)])
    for title, field in (("global batch", "global_batch_size"), ("training samples", "training_samples"),
                         ("data set", "name")):  # fmt: skip
        cells = (run.record.data for run in (first, second))
        rows.append([title, *(getattr(data, field) if isinstance(data, DataRecord) else None for data in cells)])
    losses = [[epoch.training_loss for epoch in run.epochs] for run in (first, second)]
    for number, pair in enumerate(zip(*losses, strict=False), start=1):
        rows.append([f"training loss of epoch {number}", *map(_cell, pair)])
    files = [run.folder / WEIGHTS_FILE for run in (first, second)]
    if all(file.exists() for file in files):
        reference, other = (load_weights(file) for file in files)
        difference, where = worst_difference(other, reference)
        rows.append(["final weights, relative difference", difference, where if difference else ""])
    headings = ["", str(first.folder), str(second.folder)]
    return Table("Two runs", headings, rows, {})


def _cell(value: Any) -> Any:
    return f"not recorded: {value.not_recorded}" if isinstance(value, NotRecorded) else value
