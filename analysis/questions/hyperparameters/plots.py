"""Accuracy over epochs, time by batch, and time by the share of validation samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter, ScalarFormatter
from numpy.typing import NDArray

from analysis.output.finding import Plot
from analysis.output.plots import COLORS, MARKERS, framework_style, legend_below, look_of_points, n_words, scale_axis
from analysis.output.tables import Table
from analysis.questions.hyperparameters.sweep import SweepPoint, share_label
from analysis.runs.labels import framework_label
from analysis.runs.table import curve

Sweep = Sequence[SweepPoint]
_MARKS = 9  # of a line over epochs, so that it can be identified without color
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))


def plot_accuracies(epochs: pd.DataFrame, sweeps: Sequence[Sweep]) -> Plot | None:
    """Draw validation accuracy over epochs: a panel for each framework and resolution, a line for each batch.

    Args:
        epochs: the table of epochs.
        sweeps: of one model, one per framework.

    Returns:
        None where no run has validated.
    """
    points = [point for sweep in sweeps for point in sweep]
    curves = {id(point): _curves(epochs, point) for point in points}
    if not any(curves.values()):
        return None
    sizes, batches = _sizes(points), _batches(points)
    figure = Figure(figsize=(1.5 + 4.2 * len(sizes), 1.6 + 2.9 * len(sweeps)))
    panels = figure.subplots(len(sweeps), len(sizes), sharex=True, sharey=True, squeeze=False)
    for row, sweep in zip(panels, sweeps, strict=True):
        for ax, size in zip(row, sizes, strict=True):
            ax.set_title(f"{framework_label(sweep[0].cell.framework)}, {size}")
            for point in (one for one in sweep if one.size == size):
                _draw_curves(ax, point, curves[id(point)], _batch_style(batches.index(point.batch)))
        row[0].set_ylabel("validation accuracy, %")
    for ax in panels[-1]:
        ax.set_xlabel("epoch")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        longest = max(len(accuracies) for of_point in curves.values() for _, accuracies in of_point)
        ax.set_xlim(1 - 0.02 * longest - 0.2, 1.02 * longest + 0.2)
    handles = [Line2D([], [], label=f"batch {batch}", **_batch_style(number)) for number, batch in enumerate(batches)]
    legend_below(figure, handles, ncols=6)
    figure.suptitle(f"Accuracy by batch and resolution: {_model(points)}\n{_n(points)}")
    rows: list[list[Any]] = [
        [point.cell.framework, point.size, point.batch, name, epoch, 100 * value]
        for point in points
        for name, accuracies in curves[id(point)]
        for epoch, value in enumerate(accuracies.tolist(), start=1)
        if np.isfinite(value)
    ]
    headings = ["framework", "resolution", "batch", "run", "epoch", "validation accuracy, %"]
    return Plot("hyperparameters-accuracy", figure, Table("Validation accuracy", headings, rows, {headings[5]: ".2f"}))


def plot_times(sweeps: Sequence[Sweep]) -> Plot | None:
    """Draw the total time by batch: a panel for each resolution, a line for each framework; None without times."""
    points = [point for sweep in sweeps for point in sweep if point.seconds]
    if not points:
        return None
    sizes, batches = _sizes(points), _batches(points)
    figure = Figure(figsize=(1.5 + 3.6 * len(sizes), 4.0))
    panels = figure.subplots(1, len(sizes), sharex=True, sharey=True, squeeze=False)[0]
    for ax, size in zip(panels, sizes, strict=True):
        for sweep in sweeps:
            _draw_times(ax, [point for point in sweep if point.size == size and point.seconds])
        ax.set_title(size)
        ax.set_xlabel("batch, images (logarithmic)")
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_locator(FixedLocator(batches))
        ax.xaxis.set_major_formatter(ScalarFormatter())
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_xlim(batches[0] / 1.15, batches[-1] * 1.15)
    panels[0].set_ylabel("train + validation + test, s")
    values = [value for point in points for value in point.seconds.values()]
    scale_axis(panels[0], values, axis="y")
    if panels[0].get_yscale() == "linear":
        panels[0].set_ylim(bottom=0)
    styles = [framework_style(sweep[0].cell.framework) for sweep in sweeps]
    handles = [Line2D([], [], color=one["color"], marker=one["marker"], label=one["label"]) for one in styles]
    legend_below(figure, handles)
    figure.suptitle(f"Time by batch and resolution: {_model(points)}\n{_n(points)}")
    rows: list[list[Any]] = [
        [point.cell.framework, point.size, point.batch, str(key), value]
        for point in points
        for key, value in point.seconds.items()
    ]
    headings = ["framework", "resolution", "batch", "run", "total, s"]
    return Plot("hyperparameters-time", figure, Table("Total time", headings, rows, {"total, s": ".6g"}))


def plot_shares(sweep: Sweep) -> Plot | None:
    """Draw time per epoch and in all by the share of validation samples; None without times of both phases."""
    phases = {"training": "epoch_seconds", "validation": "validation_epoch_seconds"}
    points = [point for point in sweep if all(point.cell.seconds(of) for of in phases.values())]
    if not points:
        return None
    rows: list[list[Any]] = []
    figure = Figure(figsize=(8.0, 3.8))
    left, right = figure.subplots(1, 2)
    for number, (name, of) in enumerate(phases.items()):
        style = {"color": COLORS[number], "marker": MARKERS[number]}
        _draw_by_share(left, points, [list(point.cell.seconds(of).values()) for point in points], style, label=name)
        rows += [
            [share_label(point), name, str(key), value]
            for point in points
            for key, value in point.cell.seconds(of).items()
        ]
    black = {"color": "black", "marker": "o"}
    _draw_by_share(right, points, [list(point.seconds.values()) for point in points], black)
    rows += [
        [share_label(point), "in all", str(key), value] for point in points for key, value in point.seconds.items()
    ]
    for ax, unit in ((left, "seconds per epoch"), (right, "train + validation + test, s")):
        ax.set_xticks(range(len(points)), [share_label(point) for point in points])
        ax.set_xlim(-0.5, len(points) - 0.5)
        ax.set_ylim(bottom=0)
        ax.set_ylabel(unit)
        ax.set_xlabel("share of validation samples")
    left.legend()
    first = points[0]
    what = f", {first.size}, batch {first.batch}" if first.batch else ""
    figure.suptitle(
        f"Time by share of validation samples: {framework_label(first.cell.framework)}, {_model(points)}{what}"
        f"\n{_n(points)}"
    )
    headings = ["validation samples", "phase", "run", "s"]
    return Plot(
        "hyperparameters-validation", figure, Table("Time by share of validation", headings, rows, {"s": ".6g"})
    )


Curves = Sequence[tuple[str, NDArray[np.float64]]]


def _curves(epochs: pd.DataFrame, point: SweepPoint) -> Curves:
    """Return names of runs with their validation accuracies: (epochs,) float64, NaN in epochs without validation."""
    found = [(run.name, curve(epochs, run, "validation_accuracy")) for run in point.cell.finished]
    return [(name, accuracies) for name, accuracies in found if np.isfinite(accuracies).any()]


def _draw_curves(ax: Axes, point: SweepPoint, curves: Curves, style: dict[str, Any]) -> None:
    values = [pd.Series(100 * accuracies) for _, accuracies in curves]
    if not values:
        return
    if len(values) > 1:
        for accuracies in values:
            known = accuracies.dropna()
            ax.plot(known.index + 1, known, color=style["color"], linewidth=0.5, alpha=0.4)
    median = pd.DataFrame(values).median().dropna()  # of runs that ended early, over those that were still training
    look = style | look_of_points(style, published=point.cell.is_published)
    ax.plot(median.index + 1, median, linewidth=1.2, markevery=max(1, len(median) // _MARKS), **look)


def _draw_times(ax: Axes, points: Sequence[SweepPoint]) -> None:
    if not points:
        return
    style = framework_style(points[0].cell.framework)
    for point in points:
        values = list(point.seconds.values())
        ax.plot(
            [point.batch] * len(values), values, linestyle="", markersize=5, alpha=0.5 if len(values) > 1 else 1.0,
            **look_of_points(style, published=point.cell.is_published),
        )  # fmt: skip
    medians = [float(np.median(list(point.seconds.values()))) for point in points]
    ax.plot([point.batch for point in points], medians, color=style["color"], linestyle=style["linestyle"])


def _draw_by_share(
    ax: Axes, points: Sequence[SweepPoint], values: Sequence[Sequence[float]], style: dict[str, Any], *, label: str = ""
) -> None:
    for place, (point, of_point) in enumerate(zip(points, values, strict=True)):
        look = look_of_points(style, published=point.cell.is_published)
        ax.plot([place] * len(of_point), of_point, linestyle="", markersize=5, alpha=0.6, **look)
    medians = [float(np.median(of_point)) for of_point in values]
    ax.plot(range(len(values)), medians, color=style["color"], linewidth=0.8)
    for place, median in enumerate(medians):
        ax.annotate(f"{median:,.1f}", (place, median), xytext=(7, 3), textcoords="offset points", fontsize=8)
    if label:
        ax.plot([], [], label=label, **style)


def _batch_style(number: int) -> dict[str, Any]:
    return {
        "color": COLORS[number % len(COLORS)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": max(3.5, 7 - 0.6 * number),  # what is drawn first shows from beneath
        "linestyle": _DASHES[number // len(COLORS) % len(_DASHES)],
    }


def _batches(points: Sequence[SweepPoint]) -> list[int]:
    return sorted({point.batch for point in points if point.batch is not None})


def _sizes(points: Sequence[SweepPoint]) -> list[str]:
    return list(dict.fromkeys(point.size for point in sorted(points, key=lambda one: one.pixels)))


def _model(points: Sequence[SweepPoint]) -> str:
    return ", ".join(filter(None, [points[0].cell.first.model, points[0].work]))


def _n(points: Sequence[SweepPoint]) -> str:
    counts = {point.n for point in points}
    hollow = "; hollow: published" if any(point.cell.is_published for point in points) else ""
    if counts == {1}:
        return f"n = 1 run each{hollow}"
    return f"{n_words(counts)} runs each; line: median over runs{hollow}"
