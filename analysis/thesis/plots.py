"""The thesis's figures from its run folders in this project's style: runs are points, published values are hollow."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from analysis.output.finding import Plot
from analysis.output.plots import COLORS, IDEAL, MARKERS, SETTINGS, n_words, scale_axis
from analysis.output.tables import Table
from analysis.questions.energy.plots import energy_plot, power_plot
from analysis.runs.energy import median_trace
from analysis.runs.table import RunRow, curve
from analysis.thesis.comparison import BASE, ENVIRONMENTS, HYBRIDS, ThesisRuns, mean_total, published, share

PUBLISHED: dict[str, Any] = {
    "color": "black", "marker": "D", "linestyle": "", "markerfacecolor": "white", "markersize": 5.5, "zorder": 5,
}  # fmt: skip
_HATCHES = {"training": "", "validation": "//", "test": "xx"}
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))
Data = list[list[str | float]]


def _style(number: int) -> dict[str, Any]:
    return {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)]}


STYLES = {name: _style(number) for number, name in enumerate([*ENVIRONMENTS, "hybrid"])}
STYLES["hybrid-gpu1"] = STYLES[BASE]


def _curve(thesis: ThesisRuns, run: RunRow) -> NDArray[np.float64]:
    """Return the validation accuracy of each epoch in percent: (epochs,) float64."""
    return 100 * curve(thesis.epochs, run, "validation_accuracy")


def _plot(name: str, figure: Figure, title: str, headings: Sequence[str], rows: Data) -> Plot:
    figure.suptitle(title, fontsize=10)
    return Plot(f"thesis-{name}", figure, Table(title, headings, rows, {headings[-1]: ".6g"}))


def _counted(runs: Mapping[str, Sequence[Any]]) -> str:
    return n_words(len(values) for values in runs.values())


def plot_hybrid(thesis: ThesisRuns) -> Plot | None:
    """Draw figure 3.3: accuracy over epochs, and times, of the hybrid against 1 GPU; None without both."""
    runs = {name: thesis.timed[name] for name in HYBRIDS if thesis.timed.get(name)}
    if len(runs) < len(HYBRIDS):
        return None
    rows: Data = []
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(8.0, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        for number, (name, of_name) in enumerate(runs.items()):
            for run in of_name:
                accuracies = _curve(thesis, run)
                left.plot(np.arange(1, len(accuracies) + 1), accuracies, linestyle=_DASHES[number], markevery=10,
                          markersize=4, label=HYBRIDS[name], **STYLES[name])  # fmt: skip
                rows += [
                    [HYBRIDS[name], f"epoch {epoch}, %", value] for epoch, value in enumerate(accuracies.tolist(), 1)
                ]
        _accuracy_axes(left)
        labelled = {HYBRIDS[name]: of_name for name, of_name in runs.items()}
        rows += _draw_phases(right, labelled, ("training", "validation"))
        result = {name: published(name) for name in runs}
        printed = [(place, one.training_seconds) for place, one in enumerate(result.values()) if one]
        right.plot([seconds for _, seconds in printed], [place for place, _ in printed], label="published", **PUBLISHED)
        right.set_xlabel("seconds of 100 epochs, test excluded")
        figure.legend(loc="outside lower center", ncols=6)
        title = f"2 GPUs and the CPU against 1 GPU (figure 3.3), {_counted(runs)} each"
        return _plot("3.3-hybrid", figure, title, ["of", "what", "value"], rows)


def _accuracy_axes(ax: Axes) -> None:
    ax.set_xlabel("epoch")
    ax.set_ylabel("validation accuracy, %")
    ax.set_ylim(0, 100)
    ax.set_xlim(left=0)


def _draw_phases(ax: Axes, runs: Mapping[str, Sequence[RunRow]], phases: Sequence[str]) -> Data:
    """Draw mean times of phases, stacked, a row for each label, and the sum of each run as a point."""
    rows: Data = []
    for place, (label, of_label) in enumerate(runs.items()):
        left = 0.0
        for number, phase in enumerate(phases):
            values = [getattr(run, f"{phase}_seconds") for run in of_label]
            known = [value for value in values if not math.isnan(value)]
            mean = fmean(known) if known else 0.0
            ax.barh(place, mean, left=left, height=0.5, color=COLORS[(0, 4, 1)[number]], hatch=_HATCHES[phase],
                    edgecolor="white", linewidth=0.5, label=phase if place == 0 else None)  # fmt: skip
            left += mean
            rows += [[label, f"{phase}, s", value] for value in values]
        sums = [sum(getattr(run, f"{phase}_seconds") for phase in phases) for run in of_label]
        offsets = 0.12 * np.sin(np.arange(len(sums)) * 2.4) if len(sums) > 1 else np.zeros(1)
        ax.plot(sums, place + offsets, "o", color="black", markersize=3, alpha=0.7, label="run" if place == 0 else None)
    ax.set_yticks(range(len(runs)), list(runs))
    ax.set_ylim(len(runs) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    return rows


def plot_studies(thesis: ThesisRuns) -> list[Plot]:
    """Draw figures 3.5 and 3.6: accuracy over epochs and total times by batch, one for each resolution."""
    plots = []
    sizes = {"295x222": "3.5", "148x112": "3.6"}
    highest = max((run.training_seconds for run in thesis.named(r"size.+").values()), default=math.nan)
    for size, number in sizes.items():
        runs = sorted(thesis.named(rf"size{size}-batch\d+").values(), key=lambda run: run.global_batch)
        if runs:
            plots.append(_plot_study(thesis, number, size, runs, highest=highest))
    return plots


def _plot_study(thesis: ThesisRuns, number: str, size: str, runs: Sequence[RunRow], *, highest: float) -> Plot:
    rows: Data = []
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(8.0, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        for place, run in enumerate(runs):
            accuracies, label = _curve(thesis, run), f"batch {run.global_batch}"
            left.plot(np.arange(1, len(accuracies) + 1), accuracies, linestyle=_DASHES[place], linewidth=1.1,
                      markersize=4, markevery=(place * 2, 12), label=label, **_style(place))  # fmt: skip
            right.plot(run.global_batch, run.training_seconds, linestyle="", markersize=6, **_style(place))
            right.annotate(
                f"{run.training_seconds:,.0f}", (run.global_batch, run.training_seconds),
                xytext=(0, 9 + 10 * (place % 2)), textcoords="offset points", ha="center", fontsize=8,
            )  # fmt: skip
            rows += [[label, f"epoch {epoch}, %", value] for epoch, value in enumerate(accuracies.tolist(), 1)]
            rows.append([label, "training + validation, s", run.training_seconds])
        results = [(run.global_batch, result.training_seconds) for run in runs if (result := published(run.name))]
        right.plot([batch for batch, _ in results], [seconds for _, seconds in results], label="published",
                   **PUBLISHED | {"markersize": 10, "markerfacecolor": "none", "zorder": 1})  # fmt: skip
        _accuracy_axes(left)
        right.set_xlabel("batch, images")
        right.set_xticks([run.global_batch for run in runs])
        right.set_ylabel("training + validation, s")
        right.set_ylim(0, 1.12 * highest)  # of both resolutions, so that they can be compared
        right.margins(x=0.12)
        figure.legend(loc="outside lower center", ncols=4)
        title = f"Accuracy and time by batch, {size} pixels (figure {number}), n = 1 each"
        return _plot(f"{number}-{size}", figure, title, ["of", "what", "value"], rows)


def plot_shares(thesis: ThesisRuns) -> Plot | None:
    """Draw figure 3.7: times by the share of validation samples; None without runs."""
    runs = sorted(thesis.named(r"validation\d+percent").items(), key=lambda item: -share(item[0]))
    if not runs:
        return None
    rows: Data = []
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(8.0, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        ticks = [f"{share(name)} %" for name, _ in runs]
        for number, phase in enumerate(("training", "validation")):
            seconds = [getattr(run, f"{phase}_seconds") / run.trained_epochs for _, run in runs]
            left.plot(range(len(runs)), seconds, linestyle=_DASHES[number], label=phase, **_style(number))
            for place, value in enumerate(seconds):
                offset = (8, (-12, 3)[number])
                left.annotate(f"{value:.2f}", (place, value), xytext=offset, textcoords="offset points", fontsize=8)
                rows.append([ticks[place], f"{phase} an epoch, s", value])
        totals = {f"148x112,\n{tick}": run.total_seconds for tick, (_, run) in zip(ticks, runs, strict=True)}
        printed = [result.total_seconds if (result := published(name)) else None for name, _ in runs]
        if larger := thesis.single.get("size295x222-batch128"):
            result = published("size295x222-batch128")
            totals = {"295x222,\n10 %": larger.total_seconds, **totals}
            printed = [result.training_seconds if result else None, *printed]
        for place, (label, total) in enumerate(totals.items()):
            right.plot(place, total, "o", color="black", markersize=5)
            right.annotate(f"{total:,.0f}", (place, total), xytext=(9, -3), textcoords="offset points", fontsize=8)
            rows.append([label.replace("\n", " "), "in all, s", total])
        stated = [(place, value) for place, value in enumerate(printed) if value is not None]
        right.plot([place for place, _ in stated], [value for _, value in stated], label="published",
                   **PUBLISHED | {"markersize": 10, "markerfacecolor": "none"})  # fmt: skip
        left.set_xticks(range(len(runs)), ticks)
        right.set_xticks(range(len(totals)), list(totals))
        for ax, label in ((left, "seconds an epoch"), (right, "training + validation, s")):
            ax.set_ylabel(label)
            ax.set_ylim(bottom=0)
            ax.margins(x=0.3)
        left.set_xlabel("share of validation samples, 148x112 pixels")
        right.set_xlabel("resolution and share of validation samples")
        figure.legend(loc="outside lower center", ncols=4)
        title = "Times by the share of validation samples, batch 128 (figure 3.7), n = 1 each"
        return _plot("3.7-validation", figure, title, ["of", "what", "value"], rows)


def plot_times(thesis: ThesisRuns) -> Plot | None:
    """Draw figure 4.3: times by phase, stacked; the much slower CPU has its own axis."""
    runs = {name: thesis.timed[name] for name in ENVIRONMENTS if thesis.timed.get(name)}
    if not runs:
        return None
    parts = [part for part in (["cpu"] if "cpu" in runs else [], [name for name in runs if name != "cpu"]) if part]
    phases, rows = ("training", "validation", "test"), []
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(8.0, 1.8 + 0.55 * len(runs)), layout="constrained")
        panels = figure.subplots(len(parts), 1, height_ratios=[len(part) for part in parts], squeeze=False)[:, 0]
        for ax, part in zip(panels, parts, strict=True):
            rows += _draw_phases(ax, {ENVIRONMENTS[name]: runs[name] for name in part}, phases)
            for place, name in enumerate(part):
                result, left = published(name), 0.0
                for phase in phases:
                    seconds = getattr(result, f"{phase}_seconds", None)
                    if seconds is not None:
                        left += seconds
                        ax.plot(left, place + 0.36, label="published, end of phase" if left == seconds else None,
                                **PUBLISHED | {"markersize": 4})  # fmt: skip
        panels[-1].set_xlabel("seconds" + (" (the CPU has its own axis)" if len(parts) > 1 else ""))
        handles: dict[str, Any] = {}
        for ax in panels:
            handles |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6)
        title = f"Time by phase, mean over runs, a point for each run's total (figure 4.3), {_counted(runs)}"
        return _plot("4.3-phases", figure, title, ["of", "what", "value"], rows)


def plot_speedups(thesis: ThesisRuns) -> Plot | None:
    """Draw figure 4.4: the speedup of every run to the CPU and to 1 GPU; None without a reference."""
    references = {name: total for name in ("cpu", BASE) if (total := mean_total(thesis, name))}
    runs = {name: thesis.timed[name] for name in ENVIRONMENTS if thesis.timed.get(name)}
    if not references:
        return None
    rows: Data = []
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(8.0, 1.7 + 0.45 * len(runs)), layout="constrained")
        panels = figure.subplots(1, len(references), sharey=True, squeeze=False)[0]
        for ax, (reference, total) in zip(panels, references.items(), strict=True):
            values = {
                name: [total / run.total_seconds for run in of_name if run.total_seconds > 0]
                for name, of_name in runs.items()
            }
            means = {name: total / mean for name in runs if (mean := mean_total(thesis, name))}
            printed = {name: (result.speedups if (result := published(name)) else {}).get(reference) for name in runs}
            _draw_runs(ax, values, means=means, printed=printed, form=".3f")
            ax.axvline(1.0, **IDEAL)
            ax.set_xlabel(f"speedup to {ENVIRONMENTS[reference]} = {total:,.2f} s / total time")
            if reference == "cpu":
                scale_axis(ax, [value for of_name in values.values() for value in of_name])
            else:
                ax.set_xlim(0, 2.3)
                ax.axvline(2.0, **IDEAL)
                ax.text(2.0, -0.75, "ideal of 2", ha="center", fontsize=7.5, color="#444444")
            rows += [[ENVIRONMENTS[name], ENVIRONMENTS[reference], value] for name in values for value in values[name]]
        _names(panels[0], runs)
        figure.legend(handles=_keys(), loc="outside lower center", ncols=4)
        title = f"Speedups (figure 4.4), {_counted(runs)}; all runs and the speedup of mean times"
        return _plot("4.4-speedups", figure, title, ["of", "reference", "speedup"], rows)


def _draw_runs(
    ax: Axes,
    values: Mapping[str, Sequence[float]],
    *,
    means: Mapping[str, float],
    printed: Mapping[str, float | None],
    form: str,
) -> None:
    for place, (name, of_name) in enumerate(values.items()):
        if name not in means:
            continue
        offsets = 0.18 * np.sin(np.arange(len(of_name)) * 2.4) if len(of_name) > 1 else np.zeros(1)
        ax.plot(of_name, place + offsets, linestyle="", markersize=4.5, alpha=0.5, **STYLES[name])
        ax.plot([means[name]] * 2, [place - 0.3, place + 0.3], color="black", linewidth=1.6)
        ax.annotate(format(means[name], form), (means[name], place - 0.3), xytext=(0, 1), textcoords="offset points",
                    ha="center", va="bottom", fontsize=8)  # fmt: skip
        if (value := printed.get(name)) is not None:
            ax.plot(value, place + 0.3, **PUBLISHED)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)


def _names(ax: Axes, names: Mapping[str, Any]) -> None:
    ax.set_yticks(range(len(names)), [ENVIRONMENTS[name] for name in names])
    ax.set_ylim(len(names) - 0.4, -0.8)


def _keys() -> list[Line2D]:
    return [
        Line2D([], [], color="#777777", marker="o", linestyle="", label="run"),
        Line2D([], [], color="black", marker="|", markersize=12, markeredgewidth=1.6, linestyle="", label="mean"),
        Line2D([], [], label="published", **PUBLISHED),
    ]


def plot_curves(thesis: ThesisRuns) -> Plot | None:
    """Draw figure 4.5: validation accuracy over epochs, every run and their mean, a panel for each environment."""
    runs = {name: thesis.timed[name] for name in ENVIRONMENTS if thesis.timed.get(name)}
    if "cpu" in runs:
        runs["cpu"] = [*runs["cpu"], *thesis.timed.get("cpu2", [])]
    if not runs:
        return None
    rows: Data = []
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(8.0, 5.2), layout="constrained")
        panels = figure.subplots(2, 3, sharex=True, sharey=True).ravel()
        together = panels[len(ENVIRONMENTS)]
        for number, (ax, (name, of_name)) in enumerate(zip(panels, runs.items(), strict=False)):
            shortest = min(len(_curve(thesis, run)) for run in of_name)
            curves = np.stack([_curve(thesis, run)[:shortest] for run in of_name])  # (runs, epochs)
            epochs = np.arange(1, curves.shape[1] + 1)
            ax.plot(epochs, curves.T, color=STYLES[name]["color"], linewidth=0.6, alpha=0.5)
            ax.plot(epochs, curves.mean(axis=0), color="black", linewidth=1.4)
            ax.set_title(f"{ENVIRONMENTS[name]}, n = {len(of_name)}", fontsize=9)
            together.plot(epochs, curves.mean(axis=0), linestyle=_DASHES[number], linewidth=1.1, markersize=3.5,
                          markevery=(number * 3, 20), label=ENVIRONMENTS[name], **STYLES[name])  # fmt: skip
            rows += [
                [ENVIRONMENTS[name], run.name, epoch, value]
                for run, curve in zip(of_name, curves.tolist(), strict=True)
                for epoch, value in enumerate(curve, 1)
            ]
        for ax in panels[len(runs) : len(ENVIRONMENTS)]:
            ax.set_visible(False)
        together.set_title("means", fontsize=9)
        for ax in panels[3:]:
            ax.set_xlabel("epoch")
        for ax in panels[::3]:
            ax.set_ylabel("validation accuracy, %")
        panels[0].set_ylim(0, 100)
        figure.legend(loc="outside lower center", ncols=5)
        title = "Accuracy over epochs (figure 4.5), every run, black: mean"
        return _plot("4.5-accuracy", figure, title, ["of", "run", "epoch", "validation accuracy, %"], rows)


def plot_accuracies(thesis: ThesisRuns) -> Plot | None:
    """Draw figure 4.6: test accuracy of every run with mean, minimum and maximum; None without runs."""
    values = {name: [100 * value for value in thesis.accuracies(name)] for name in ENVIRONMENTS}
    values = {name: of_name for name, of_name in values.items() if of_name}
    if not values:
        return None
    printed: dict[str, float | None] = {}
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(8.0, 1.7 + 0.45 * len(values)), layout="constrained")
        ax = figure.subplots()
        for place, (name, of_name) in enumerate(values.items()):
            ax.plot([min(of_name), max(of_name)], [place] * 2, color=STYLES[name]["color"], linewidth=1.2)
            if (result := published(name)) and result.accuracy is not None:
                printed[name] = 100 * result.accuracy
                ends = [100 * end for end in (result.accuracy_min, result.accuracy_max) if end is not None]
                ax.plot(ends, [place + 0.3] * len(ends), **PUBLISHED | {"markersize": 3.5})
        means = {name: fmean(of_name) for name, of_name in values.items()}
        _draw_runs(ax, values, means=means, printed=printed, form=".1f")
        _names(ax, values)
        ax.set_xlabel("test accuracy, %")
        figure.legend(handles=_keys(), loc="outside lower center", ncols=4)
        title = f"Accuracy at the end (figure 4.6), {_counted(values)}; line: minimum to maximum"
        rows: Data = [[ENVIRONMENTS[name], value] for name, of_name in values.items() for value in of_name]
        return _plot("4.6-accuracy", figure, title, ["of", "test accuracy, %"], rows)


def plot_power(thesis: ThesisRuns, *, flags: list[str]) -> list[Plot]:
    """Draw figures 4.7 (left half) and 4.8: power over time, and two epochs of it, of the run with median energy.

    Args:
        thesis: the runs.
        flags: a line is added for every trace that cannot be read.
    """
    plots = []
    for name, number in (("gpu1", "4.7-left"), ("gpu1-wrapped", "4.8-left"), ("gpu2", "4.8-right")):
        runs = thesis.metered.get(name, [])
        found = median_trace(runs, flags=flags)
        if found is None:
            continue
        run, traces = found
        epochs = [
            curve(thesis.epochs, one, "training_seconds") + curve(thesis.epochs, one, "validation_seconds")
            for one in thesis.timed.get(name, [])
        ]
        place = number.replace("-", ", ")
        title = f"Power, {ENVIRONMENTS[name]} (figure {place}): {run.name}, the median by energy of {len(runs)}"
        # "Training" in these traces includes all epochs and the test.
        epochs_alone = [
            replace(trace, phases=["epochs" if phase == "training" else phase for phase in trace.phases])
            for trace in traces
        ]
        of_epoch = np.concatenate(epochs) if epochs else np.empty(0)
        plot = power_plot(f"thesis-{number}-power", title, epochs_alone, epoch_seconds=of_epoch)
        for ax in plot.figure.axes[1:]:
            for text in list(ax.texts):
                text.remove()  # the name of the only phase overlaps the title of the enlarged part
        plots.append(plot)
    return plots


def plot_energy(thesis: ThesisRuns) -> Plot | None:
    """Draw figure 4.12: energy by device and energy-delay product; None without metered runs on 1 GPU."""
    measured = {ENVIRONMENTS[name]: thesis.metered[name] for name in ENVIRONMENTS if thesis.metered.get(name)}
    if ENVIRONMENTS[BASE] not in measured:
        return None
    plot = energy_plot(measured, base=ENVIRONMENTS[BASE])
    names = [name for name in ENVIRONMENTS if thesis.metered.get(name)]
    printed = [(result.edp, place) for place, name in enumerate(names) if (result := published(name)) and result.edp]
    with matplotlib.rc_context(SETTINGS):
        energy, product = plot.figure.axes
        energy.set_xlabel("joules by device, a point for each run")
        product.set_xlabel(f"EDP / that of 1 GPU{' (logarithmic)' * (product.get_xscale() == 'log')}")
        product.margins(x=0.15)
        product.plot([edp for edp, _ in printed], [place + 0.25 for _, place in printed], **PUBLISHED)
        title = "Energy by device and energy-delay product (figure 4.12)"
        plot.figure.suptitle(f"{title}, {_counted(measured)} metered runs; diamonds: published", fontsize=10)
    return replace(plot, name="thesis-4.12-energy")
