"""`python -m analysis times`: the notebook's figures for any runs: epoch times; mean epoch, test and total."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from analysis.output import tables
from analysis.output.finding import Finding, Plot, add_question, brief
from analysis.output.plots import (
    ROW_INCHES,
    Row,
    draw_rows,
    framework_style,
    legend_below,
    scale_axis,
    spread_words,
    wrapped,
)
from analysis.output.tables import Table, shown_interval
from analysis.runs.cells import Cell, Quantity, cells_of
from analysis.runs.labels import framework_label
from analysis.runs.settings import kind_of_device
from analysis.runs.table import RunRow, Selection, curve
from analysis.runs.validity import flags_of
from analysis.stats.inference import median_interval, median_of
from common.distributed.console import counted

MOST_DRAWN = 12  # cells of a picture that can still be read
COLUMNS = 3
_QUESTION = "How long do an epoch, the test and the whole run take, and how much do epochs differ?"


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    add_question(
        commands,
        "times",
        find,
        "times of epochs; mean epoch, test and total",
    )


Curves = list[tuple[str, NDArray[np.float64]]]  # name of a run, its training seconds by epoch


def epoch_curves(cell: Cell, epochs: pd.DataFrame) -> Curves:
    """Return the training seconds of each epoch, (epochs,) float64, of the timed runs that recorded them."""
    curves = [(run.name, curve(epochs, run, "training_seconds")) for run in cell.timed]
    return [(name, seconds) for name, seconds in curves if len(seconds) and np.isfinite(seconds).all()]


def total_of(run: RunRow) -> float:
    """Total = sum of the epochs' training times + test time, as in the notebook."""
    test = run.test_seconds
    return run.training_seconds + (0.0 if math.isnan(test) else test)


QUANTITIES: dict[str, Quantity] = {"mean epoch": "epoch_seconds", "test": "test_seconds", "total": total_of}


def find(selection: Selection) -> Finding:
    """Show the times of timed runs."""
    cells = [cell for cell in side_by_side(cells_of(selection.runs)) if cell.seconds("training_seconds")]
    flags = flags_of(selection.rows, cells)
    if not cells:
        return Finding(name="times", question=_QUESTION, answer="None of these runs has times.", flags=flags)
    curves = [(cell, epoch_curves(cell, selection.epochs)) for cell in cells]
    with_curves = [(cell, of_cell) for cell, of_cell in curves if of_cell]
    plots = [
        plot for plot in (plot_epochs(with_curves[:MOST_DRAWN]), plot_totals(cells[:MOST_DRAWN])) if plot is not None
    ]
    notes = []
    if missing := len(cells) - len(with_curves):
        notes.append(f"no lines for {counted(missing, 'cell')}: their sources hold no times of single epochs")
    for what, count in (("epoch times", len(with_curves)), ("execution times", len(cells))):
        if count > MOST_DRAWN:
            notes.append(f"{what} are drawn for the first {MOST_DRAWN} of {count} cells")
    notes.append("training times of the slowest rank; total = sum of epochs + test, as in the notebook, without "
                 "validation and start-up; range: the slowest less the fastest epoch of a run")  # fmt: skip
    return Finding(
        name="times",
        question=_QUESTION,
        answer=_answer(cells),
        tables=[times_table(curves)],
        plots=plots,
        flags=flags,
        notes=notes,
    )


def side_by_side(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells with those of one experiment next to each other, CPU before GPU."""
    experiments = list(dict.fromkeys(map(_experiment, cells)))
    return sorted(cells, key=lambda cell: (experiments.index(_experiment(cell)), cell.first.device))


def _experiment(cell: Cell) -> tuple[str, ...]:
    first = cell.first
    return first.framework, first.model, first.data_set


def _answer(cells: Sequence[Cell]) -> str:
    words = [against for pair in _by_device(cells) if (against := _against(pair))]
    if words:
        return brief(words)
    totals = [(value, cell) for cell in cells if (value := _median(cell, "total")) is not None]
    least, most = (edge(totals, key=lambda one: one[0]) for edge in (min, max))
    if len(totals) == 1:
        return f"{_named(least[1])}: {least[0]:,.2f} s in all (n = {len(least[1].timed)})."
    return (
        f"The shortest median total is {least[0]:,.2f} s ({_named(least[1])}), the longest {most[0]:,.2f} s "
        f"({_named(most[1])}). No experiment was run on both kinds of device."
    )


def _named(cell: Cell) -> str:
    framework, model, data_set = _experiment(cell)
    return f"{framework_label(framework)}, {model}, {data_set}"


def _by_device(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Return pairs of a cell on CPUs and the cell on GPUs of the same experiment and number of ranks."""
    on_gpus: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        if kind_of_device(cell.first.device) == "gpu":
            on_gpus[_alike(cell)].append(cell)
    on_cpus = [cell for cell in cells if cell.first.device == "cpu"]
    return [[cell, *same] for cell in on_cpus if len(same := on_gpus.get(_alike(cell), [])) == 1]


def _alike(cell: Cell) -> tuple[Any, ...]:
    first = cell.first
    settings = cell.settings
    return (*_experiment(cell), first.np, settings.get("controller"), first.global_batch, first.image_size,
            settings.get("origin"), settings.get("epochs"))  # fmt: skip


def _against(pair: Sequence[Cell]) -> str | None:
    on_cpu, on_gpu = (_median(cell, "total") for cell in pair)
    if on_cpu is None or not on_gpu:
        return None
    n = " and ".join(str(len(cell.timed)) for cell in pair)
    return f"{_named(pair[0])} takes {on_cpu / on_gpu:.2f} times as long on the CPU as on the GPU (n = {n})."


def _median(cell: Cell, quantity: str) -> float | None:
    return median_of(cell.seconds(QUANTITIES[quantity]).values())


def times_table(curves: Sequence[tuple[Cell, Curves]]) -> Table:
    """Return mean epoch, test and total of each cell, and by how much its epochs differ."""
    headings = ["framework", "model, data set, np", "n", "mean epoch, s", "95 % interval", "range of epochs, s",
                "test, s", "total, s", "95 % interval of it", "min", "max"]  # fmt: skip
    table_rows: list[list[tables.Cell]] = []
    for cell, of_cell in curves:
        epochs, totals = (list(cell.seconds(QUANTITIES[name]).values()) for name in ("mean epoch", "total"))
        ranges = [float(np.ptp(seconds)) for _, seconds in of_cell]
        table_rows.append(
            [framework_label(cell.framework), cell.label, len(cell.timed), _median(cell, "mean epoch"),
             shown_interval(median_interval(epochs), ".3f"), float(np.median(ranges)) if ranges else None,
             _median(cell, "test"), _median(cell, "total"), shown_interval(median_interval(totals), ".2f"),
             min(totals), max(totals)]
        )  # fmt: skip
    formats = {"n": "d"} | dict.fromkeys(("mean epoch, s", "range of epochs, s", "test, s"), ".3f")
    return Table(
        "Times of epochs, test and all (medians over runs)", headings, table_rows,
        formats | dict.fromkeys(("total, s", "min", "max"), ",.2f"),
    )  # fmt: skip


def plot_epochs(curves: Sequence[tuple[Cell, Curves]]) -> Plot | None:
    """Draw the time of every epoch: a panel for each cell, a thin line for each run, their median bold."""
    if not curves:
        return None
    columns = min(COLUMNS, len(curves))
    lines = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(1.2 + 2.9 * columns, 1.2 + 2.1 * lines))
    panels = figure.subplots(lines, columns, sharey=True, squeeze=False).ravel()
    for ax, (cell, of_cell) in zip(panels, curves, strict=False):
        _draw_epochs(ax, cell, [seconds for _, seconds in of_cell])
    for ax in panels[len(curves) :]:
        ax.set_visible(False)
    for ax in panels[::columns]:
        ax.set_ylabel("seconds of training")
    everything = np.concatenate([seconds for _, of_cell in curves for _, seconds in of_cell]).tolist()
    scale_axis(panels[0], everything, axis="y")
    if panels[0].get_yscale() == "linear":
        panels[0].set_ylim(0, 1.08 * max(everything))
    for ax in panels[columns::columns]:
        ax.set_ylabel(panels[0].get_ylabel())
    figure.suptitle("Epoch times: thin lines are runs, bold: median over runs", fontsize=10)
    data: list[list[tables.Cell]] = [
        [cell.name, run, epoch, value]
        for cell, of_cell in curves
        for run, seconds in of_cell
        for epoch, value in enumerate(seconds.tolist(), start=1)
    ]
    return Plot("times-epochs", figure, Table("Epoch times", ["cell", "run", "epoch", "s"], data, {"s": ".6g"}))


def _draw_epochs(ax: Axes, cell: Cell, curves: Sequence[NDArray[np.float64]]) -> None:
    style = framework_style(cell.framework)
    for seconds in curves:
        ax.plot(np.arange(1, len(seconds) + 1), seconds, color=style["color"], linewidth=0.7, alpha=0.5)
    median = pd.DataFrame(curves).median()  # of runs that ended early, over those that were still training
    longest = len(median)
    ax.plot(range(1, longest + 1), median, linewidth=1.8, color=style["color"], linestyle=style["linestyle"],
            marker=style["marker"], markersize=4, markevery=max(1, longest // 10))  # fmt: skip
    ax.set_title(f"{wrapped(cell.name, width=34)}\nn = {len(curves)}", fontsize=8)
    ax.set_xlabel("epoch")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set_xlim(1 - 0.02 * longest - 0.2, 1.02 * longest + 0.2)


def plot_totals(cells: Sequence[Cell]) -> Plot | None:
    """Draw mean epoch, test and total of every run, with median and interval; None without any."""
    values = {name: {cell.name: list(cell.seconds(of).values()) for cell in cells} for name, of in QUANTITIES.items()}
    groups = {name: [cell for cell in cells if of_name[cell.name]] for name, of_name in values.items()}
    groups = {name: drawn for name, drawn in groups.items() if drawn}
    if not groups:
        return None
    spread = spread_words([len(cell.timed) for drawn in groups.values() for cell in drawn])
    inches = max(1.6 * ROW_INCHES, *(0.2 * (1 + wrapped(cell.name, width=34).count("\n")) for cell in cells))
    figure = Figure(figsize=(8.5, 1.5 + inches * len(cells)))
    panels = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for ax, name in zip(panels, groups, strict=True):
        points = {
            cell.name: Row(
                values=values[name][cell.name], style=framework_style(cell.framework),
                published=cell.is_published,
            )
            for cell in cells
        }  # fmt: skip
        draw_rows(ax, [(wrapped(label, width=34), [row]) for label, row in points.items()], unit=f"{name}, s")
        ax.margins(x=0.1)
        if ax.get_xscale() == "linear":
            ax.set_xlim(left=0)
    legend_below(figure)
    figure.suptitle(f"Execution time: {spread}", fontsize=10)
    rows_of_data: list[list[tables.Cell]] = [
        [cell, name, value]
        for name, of_name in values.items()
        for cell, of_cell in of_name.items()
        for value in of_cell
    ]
    return Plot("times-totals", figure, Table("Execution time", ["cell", "what", "s"], rows_of_data, {"s": ".6g"}))
