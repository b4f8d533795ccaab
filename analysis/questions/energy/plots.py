"""Plots of energy: power over time with its phases and a part of it enlarged; energy by device, and EDP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import NDArray

from analysis.output.finding import Plot
from analysis.output.plots import (
    COLORS,
    IDEAL,
    MARKERS,
    draw_stacks,
    label_rows,
    legend_below,
    look_of_points,
    n_words,
    scale_axis,
)
from analysis.output.tables import Table
from analysis.runs.energy import counted_devices, energy_of, mean_of, values_of
from analysis.runs.table import RunRow
from common.measurement.energy import EnergyRecord
from common.measurement.power_trace import PowerTrace, full_name, kind_of

# Tints of phases, in order of appearance; validation differs from the training around it in grayscale, too.
PHASES = {
    "startup": "#ebe3d0",
    "idle_before": "#ffffff",
    "other": "#fafafa",
    "training": "#f3f3f3",
    "validation": "#d4d4d4",
    "epochs": "#f3f3f3",
    "test": "#dccde2",
    "idle_after": "#ffffff",
}
_OF_EPOCHS = ("training", "validation", "other")
MOST_SPANS = 12  # with more, the phases of epochs become one
MOST_POINTS = 1500  # of a line; with more, each point is the mean of several samples
ENLARGED_EPOCHS = 2
_MARKS = 14  # symbols on a line, to distinguish it from others in print


@dataclass(frozen=True)
class Span:
    """A phase from `start` to `end`, in seconds since the first sample."""

    phase: str
    start: float
    end: float


def spans_of(trace: PowerTrace) -> list[Span]:
    """Return the phases of a trace one after the other. A sample belongs to the time before it."""
    spans, start = [], 0.0
    for phase, samples in groupby(zip(trace.phases, trace.seconds.tolist(), strict=True), key=lambda sample: sample[0]):
        *_, (_, end) = samples
        if end > start:
            spans.append(Span(phase, start, end))
        start = end
    return spans


def _broad(spans: Sequence[Span]) -> list[Span]:
    """Return the spans, those of many epochs as one."""
    if len(spans) <= MOST_SPANS:
        return list(spans)
    broad = []
    for of_epochs, group in groupby(spans, key=lambda span: span.phase in _OF_EPOCHS):
        inside = list(group)
        broad += [Span("epochs", inside[0].start, inside[-1].end)] if of_epochs else inside
    return broad


def enlarged(spans: Sequence[Span], epoch_seconds: NDArray[np.float64]) -> tuple[float, float] | None:
    """Return from when to when about two epochs in the middle of a run lasted; None: it has too few to enlarge any.

    Args:
        spans: phases of the trace.
        epoch_seconds: (epochs,) float64, for traces that do not separate one epoch from the next.
    """
    epochs = [span.start for span in spans if span.phase == "training"]
    if len(epochs) > ENLARGED_EPOCHS:
        first = (len(epochs) - ENLARGED_EPOCHS) // 2
        length = epochs[first + 1] - epochs[first]
        return epochs[first] - 0.05 * length, epochs[first] + (ENLARGED_EPOCHS + 0.1) * length
    if len(epoch_seconds) <= ENLARGED_EPOCHS or not spans or not np.isfinite(epoch_seconds).all():
        return None
    length, middle = float(np.median(epoch_seconds)), (spans[0].start + spans[-1].end) / 2
    return (middle, middle + (ENLARGED_EPOCHS + 0.1) * length) if length > 0 else None


def power_plot(name: str, title: str, traces: Sequence[PowerTrace], *, epoch_seconds: NDArray[np.float64]) -> Plot:
    """Draw the power of every device over time, and two epochs enlarged.

    Args:
        name, title: of the plot.
        traces: of one run, one of each host.
        epoch_seconds: (epochs,) float64.
    """
    spans = spans_of(traces[0])
    window = enlarged(spans, epoch_seconds)
    lines = {
        full_name(device, trace, traces): (trace.seconds, series.watts)
        for trace in traces
        for device, series in trace.series.items()
    }
    rows: list[list[str | float]] = []
    figure = Figure(figsize=(8.0, 5.6 if window else 3.6))
    whole, *rest = figure.subplots(2 if window else 1, 1, squeeze=False)[:, 0]
    _bands(whole, _broad(spans))
    for number, (device, (seconds, watts)) in enumerate(lines.items()):
        _line(whole, number, device, *_thinned(seconds, watts), rows=rows)
    whole.set_xlim(0, max(float(trace.seconds[-1]) for trace in traces) or 1)
    size = max((_samples_of_a_point(watts) for _, watts in lines.values()), default=1)
    if size > 1:
        whole.set_title(f"each point the mean of {size} samples", fontsize=9)
    for ax in rest:
        assert window is not None
        inside = [span for span in spans if span.end > window[0] and span.start < window[1]]
        _bands(ax, [Span(span.phase, max(span.start, window[0]), min(span.end, window[1])) for span in inside])
        for number, (device, (seconds, watts)) in enumerate(lines.items()):
            near = (seconds >= window[0]) & (seconds <= window[1])
            _line(ax, number, device, seconds[near], watts[near], rows=rows)
        ax.set_xlim(*window)
        ax.set_title(f"enlarged: about {ENLARGED_EPOCHS} epochs, between the lines above, every sample", fontsize=9)
        for edge in window:
            whole.axvline(edge, color="black", linewidth=0.8)
    for ax in (whole, *rest):
        ax.set_ylabel("watts")
        ax.set_ylim(0, 1.12 * ax.get_ylim()[1])  # room for the names of phases
    (rest or [whole])[-1].set_xlabel("seconds since the first sample")
    figure.suptitle(title, fontsize=10)
    legend_below(figure, _handles(whole, spans), ncols=6)
    # A sample of the enlarged part may be in the whole, too.
    data = Table(title, ["device", "seconds", "watts"], rows, {"seconds": ".6g", "watts": ".5g"})
    return Plot(name, figure, data)


def _thinned(seconds: NDArray[np.float64], watts: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Return at most MOST_POINTS points: means of so many samples each that are enough; (points,) float64 both."""
    known = ~np.isnan(watts)
    seconds, watts = seconds[known], watts[known]
    size = _samples_of_a_point(watts)
    if size <= 1:
        return seconds, watts
    starts = np.arange(0, len(watts), size)
    counts = np.diff(np.append(starts, len(watts)))
    return np.add.reduceat(seconds, starts) / counts, np.add.reduceat(watts, starts) / counts


def _samples_of_a_point(watts: NDArray[np.float64]) -> int:
    return -(-int(np.count_nonzero(~np.isnan(watts))) // MOST_POINTS)


def _line(
    ax: Axes,
    number: int,
    device: str,
    seconds: NDArray[np.float64],
    watts: NDArray[np.float64],
    *,
    rows: list[list[str | float]],
) -> None:
    known = ~np.isnan(watts)
    seconds, watts = seconds[known], watts[known]
    # A sample is the power since the one before it.
    ax.plot(
        seconds, watts, drawstyle="steps-pre", color=COLORS[number % len(COLORS)], linewidth=0.9, label=device,
        marker=MARKERS[number % len(MARKERS)], markersize=4, markevery=max(1, len(watts) // _MARKS),
    )  # fmt: skip
    rows += [[device, *point] for point in zip(seconds.tolist(), watts.tolist(), strict=True)]


def _bands(ax: Axes, spans: Sequence[Span]) -> None:
    length = spans[-1].end - spans[0].start if spans else 0.0
    for span in spans:
        ax.axvspan(span.start, span.end, color=PHASES.get(span.phase, "#eeeeee"), linewidth=0, zorder=0)
        if span.end - span.start > 0.09 * length:
            ax.text(
                (span.start + span.end) / 2, 0.985, _words(span.phase), transform=ax.get_xaxis_transform(), ha="center",
                va="top", fontsize=7.5, color="#444444",
            )  # fmt: skip


def _words(phase: str) -> str:
    return phase.replace("idle_", "rest ").replace("_", " ").replace("startup", "start-up")


def _handles(ax: Axes, spans: Sequence[Span]) -> list[Artist]:
    phases = dict.fromkeys(span.phase for span in spans)
    patches = [
        Patch(facecolor=PHASES.get(phase, "#eeeeee"), edgecolor="#999999", linewidth=0.5, label=_words(phase))
        for phase in phases
    ]
    return [*ax.get_legend_handles_labels()[0], *patches]


def energy_plot(measured: Mapping[str, list[RunRow]], *, base: str) -> Plot:
    """Draw the mean energy of each cell by device, the sums of all runs as points, and every run's EDP.

    Args:
        measured: name of a cell -> its metered runs.
        base: the cell by whose mean EDP all are divided; if that is 0, EDP is not drawn.
    """
    parts = {name: _parts([energy_of(run) for run in runs]) for name, runs in measured.items()}
    if len({part for of_cell in parts.values() for part in of_cell}) > len(COLORS):
        parts = {name: _by_kind(of_cell) for name, of_cell in parts.items()}
    unit = mean_of(measured[base], "edp_joule_seconds")
    products = {
        name: [value / unit for value in values_of(runs, "edp_joule_seconds")] if unit else []
        for name, runs in measured.items()
    }
    labels = [_wrapped(name) + ("\n(base)" if name == base else "") for name in parts]
    lines = max(label.count("\n") + 1 for label in labels)
    figure = Figure(figsize=(8.0, 1.9 + (0.2 + 0.15 * lines) * len(measured)))
    energy, product = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    published = {name: runs[0].origin == "published" for name, runs in measured.items()}
    sums = {name: values_of(runs, "joules", used=False) for name, runs in measured.items()}
    handles = _draw_parts(energy, parts, sums=sums, published=published)
    _draw_products(product, products, published=published)
    for ax in (energy, product):
        label_rows(ax, labels, above=0.6, below=0.6)
    legend_below(figure, handles, ncols=6)
    n = n_words(len(runs) for runs in measured.values())
    figure.suptitle(f"Energy by device and energy-delay product (EDP), {n} metered runs each")
    rows: list[list[str | float | None]] = [
        [name, part, "J", joules] for name, of_cell in parts.items() for part, joules in of_cell.items()
    ]
    rows += [[name, "EDP of a run", "times the base", value] for name, values in products.items() for value in values]
    data = Table("Energy by device and EDP", ["cell", "what", "unit", "value"], rows, {"value": ".6g"})
    return Plot("energy-devices", figure, data)


_IDLE = ", idle"
_RUNS = {"color": "black", "marker": MARKERS[0]}
_HATCHES = ("", "//", "..", "xx", "\\\\", "oo", "--")


def _draw_parts(
    ax: Axes,
    parts: Mapping[str, Mapping[str, float]],
    *,
    sums: Mapping[str, Sequence[float]],
    published: Mapping[str, bool],
) -> list[Patch]:
    """Draw a bar of its devices for each cell, and its runs' sums; return what explains the devices."""
    names = list(dict.fromkeys(part for of_cell in parts.values() for part in of_cell))
    devices = list(dict.fromkeys(name.removesuffix(_IDLE) for name in names))
    looks: dict[str, dict[str, Any]] = {}
    for name in sorted(names, key=lambda name: (name.endswith(_IDLE), devices.index(name.removesuffix(_IDLE)))):
        number = devices.index(name.removesuffix(_IDLE))
        color, hatch = COLORS[number % len(COLORS)], _HATCHES[number % len(_HATCHES)]
        # The same device has the same color; where it was idle it is hollow.
        sides = ("white", color) if name.endswith(_IDLE) else (color, "white")
        looks[name] = {"facecolor": sides[0], "edgecolor": sides[1], "hatch": hatch}
    draw_stacks(ax, list(parts.values()), looks)
    for place, name in enumerate(parts):
        # An edge in white shows them on bars of every color.
        edge = {} if published[name] else {"markeredgecolor": "white", "markeredgewidth": 0.6}
        look = look_of_points(_RUNS, published=published[name]) | edge
        ax.plot(sums[name], [place] * len(sums[name]), linestyle="", markersize=4.5, **look)
    ax.set_xlim(left=0)
    hollow = ", hollow: published" if any(published.values()) else ""
    ax.set_xlabel(f"energy (bars: means; points: runs{hollow})")
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.xaxis.set_major_formatter(EngFormatter(unit="J"))
    return [Patch(label=part, linewidth=0.5, **look) for part, look in looks.items()]


def _draw_products(ax: Axes, products: Mapping[str, Sequence[float]], *, published: Mapping[str, bool]) -> None:
    """Draw every run's EDP, and the mean as a number above."""
    for place, (name, values) in enumerate(products.items()):
        look = look_of_points(_RUNS, published=published[name])
        ax.plot(values, [place] * len(values), linestyle="", markersize=4.5, **look)
        if values:
            mean = float(np.mean(values))
            ax.annotate(
                f"{mean:.4g}", (mean, place), xytext=(0, 7), textcoords="offset points", ha="center", fontsize=8
            )
    ax.axvline(1.0, **IDEAL)
    ax.margins(x=0.2)  # room for the numbers
    ax.set_xlabel("EDP / mean of the base")
    scale_axis(ax, [value for values in products.values() for value in values])


def _wrapped(name: str) -> str:
    """Return a name in lines of a few parts."""
    parts = name.split(", ")
    return "\n".join(", ".join(parts[place : place + 3]) for place in range(0, len(parts), 3))


def _parts(records: Sequence[EnergyRecord]) -> dict[str, float]:
    """Return device, idle ones marked and last -> mean joules of the counted phases."""
    devices = [device for record in records for device in counted_devices(record)]
    devices.sort(key=lambda device: not device.used)
    names = [device.name if device.used else device.name + _IDLE for device in devices]
    joules = pd.Series([device.joules or 0.0 for device in devices], index=names, dtype=float)
    return _sums(joules / len(records))


def _by_kind(parts: dict[str, float]) -> dict[str, float]:
    """Return the sums of all devices of a kind, idle ones apart."""
    devices = {name: name.removesuffix(_IDLE) for name in parts}
    return _sums(pd.Series(parts).rename(lambda name: kind_of(devices[name]) + name.removeprefix(devices[name])))


def _sums(values: pd.Series) -> dict[str, float]:
    """Return label -> the sum of its values, in the order in which labels come."""
    return {str(label): float(total) for label, total in values.groupby(level=0, sort=False).sum().items()}
