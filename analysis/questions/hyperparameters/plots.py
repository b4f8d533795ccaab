"""Accuracy over epochs, time by batch, and time by the share of validation samples."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter, ScalarFormatter

from analysis.output.finding import Plot
from analysis.output.plots import COLORS, MARKERS, SETTINGS, framework_style, n_words, scale_axis
from analysis.output.tables import Table
from analysis.questions.hyperparameters.trials import (
    Trial,
    accuracy_curve,
    share_label,
    training_an_epoch,
    validation_an_epoch,
)

Study = Sequence[Trial]
_MARKS = 9  # of a line over epochs, so that it is known without its colour
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))


def plot_accuracies(studies: Sequence[Study]) -> Plot | None:
    """Draw validation accuracy over epochs: a panel for each framework and resolution, a line for each batch.

    Args:
        studies: of one model, a framework each.

    Returns:
        None where no run has validated.
    """
    trials = [trial for study in studies for trial in study]
    curves = {id(trial): _curves(trial) for trial in trials}
    if not any(curves.values()):
        return None
    sizes, batches = _sizes(trials), sorted({trial.batch for trial in trials})
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(1.5 + 4.2 * len(sizes), 1.6 + 2.9 * len(studies)), layout="constrained")
        panels = figure.subplots(len(studies), len(sizes), sharex=True, sharey=True, squeeze=False)
        for row, study in zip(panels, studies, strict=True):
            for ax, size in zip(row, sizes, strict=True):
                ax.set_title(f"{_framework(study)}, {size}")
                for trial in (one for one in study if one.size == size):
                    _draw_curves(ax, curves[id(trial)], _batch_style(batches.index(trial.batch)))
            row[0].set_ylabel("validation accuracy, %")
        for ax in panels[-1]:
            ax.set_xlabel("epoch")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            longest = max(len(curve) for of_trial in curves.values() for curve in of_trial.values())
            ax.set_xlim(1 - 0.02 * longest - 0.2, 1.02 * longest + 0.2)
        handles = [
            Line2D([], [], label=f"batch {batch}", **_batch_style(number)) for number, batch in enumerate(batches)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=6)
        model = trials[0].cell.runs[0].model
        figure.suptitle(f"Accuracy by batch and resolution: {model}\n{_n(trials)}")
    rows: list[list[Any]] = [
        [trial.cell.framework, trial.size, trial.batch, name, epoch, 100 * value]
        for trial in trials
        for name, curve in curves[id(trial)].items()
        for epoch, value in enumerate(curve.tolist(), start=1)
    ]
    headings = ["framework", "resolution", "batch", "run", "epoch", "validation accuracy, %"]
    return Plot("hyperparameters-accuracy", figure, Table("Validation accuracy", headings, rows, {headings[5]: ".2f"}))


def plot_times(studies: Sequence[Study]) -> Plot | None:
    """Draw the total time by batch: a panel for each resolution, a line for each framework; None without times."""
    trials = [trial for study in studies for trial in study if trial.seconds]
    if not trials:
        return None
    sizes, batches = _sizes(trials), sorted({trial.batch for trial in trials})
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(1.5 + 3.6 * len(sizes), 4.0), layout="constrained")
        panels = figure.subplots(1, len(sizes), sharex=True, sharey=True, squeeze=False)[0]
        for ax, size in zip(panels, sizes, strict=True):
            for study in studies:
                _draw_times(ax, [trial for trial in study if trial.size == size and trial.seconds])
            ax.set_title(size)
            ax.set_xlabel("batch, images (logarithmic)")
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_locator(FixedLocator(batches))
            ax.xaxis.set_major_formatter(ScalarFormatter())
            ax.xaxis.set_minor_formatter(NullFormatter())
            ax.set_xlim(batches[0] / 1.15, batches[-1] * 1.15)
        panels[0].set_ylabel("train + validation + test, s")
        values = [value for trial in trials for value in trial.seconds.values()]
        scale_axis(panels[0], values, axis="y")
        if panels[0].get_yscale() == "linear":
            panels[0].set_ylim(bottom=0)
        styles = [framework_style(study[0].cell.framework) for study in studies]
        handles = [Line2D([], [], color=one["color"], marker=one["marker"], label=one["label"]) for one in styles]
        figure.legend(handles=handles, loc="outside lower center", ncols=4)
        model = trials[0].cell.runs[0].model
        figure.suptitle(f"Time by batch and resolution: {model}\n{_n(trials)}")
    rows: list[list[Any]] = [
        [trial.cell.framework, trial.size, trial.batch, str(key), value]
        for trial in trials
        for key, value in trial.seconds.items()
    ]
    headings = ["framework", "resolution", "batch", "run", "total, s"]
    return Plot("hyperparameters-time", figure, Table("Total time", headings, rows, {"total, s": ".6g"}))


def plot_shares(study: Study) -> Plot | None:
    """Draw time an epoch and in all by the share of validation samples; None without times of both phases."""
    phases = {"training": training_an_epoch, "validation": validation_an_epoch}
    trials = [trial for trial in study if all(trial.cell.seconds(of) for of in phases.values())]
    if not trials:
        return None
    rows: list[list[Any]] = []
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(8.0, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        for number, (name, of) in enumerate(phases.items()):
            style = {"color": COLORS[number], "marker": MARKERS[number]}
            _draw_by_share(left, [list(trial.cell.seconds(of).values()) for trial in trials], style, label=name)
            rows += [
                [share_label(trial), name, str(key), value]
                for trial in trials
                for key, value in trial.cell.seconds(of).items()
            ]
        _draw_by_share(right, [list(trial.seconds.values()) for trial in trials], {"color": "black", "marker": "o"})
        rows += [
            [share_label(trial), "in all", str(key), value] for trial in trials for key, value in trial.seconds.items()
        ]
        for ax, unit in ((left, "seconds an epoch"), (right, "train + validation + test, s")):
            ax.set_xticks(range(len(trials)), [share_label(trial) for trial in trials])
            ax.set_xlim(-0.5, len(trials) - 0.5)
            ax.set_ylim(bottom=0)
            ax.set_ylabel(unit)
            ax.set_xlabel("share of validation samples")
        left.legend()
        first = trials[0]
        what = f", {first.size}, batch {first.batch}" if first.batch else ""
        figure.suptitle(
            f"Time by share of validation samples: {_framework(study)}, {first.cell.runs[0].model}{what}\n{_n(trials)}"
        )
    headings = ["validation samples", "phase", "run", "s"]
    return Plot(
        "hyperparameters-validation", figure, Table("Time by share of validation", headings, rows, {"s": ".6g"})
    )


def _curves(trial: Trial) -> dict[str, Any]:
    found = {run.name: accuracy_curve(run) for run in trial.cell.finished}
    return {name: curve for name, curve in found.items() if len(curve)}


def _draw_curves(ax: Axes, curves: dict[str, Any], style: dict[str, Any]) -> None:
    values = [100 * curve for curve in curves.values()]
    if not values:
        return
    if len(values) > 1:
        for curve in values:
            ax.plot(np.arange(1, len(curve) + 1), curve, color=style["color"], linewidth=0.5, alpha=0.4)
    epochs = max(len(curve) for curve in values)
    # Of runs that ended early, the median is over those that were still training.
    median = [float(np.median([curve[epoch] for curve in values if len(curve) > epoch])) for epoch in range(epochs)]
    ax.plot(range(1, epochs + 1), median, linewidth=1.2, markevery=max(1, epochs // _MARKS), **style)


def _draw_times(ax: Axes, trials: Sequence[Trial]) -> None:
    if not trials:
        return
    style = framework_style(trials[0].cell.framework)
    for trial in trials:
        values = list(trial.seconds.values())
        ax.plot(
            [trial.batch] * len(values), values, linestyle="", markersize=5, alpha=0.5 if len(values) > 1 else 1.0,
            color=style["color"], marker=style["marker"],
        )  # fmt: skip
    medians = [float(np.median(list(trial.seconds.values()))) for trial in trials]
    ax.plot([trial.batch for trial in trials], medians, color=style["color"], linestyle=style["linestyle"])


def _draw_by_share(ax: Axes, values: Sequence[Sequence[float]], style: dict[str, Any], *, label: str = "") -> None:
    for place, of_trial in enumerate(values):
        ax.plot([place] * len(of_trial), of_trial, linestyle="", markersize=5, alpha=0.6, **style)
    medians = [float(np.median(of_trial)) for of_trial in values]
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


def _sizes(trials: Sequence[Trial]) -> list[str]:
    return list(dict.fromkeys(trial.size for trial in sorted(trials, key=lambda one: one.pixels)))


def _framework(study: Study) -> str:
    label: str = framework_style(study[0].cell.framework)["label"]
    return label


def _n(trials: Sequence[Trial]) -> str:
    counts = {trial.n for trial in trials}
    if counts == {1}:
        return "n = 1 run each"
    return f"{n_words(counts)} runs each; line: median over runs"
