"""`python -m analysis parity`: what the proofs showed, or whether two runs were the same experiment."""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.parity_plots import plot_losses, plot_ranks
from analysis.plots import save_figure
from analysis.sameness import HASHES, why_not_the_same
from analysis.tables import FORMATS, Table, render
from common.differences import worst_difference
from common.errors import UserError
from common.initial_weights import load_weights
from common.parity import Comparison, ParityRecord, read_parity
from common.parity_cases import DTYPES
from common.records import WEIGHTS_FILE, DataRecord, NotRecorded, Run, read_run


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "parity",
        help="what `launch parity` showed; or whether two runs were the same experiment",
        description="Show the proofs in a folder of `python -m launch parity` as table and plots, or compare two runs.",
    )
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="one folder with parity.json, or two run folders")
    parser.add_argument("--format", default="text", help=f"one of {', '.join(FORMATS)} (default: %(default)s)")
    parser.add_argument("--all", action="store_true", help="a row for every comparison")
    parser.add_argument("--plots", metavar="DIR", help="folder of the plots (default: FOLDER/plots)")
    parser.add_argument("--strict", action="store_true", help="exit code 2 if anything differs or is missing")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: with --strict, if something differs; always for what cannot be read.
    """
    if options.format not in FORMATS:
        raise UserError(f"there is no such format. Received: --format {options.format}. Use {', '.join(FORMATS)}")
    folders = [Path(folder) for folder in options.folders]
    if len(folders) > 2:
        raise UserError(
            f"two runs are compared. Received: {len(folders)} folders. Name one folder of proofs, or two runs"
        )
    if len(folders) == 2:
        runs = [read_run(folder) for folder in folders]
        _show([runs_table(*runs)], flags=why_not_the_same(*runs), options=options)
        return
    record = read_parity(folders[0])
    runs = [read_run(folders[0] / name) for name in record.runs]
    flags = parity_flags(record)
    if len(runs) == 2:
        flags += why_not_the_same(*runs)
    files = []
    if record.curves:
        plots = Path(options.plots) if options.plots else folders[0] / "plots"
        for name, figure in (("losses", plot_losses(record)), ("ranks", plot_ranks(record))):
            files += save_figure(figure, plots, name) if figure is not None else []
    _show([parity_table(record, every=options.all)], flags=flags, options=options, files=files)


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
    groups: dict[tuple[Any, ...], list[Comparison]] = {}
    for one in record.comparisons:
        groups.setdefault(_every_key(one) if every else _group_key(one), []).append(one)
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


def _every_key(one: Comparison) -> tuple[Any, ...]:
    return (one.model, one.what, one.between, one.optimizer)


def _group_key(one: Comparison) -> tuple[Any, ...]:
    """Put all optimizers and numbers of ranks together."""
    return (one.model, one.what, one.between[0].split()[0] == one.between[1].split()[0])


def _row(group: list[Comparison]) -> list[str | float | None]:
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


def _between(group: Sequence[Comparison]) -> str:
    (ours, theirs) = (sorted({one.between[side] for one in group}) for side in (0, 1))
    names = [sorted({name.split()[0] for name in side}) for side in (ours, theirs)]
    numbers = [sorted({int(name.split()[-1]) for name in side}) for side in (ours, theirs)]
    if names[0] != names[1]:
        return f"{names[0][0]} and {names[1][0]}, np {_listed(numbers[0])}"
    return f"np {_listed(numbers[0])} and {_listed(numbers[1])}, {_listed(names[0])}"


def _optimizers(group: Sequence[Comparison]) -> str:
    names = list(dict.fromkeys(one.optimizer for one in group if one.optimizer))
    if len(names) <= 3:
        return _listed(names)
    worst = max(group, key=lambda one: (one.dtype == "float64", one.difference))
    return f"{len(names)}, worst {worst.optimizer}"


def _listed(items: Sequence[Any]) -> str:
    return ", ".join(str(item) for item in items)


def runs_table(first: Run, second: Run) -> Table:
    """Return two runs side by side: hashes, what they trained, how far apart they ended."""
    rows: list[list[Any]] = []
    for name, title in {**HASHES, "final_weights": "final weights"}.items():
        rows.append([title, *(_hash(run, name) for run in (first, second))])
    for title, field in (("global batch", "global_batch_size"), ("training samples", "training_samples"),
                         ("data set", "name")):  # fmt: skip
        cells = (run.record.data for run in (first, second))
        rows.append([title, *(getattr(data, field) if isinstance(data, DataRecord) else None for data in cells)])
    losses = [[epoch.training_loss for epoch in run.epochs] for run in (first, second)]
    for number, pair in enumerate(zip(*losses, strict=False), start=1):
        rows.append([f"training loss of epoch {number}", *pair])
    files = [run.folder / WEIGHTS_FILE for run in (first, second)]
    if all(file.exists() for file in files):
        reference, other = (load_weights(file) for file in files)
        difference, where = worst_difference(other, reference)
        rows.append(["final weights, relative difference", difference, where if difference else ""])
    headings = ["", str(first.folder), str(second.folder)]
    return Table("Two runs", headings, rows, {})


def _hash(run: Run, name: str) -> str:
    hashes = run.record.hashes
    value = hashes if isinstance(hashes, NotRecorded) else getattr(hashes, name)
    if isinstance(value, NotRecorded):
        return f"not recorded: {value.not_recorded}"
    return value or "not yet"


def _show(tables: list[Table], *, flags: list[str], options: argparse.Namespace, files: Sequence[Path] = ()) -> None:
    """Print tables, what was flagged and, for people, what was written; with --strict a flag is an error."""
    for table in tables:
        print(render(table, options.format))
    # What a program reads stays a table; people hear of flags in any case.
    stream = sys.stdout if options.format == "text" else sys.stderr
    lines = [f"flag: {flag}" for flag in flags]
    if options.format == "text":
        lines = ["", *(lines or ["nothing to flag: the same experiment"]), *(f"plot: {file}" for file in files)]
    if lines and not (options.strict and options.format != "text"):
        print("\n".join(lines), file=stream)
    if flags and options.strict:
        more = f" ({len(flags)} flags in all)" if len(flags) > 1 else ""
        raise UserError(
            f"this does not prove one experiment. Received: {flags[0]}{more}. Leave out --strict to see it all the same"
        )
