"""The thesis's figures from its run folders in this project's style: runs are points, published values are hollow."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from analysis.output.finding import Plot
from analysis.output.plots import (
    COLORS,
    IDEAL,
    MARKERS,
    draw_stacks,
    label_rows,
    legend_below,
    n_words,
    scale_axis,
    spread_out,
)
from analysis.output.tables import Table
from analysis.questions.energy.plots import energy_plot, power_plot
from analysis.runs.energy import median_trace
from analysis.runs.table import RunRow, curve
from analysis.thesis.comparison import BASE, ENVIRONMENTS, HYBRIDS, PHASES, ThesisRuns, printed, printed_percent

PUBLISHED: dict[str, Any] = {
    "color": "black", "marker": "D", "linestyle": "", "markerfacecolor": "white", "markersize": 5.5, "zorder": 5,
    "label": "published",
}  # fmt: skip
_RING = {"markersize": 10, "markerfacecolor": "none", "zorder": 1}  # around a point of nearly the same value
_LOOKS = {
    phase: {"color": COLORS[number], "hatch": hatch, "edgecolor": "white"}
    for phase, number, hatch in (("training", 0, ""), ("validation", 4, "//"), ("test", 1, "xx"))
}
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))
Data = list[list[str | float]]


def _style(number: int) -> dict[str, Any]:
    return {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)]}


STYLES = {name: _style(number) for number, name in enumerate([*ENVIRONMENTS, "hybrid"])}
STYLES["hybrid-gpu1"] = STYLES[BASE]


def _plot(name: str, figure: Figure, title: str, rows: Data, headings: Sequence[str] = ("of", "what", "value")) -> Plot:
    figure.suptitle(title, fontsize=10)
    return Plot(f"thesis-{name}", figure, Table(title, headings, rows, {headings[-1]: ".6g"}))


def _counted(runs: Mapping[str, Sequence[Any]]) -> str:
    return n_words(len(values) for values in runs.values())


def _timed(thesis: ThesisRuns) -> dict[str, list[RunRow]]:
    """Return the timed runs of the environments that have some."""
    return {name: thesis.timed[name] for name in ENVIRONMENTS if thesis.timed[name]}


def _published(ax: Axes, x: Sequence[float | None], y: Sequence[float | None], **look: Any) -> None:
    """Draw published values; what is None in one of the coordinates is not printed."""
    points = [(one, other) for one, other in zip(x, y, strict=True) if one is not None and other is not None]
    ax.plot([one for one, _ in points], [other for _, other in points], **PUBLISHED | look)


def _curve(thesis: ThesisRuns, run: RunRow) -> NDArray[np.float64]:
    """Return the validation accuracy of each epoch in percent: (epochs,) float64."""
    return 100 * curve(thesis.epochs, run, "validation_accuracy")


def _draw_curve(ax: Axes, thesis: ThesisRuns, run: RunRow, label: str, number: int, **look: Any) -> Data:
    """Draw the accuracy of a run over epochs."""
    accuracies = _curve(thesis, run)
    ax.plot(np.arange(1, len(accuracies) + 1), accuracies, linestyle=_DASHES[number], markersize=4, label=label, **look)
    ax.set_xlabel("epoch")
    ax.set_ylabel("validation accuracy, %")
    ax.set_ylim(0, 100)
    ax.set_xlim(left=0)
    return [[label, f"epoch {epoch}, %", value] for epoch, value in enumerate(accuracies.tolist(), 1)]


def _draw_phases(ax: Axes, runs: Mapping[str, Sequence[RunRow]], phases: Sequence[str]) -> Data:
    """Draw mean times of phases, stacked, a row for each label, and the sum of each run as a point."""
    rows: Data = []
    stacks = []
    for place, (label, of_label) in enumerate(runs.items()):
        seconds = {phase: [getattr(run, f"{phase}_seconds") for run in of_label] for phase in phases}
        known = {phase: [value for value in values if not math.isnan(value)] for phase, values in seconds.items()}
        stacks.append({phase: fmean(values) if values else 0.0 for phase, values in known.items()})
        sums = [sum(of_run) for of_run in zip(*seconds.values(), strict=True)]
        points = spread_out(place, sums, width=0.12)
        ax.plot(sums, points, "o", color="black", markersize=3, alpha=0.7, label="run")
        rows += [[label, f"{phase}, s", value] for phase, values in seconds.items() for value in values]
    draw_stacks(ax, stacks, _LOOKS)
    label_rows(ax, list(runs))
    return rows


def plot_hybrid(thesis: ThesisRuns) -> Plot | None:
    """Draw figure 3.3: accuracy over epochs, and times, of the hybrid against 1 GPU; None without both."""
    runs = {name: thesis.timed[name] for name in HYBRIDS}
    if not all(runs.values()):
        return None
    rows: Data = []
    figure = Figure(figsize=(8.0, 3.6))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for number, (name, of_name) in enumerate(runs.items()):
        for run in of_name:
            rows += _draw_curve(left, thesis, run, HYBRIDS[name], number, markevery=10, **STYLES[name])
    rows += _draw_phases(right, {HYBRIDS[name]: of_name for name, of_name in runs.items()}, ("training", "validation"))
    _published(right, [printed(name, "training_seconds") for name in runs], range(len(runs)))
    right.set_xlabel("seconds of 100 epochs, test excluded")
    legend_below(figure, ncols=6)
    return _plot("3.3-hybrid", figure, f"2 GPUs and the CPU against 1 GPU (figure 3.3), {_counted(runs)} each", rows)


def plot_studies(thesis: ThesisRuns) -> list[Plot]:
    """Draw figures 3.5 and 3.6: accuracy over epochs and total times by batch, one for each resolution."""
    plots = []
    highest = max((run.training_seconds for run in thesis.named(r"size.+").values()), default=math.nan)
    for size, number in {"295x222": "3.5", "148x112": "3.6"}.items():
        runs = sorted(thesis.named(rf"size{size}-batch\d+").values(), key=lambda run: run.global_batch)
        if runs:
            plots.append(_plot_study(thesis, number, size, runs, highest=highest))
    return plots


def _plot_study(thesis: ThesisRuns, number: str, size: str, runs: Sequence[RunRow], *, highest: float) -> Plot:
    rows: Data = []
    figure = Figure(figsize=(8.0, 3.8))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for place, run in enumerate(runs):
        label, batch, seconds = f"batch {run.global_batch}", run.global_batch, run.training_seconds
        rows += _draw_curve(left, thesis, run, label, place, linewidth=1.1, markevery=(place * 2, 12), **_style(place))
        rows.append([label, "training + validation, s", seconds])
        right.plot(batch, seconds, linestyle="", markersize=6, **_style(place))
        _annotate(right, f"{seconds:,.0f}", (batch, seconds), offset=(0, 9 + 10 * (place % 2)), ha="center")
    batches = [run.global_batch for run in runs]
    _published(right, batches, [printed(run.name, "training_seconds") for run in runs], **_RING)
    right.set_xlabel("batch, images")
    right.set_xticks(batches)
    right.set_ylabel("training + validation, s")
    right.set_ylim(0, 1.12 * highest)  # of both resolutions, so that they can be compared
    right.margins(x=0.12)
    legend_below(figure)
    title = f"Accuracy and time by batch, {size} pixels (figure {number}), n = 1 each"
    return _plot(f"{number}-{size}", figure, title, rows)


def _annotate(ax: Axes, text: str, point: tuple[float, float], *, offset: tuple[float, float], **look: Any) -> None:
    """Write a text next to a point; the offset is in points."""
    ax.annotate(text, point, xytext=offset, textcoords="offset points", fontsize=8, **look)


def plot_shares(thesis: ThesisRuns) -> Plot | None:
    """Draw figure 3.7: times by the share of validation samples; None without runs."""
    runs = {f"{share} %": run for share, run in thesis.shares().items()}
    if not runs:
        return None
    rows: Data = []
    figure = Figure(figsize=(8.0, 3.4))
    left, right = figure.subplots(1, 2)
    for number, phase in enumerate(("training", "validation")):
        seconds = [getattr(run, f"{phase}_seconds") / run.trained_epochs for run in runs.values()]
        left.plot(range(len(runs)), seconds, linestyle=_DASHES[number], label=phase, **_style(number))
        for place, value in enumerate(seconds):
            _annotate(left, f"{value:.2f}", (place, value), offset=(8, (-12, 3)[number]))
        rows += [[share, f"{phase} an epoch, s", value] for share, value in zip(runs, seconds, strict=True)]
    totals = {f"148x112,\n{share}": run for share, run in runs.items()}
    of_text = [printed(run.name, "total_seconds") for run in runs.values()]
    if larger := thesis.single.get("size295x222-batch128"):
        totals = {"295x222,\n10 %": larger, **totals}
        of_text = [printed(larger.name, "training_seconds"), *of_text]
    for place, (label, run) in enumerate(totals.items()):
        right.plot(place, run.total_seconds, "o", color="black", markersize=5)
        _annotate(right, f"{run.total_seconds:,.0f}", (place, run.total_seconds), offset=(9, -3))
        rows.append([label.replace("\n", " "), "total, s", run.total_seconds])
    _published(right, range(len(totals)), of_text, **_RING | {"zorder": 5})
    left.set_xticks(range(len(runs)), list(runs))
    right.set_xticks(range(len(totals)), list(totals))
    for ax, label in ((left, "seconds an epoch"), (right, "training + validation, s")):
        ax.set_ylabel(label)
        ax.set_ylim(bottom=0)
        ax.margins(x=0.3)
    left.set_xlabel("share of validation samples, 148x112 pixels")
    right.set_xlabel("resolution and share of validation samples")
    legend_below(figure)
    title = "Times by the share of validation samples, batch 128 (figure 3.7), n = 1 each"
    return _plot("3.7-validation", figure, title, rows)


def plot_times(thesis: ThesisRuns) -> Plot | None:
    """Draw figure 4.3: times by phase, stacked; the much slower CPU has its own axis."""
    runs = _timed(thesis)
    if not runs:
        return None
    on_cpu, on_gpus = ([name for name in runs if (name == "cpu") is is_cpu] for is_cpu in (True, False))
    parts = [part for part in (on_cpu, on_gpus) if part]
    rows: Data = []
    figure = Figure(figsize=(8.0, 1.8 + 0.55 * len(runs)))
    panels = figure.subplots(len(parts), 1, height_ratios=[len(part) for part in parts], squeeze=False)[:, 0]
    for ax, part in zip(panels, parts, strict=True):
        rows += _draw_phases(ax, {ENVIRONMENTS[name]: runs[name] for name in part}, PHASES)
        for place, name in enumerate(part):
            seconds = [printed(name, f"{phase}_seconds") for phase in PHASES]
            ends = list(itertools.accumulate(value for value in seconds if value is not None))
            _published(ax, ends, [place + 0.36] * len(ends), markersize=4, label="published, end of phase")
    panels[-1].set_xlabel("seconds" + (" (the CPU has its own axis)" if len(parts) > 1 else ""))
    legend_below(figure, ncols=6)
    title = f"Time by phase, mean over runs, a point for each run's total (figure 4.3), {_counted(runs)}"
    return _plot("4.3-phases", figure, title, rows)


def plot_speedups(thesis: ThesisRuns) -> Plot | None:
    """Draw figure 4.4: the speedup of every run to the CPU and to 1 GPU; None without a reference."""
    references = {name: total for name in ("cpu", BASE) if (total := thesis.mean_total(name))}
    runs = _timed(thesis)
    if not references:
        return None
    rows: Data = []
    figure = Figure(figsize=(8.0, 1.7 + 0.45 * len(runs)))
    panels = figure.subplots(1, len(references), sharey=True, squeeze=False)[0]
    for ax, (reference, total) in zip(panels, references.items(), strict=True):
        values = {
            name: [total / run.total_seconds for run in of_name if run.total_seconds > 0]
            for name, of_name in runs.items()
        }
        means = {name: total / mean for name in runs if (mean := thesis.mean_total(name))}
        of_text = {name: (printed(name, "speedups") or {}).get(reference) for name in runs}
        _draw_runs(ax, values, means=means, of_text=of_text, form=".3f")
        ax.axvline(1.0, **IDEAL)
        ax.set_xlabel(f"speedup over {ENVIRONMENTS[reference]} = {total:,.2f} s / total time")
        if reference == "cpu":
            scale_axis(ax, [value for of_name in values.values() for value in of_name])
        else:
            ax.set_xlim(0, 2.3)
            ax.axvline(2.0, **IDEAL)
            ax.text(2.0, -0.75, "ideal of 2", ha="center", fontsize=7.5, color="#444444")
        rows += [[ENVIRONMENTS[name], ENVIRONMENTS[reference], value] for name in values for value in values[name]]
    legend_below(figure, _keys())
    title = f"Speedups (figure 4.4), {_counted(runs)}; all runs and the speedup of mean times"
    return _plot("4.4-speedups", figure, title, rows, ["of", "reference", "speedup"])


def _draw_runs(
    ax: Axes,
    values: Mapping[str, Sequence[float]],
    *,
    means: Mapping[str, float],
    of_text: Mapping[str, float | None],
    form: str,
) -> None:
    """Draw the value of each run, their mean and the published one, a row for each environment."""
    for place, (name, of_name) in enumerate(values.items()):
        if name not in means:
            continue
        points = spread_out(place, of_name, width=0.18)
        ax.plot(of_name, points, linestyle="", markersize=4.5, alpha=0.5, **STYLES[name])
        ax.plot([means[name]] * 2, [place - 0.3, place + 0.3], color="black", linewidth=1.6)
        _annotate(ax, format(means[name], form), (means[name], place - 0.3), offset=(0, 1), ha="center", va="bottom")
        _published(ax, [of_text.get(name)], [place + 0.3])
    label_rows(ax, [ENVIRONMENTS[name] for name in values], above=0.8, below=0.6)


def _keys() -> list[Line2D]:
    return [
        Line2D([], [], color="#777777", marker="o", linestyle="", label="run"),
        Line2D([], [], color="black", marker="|", markersize=12, markeredgewidth=1.6, linestyle="", label="mean"),
        Line2D([], [], **PUBLISHED),
    ]


def plot_curves(thesis: ThesisRuns) -> Plot | None:
    """Draw figure 4.5: validation accuracy over epochs, every run and their mean, a panel for each environment."""
    runs = _timed(thesis)
    if "cpu" in runs:
        runs["cpu"] = [*runs["cpu"], *thesis.timed["cpu2"]]
    if not runs:
        return None
    rows: Data = []
    figure = Figure(figsize=(8.0, 5.2))
    panels = figure.subplots(2, 3, sharex=True, sharey=True).ravel()
    together = panels[len(ENVIRONMENTS)]
    for number, (ax, (name, of_name)) in enumerate(zip(panels, runs.items(), strict=False)):
        shortest = min(len(_curve(thesis, run)) for run in of_name)
        curves = np.stack([_curve(thesis, run)[:shortest] for run in of_name])  # (runs, epochs)
        epochs = np.arange(1, shortest + 1)
        ax.plot(epochs, curves.T, color=STYLES[name]["color"], linewidth=0.6, alpha=0.5)
        ax.plot(epochs, curves.mean(axis=0), color="black", linewidth=1.4)
        ax.set_title(f"{ENVIRONMENTS[name]}, n = {len(of_name)}", fontsize=9)
        together.plot(epochs, curves.mean(axis=0), linestyle=_DASHES[number], linewidth=1.1, markersize=3.5,
                      markevery=(number * 3, 20), label=ENVIRONMENTS[name], **STYLES[name])  # fmt: skip
        rows += [
            [ENVIRONMENTS[name], run.name, epoch, value]
            for run, of_run in zip(of_name, curves.tolist(), strict=True)
            for epoch, value in enumerate(of_run, 1)
        ]
    for ax in panels[len(runs) : len(ENVIRONMENTS)]:
        ax.set_visible(False)
    together.set_title("means", fontsize=9)
    for ax in panels[3:]:
        ax.set_xlabel("epoch")
    for ax in panels[::3]:
        ax.set_ylabel("validation accuracy, %")
    panels[0].set_ylim(0, 100)
    legend_below(figure, ncols=5)
    title = "Accuracy over epochs (figure 4.5), every run, black: mean"
    return _plot("4.5-accuracy", figure, title, rows, ["of", "run", "epoch", "validation accuracy, %"])


def plot_accuracies(thesis: ThesisRuns) -> Plot | None:
    """Draw figure 4.6: test accuracy of every run with mean, minimum and maximum; None without runs."""
    values = {name: of_name for name in ENVIRONMENTS if (of_name := thesis.accuracies(name))}
    if not values:
        return None
    figure = Figure(figsize=(8.0, 1.7 + 0.45 * len(values)))
    ax = figure.subplots()
    for place, (name, of_name) in enumerate(values.items()):
        ax.plot([min(of_name), max(of_name)], [place] * 2, color=STYLES[name]["color"], linewidth=1.2)
        ends = [printed_percent(name, field) for field in ("accuracy_min", "accuracy_max")]
        _published(ax, ends, [place + 0.3] * 2, markersize=3.5)
    means = {name: fmean(of_name) for name, of_name in values.items()}
    _draw_runs(ax, values, means=means, of_text={name: printed_percent(name) for name in values}, form=".1f")
    ax.set_xlabel("test accuracy, %")
    legend_below(figure, _keys())
    title = f"Accuracy at the end (figure 4.6), {_counted(values)}; line: minimum to maximum"
    rows: Data = [[ENVIRONMENTS[name], value] for name, of_name in values.items() for value in of_name]
    return _plot("4.6-accuracy", figure, title, rows, ["of", "test accuracy, %"])


def plot_power(thesis: ThesisRuns, *, flags: list[str]) -> list[Plot]:
    """Draw figures 4.7 (left half) and 4.8: power over time, and two epochs of it, of the run with median energy.

    Args:
        thesis: the runs.
        flags: a line is added for every trace that cannot be read.
    """
    plots = []
    for name, number in (("gpu1", "4.7-left"), ("gpu1-wrapped", "4.8-left"), ("gpu2", "4.8-right")):
        runs = thesis.metered[name]
        found = median_trace(runs, flags=flags)
        if found is None:
            continue
        run, traces = found
        epochs = [
            curve(thesis.epochs, one, "training_seconds") + curve(thesis.epochs, one, "validation_seconds")
            for one in thesis.timed[name]
        ]
        place = number.replace("-", ", ")
        title = f"Power, {ENVIRONMENTS[name]} (figure {place}): {run.name}, the median by energy of {len(runs)}"
        # "Training" in these traces includes all epochs and the test.
        epochs_alone = [
            replace(trace, phases=["epochs" if phase == "training" else phase for phase in trace.phases])
            for trace in traces
        ]
        of_epoch = np.concatenate([np.empty(0), *epochs])
        plot = power_plot(f"thesis-{number}-power", title, epochs_alone, epoch_seconds=of_epoch)
        for ax in plot.figure.axes[1:]:
            for text in list(ax.texts):
                text.remove()  # the name of the only phase overlaps the title of the enlarged part
        plots.append(plot)
    return plots


def plot_energy(thesis: ThesisRuns) -> Plot | None:
    """Draw figure 4.12: energy by device and energy-delay product; None without metered runs on 1 GPU."""
    names = [name for name in ENVIRONMENTS if thesis.metered[name]]
    if BASE not in names:
        return None
    measured = {ENVIRONMENTS[name]: thesis.metered[name] for name in names}
    plot = energy_plot(measured, base=ENVIRONMENTS[BASE])
    energy, product = plot.figure.axes
    energy.set_xlabel("joules by device, a point for each run")
    product.set_xlabel(f"EDP / that of 1 GPU{' (logarithmic)' * (product.get_xscale() == 'log')}")
    product.margins(x=0.15)
    _published(product, [printed(name, "edp") for name in names], [place + 0.25 for place in range(len(names))])
    title = "Energy by device and energy-delay product (figure 4.12)"
    plot.figure.suptitle(f"{title}, {_counted(measured)} metered runs; diamonds: published", fontsize=10)
    return replace(plot, name="thesis-4.12-energy")
