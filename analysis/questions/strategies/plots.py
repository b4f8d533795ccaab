"""The plots of `python -m analysis strategies`; what the runs lack leaves out its plot, with a note."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.output.finding import Plot
from analysis.output.plots import (
    COLORS,
    MARKERS,
    MOST_DRAWN,
    ROW_INCHES,
    draw_stacks,
    first_of_words,
    label_rows,
    legend_below,
    n_words,
    wrapped,
)
from analysis.output.tables import Table
from analysis.questions.strategies.curves import AllProgress, Progress
from analysis.questions.strategies.parts_plots import plot_bubbles, plot_memory, plot_schedules
from analysis.questions.strategies.ways import (
    PLAIN,
    Alone,
    Place,
    Way,
    exchange_shares,
    main_places,
    staleness_of,
    work_of,
    workers_of,
)
from analysis.runs.labels import framework_label
from analysis.stats.inference import median_of
from common.measurement.step_profile import StepProfile

MOST_PANELS = 8  # of staleness
_PANEL_WIDTH, _PANEL_HEIGHT = 4.6, 3.4
Found = tuple[Plot | None, str]  # a plot, and what is missing without it


def plots_of(places: Sequence[Place], progress: AllProgress, alone: Alone) -> tuple[list[Plot], list[str]]:
    """Return the plots that the runs allow, and a note about each of the others.

    Args:
        places: work done in several ways.
        progress: of their runs.
        alone: of all cells.
    """
    found: list[Found] = [
        (_plot_progress(places, progress, by="seconds"), "accuracy against time: no runs with two validations"),
        (_plot_progress(places, progress, by="images"), "accuracy against images: no runs with two validations"),
        (_plot_stragglers(places), "time against a straggler's factor: no strategy has runs of two factors (--slow)"),
        (_plot_intervals(places), "accuracy against the interval: averaging has no runs of two intervals"),
        (_plot_staleness(places), "staleness: no run of asynchronous servers"),
        (plot_schedules(places), "the schedule of a pipeline: no run was divided into stages"),
        (plot_bubbles(places), "waiting in pipelines against the formula: no run was divided into stages"),
        (plot_memory(places, alone), "memory against time: no run has a model that ranks hold together"),
        (_plot_time_shares(places), "computing and exchanging: no run recorded its exchanges"),
    ]
    plots = [plot for plot, _ in found if plot]
    return plots, [f"no plot of {missing}" for plot, missing in found if not plot]


def _panels(titles: Sequence[str], *, rows: int = 1) -> tuple[Figure, Any]:
    """Return a figure with a column of panels for each title."""
    figure = Figure(figsize=(1.0 + _PANEL_WIDTH * len(titles), 0.9 + _PANEL_HEIGHT * rows))
    axes = figure.subplots(rows, len(titles), squeeze=False, sharex="col")
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(wrapped(title, width=55))
    return figure, axes


def _style(number: int) -> dict[str, Any]:
    return {
        "color": COLORS[number % len(COLORS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": ("-", "--", ":")[number // len(COLORS) % 3],
        "markersize": 4.5,
    }


def _styles(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    return {label: _style(number) for number, label in enumerate(dict.fromkeys(labels))}


_AXES = {"seconds": "training, s", "images": "images trained"}


def _plot_progress(places: Sequence[Place], progress: AllProgress, *, by: str) -> Plot | None:
    """Draw the validation accuracy against seconds or images: medians over runs, a line for each way."""
    curves: dict[str, dict[str, dict[str, Progress]]] = {}
    for place in main_places(places):
        of_ways = {way.label: found for way in place.ways if (found := progress[way.cell])}
        if of_ways:
            curves[place.name] = of_ways
    if not curves:
        return None
    most = max(len(of_ways) for of_ways in curves.values())
    curves = {name: dict(list(of_ways.items())[:MOST_DRAWN]) for name, of_ways in curves.items()}
    more = first_of_words(most, "ways")
    counts = [len(runs) for of_ways in curves.values() for runs in of_ways.values()]
    figure, axes = _panels([*curves])
    styles = _styles([label for of_ways in curves.values() for label in of_ways])
    rows: list[list[Any]] = []
    for ax, (name, of_ways) in zip(axes[0], curves.items(), strict=True):
        for label, runs in of_ways.items():
            points = min(len(one.accuracy) for one in runs.values())
            x = np.median([getattr(one, by)[:points] for one in runs.values()], axis=0)
            y = 100 * np.median([one.accuracy[:points] for one in runs.values()], axis=0)
            ax.plot(x, y, label=wrapped(label, width=60), **styles[label])
            rows += [
                [name, label, str(one.key), float(at), float(100 * value)]
                for one in runs.values()
                for at, value in zip(getattr(one, by), one.accuracy, strict=True)
            ]
        ax.set_xlabel(_AXES[by])
        ax.set_ylabel("validation accuracy, %")
    legend_below(figure, ncols=2)
    figure.suptitle(f"Accuracy against {'time' if by == 'seconds' else 'images'}: medians, {n_words(counts)}{more}")
    headings = ["work", "strategy", "run", _AXES[by], "validation accuracy, %"]
    table = Table(f"Accuracy against {by}", headings, rows, {_AXES[by]: ".6g", headings[4]: ".2f"})
    return Plot(f"strategies-accuracy-{'time' if by == 'seconds' else by}", figure, table)


def _slowed(places: Sequence[Place]) -> dict[str, list[Way]]:
    """Return, of each framework, all ways to do the work that was done with the most factors of a straggler."""
    works: dict[str, dict[Hashable, list[Way]]] = defaultdict(lambda: defaultdict(list))
    for place in places:
        for way in place.ways:
            works[framework_label(place.framework)][work_of(way.cell, with_straggler=False)].append(way)
    return {
        framework: max(of_work.values(), key=lambda ways: len({way.slow_factor for way in ways}))
        for framework, of_work in works.items()
    }


def _draw_lines(ax: Axes, lines: dict[str, dict[float, list[float]]], styles: dict[str, dict[str, Any]]) -> None:
    """Draw medians as lines and all values as points: label -> x -> values."""
    for label, points in lines.items():
        style, x = styles[label], sorted(points)
        ax.plot(x, [np.median(points[at]) for at in x], label=wrapped(label, width=60), **style)
        for at in x:
            values = points[at]
            ax.plot([at] * len(values), values, linestyle="", alpha=0.35, markersize=3.5, color=style["color"],
                    marker=style["marker"])  # fmt: skip


def _plot_stragglers(places: Sequence[Place]) -> Plot | None:
    """Draw the training time against the factor of a planted straggler, a line for each way."""
    lines: dict[str, dict[str, dict[float, list[float]]]] = {}
    for framework, ways in _slowed(places).items():
        of_label: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
        for way in ways:
            if values := list(way.cell.seconds("training_seconds").values()):
                of_label[way.kind][way.slow_factor] += values
        varied = {label: points for label, points in of_label.items() if len(points) > 1}
        if varied:
            lines[framework] = varied | _ideal(varied, workers=workers_of(ways[0].cell.first) or 1)
    if not lines:
        return None
    figure, axes = _panels([*lines])
    styles = _styles([label for of_label in lines.values() for label in of_label])
    for ax, of_label in zip(axes[0], lines.values(), strict=True):
        _draw_lines(ax, of_label, styles)
        ax.set_xlabel("times as long as the others computes one rank")
        ax.set_ylabel("training, s")
        ax.set_ylim(bottom=0)
    legend_below(figure, ncols=2)
    figure.suptitle("Time with a straggler: medians and all runs")
    return Plot("strategies-stragglers", figure, _lines_table("Time with a straggler", lines, "factor", "training, s"))


def _ideal(lines: dict[str, dict[float, list[float]]], *, workers: int) -> dict[str, dict[float, list[float]]]:
    """Return the time with a straggler if workers shared the work by their speeds: label -> factor -> seconds."""
    if 1.0 not in lines.get(PLAIN, {}):
        return {}
    alike = median_of(lines[PLAIN][1.0])
    assert alike is not None, "a line has points"
    factors = {factor for points in lines.values() for factor in points}
    return {"ideal: the sum of the speeds": {one: [alike * workers / (workers - 1 + 1 / one)] for one in factors}}


def _lines_table(title: str, lines: dict[str, dict[str, dict[float, list[float]]]], x: str, y: str) -> Table:
    rows: list[list[Any]] = [
        [framework, label, at, value]
        for framework, of_label in lines.items()
        for label, points in of_label.items()
        for at in sorted(points)
        for value in points[at]
    ]
    return Table(title, ["framework", "strategy", x, y], rows, {x: "g", y: ".6g"})


def _plot_intervals(places: Sequence[Place]) -> Plot | None:
    """Draw accuracy and training time of averaging against its interval, in updates; a panel each."""
    quantities: dict[str, Callable[[Way], list[float]]] = {
        "accuracy, %": lambda way: [100 * value for value in way.cell.results("accuracy").values()],
        "training, s": lambda way: list(way.cell.seconds("training_seconds").values()),
    }
    found: dict[str, dict[str, dict[float, list[float]]]] = {quantity: {} for quantity in quantities}
    for quantity, values in quantities.items():
        for place in places:  # of works of one name, the one with the most intervals
            points = _by_interval(place, values)
            if len(points) > max(1, len(found[quantity].get(place.name, {}))):
                found[quantity][place.name] = points
    if not found["accuracy, %"]:
        return None
    figure, axes = _panels([*quantities])
    styles = _styles([*found["accuracy, %"]])
    for ax, (quantity, of_place) in zip(axes[0], found.items(), strict=True):
        _draw_lines(ax, of_place, styles)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_xlabel("updates from one averaging to the next (logarithmic)")
        ax.set_ylabel(quantity)
    legend_below(figure, ncols=1)
    figure.suptitle("Averaging by its interval: medians and all runs; epoch: the updates of one")
    return Plot("strategies-interval", figure, _lines_table("By interval", found, "updates", "value"))


def _by_interval(place: Place, values: Callable[[Way], list[float]]) -> dict[float, list[float]]:
    points: dict[float, list[float]] = defaultdict(list)
    for way in place.ways:
        if way.strategy == "averaging" and way.kind.count(",") == 1 and values(way):  # of no other option
            points[_interval(way)] += values(way)
    return dict(points)


def _interval(way: Way) -> float:
    run = way.cell.first
    every = run.config.strategy.average_every
    return float(every) if isinstance(every, int) else float(run.steps / run.trained_epochs)


def _plot_staleness(places: Sequence[Place]) -> Plot | None:
    """Draw the part of the pushes of each staleness, a panel for each way of asynchronous servers."""
    found = {
        f"{place.name}: {way.label}": counts
        for place in places
        for way in place.ways
        if (counts := staleness_of(way.cell))
    }
    if not found:
        return None
    more = f"; the first {MOST_PANELS} of {len(found)}" if len(found) > MOST_PANELS else ""
    found = dict(list(found.items())[:MOST_PANELS])
    figure = Figure(figsize=(8.0, 1.0 + 1.7 * len(found)))
    panels = figure.subplots(len(found), 1, squeeze=False, sharex=True)[:, 0]
    rows: list[list[Any]] = []
    for ax, (name, counts) in zip(panels, found.items(), strict=True):
        total, lags = sum(counts.values()), sorted(counts)
        ax.set_axisbelow(True)
        ax.bar(lags, [100 * counts[lag] / total for lag in lags], color=COLORS[0], width=0.9)
        ax.set_title(wrapped(f"{name} ({total:,} pushes)", width=90))
        ax.set_ylabel("% of pushes")
        rows += [[name, lag, counts[lag]] for lag in lags]
    panels[-1].set_xlabel("updates between fetch and push")
    figure.suptitle(f"Staleness{more}")
    table = Table("Staleness", ["strategy", "updates between fetch and push", "pushes"], rows, {"pushes": ",d"})
    return Plot("strategies-staleness", figure, table)


_LOOKS: dict[str, dict[str, Any]] = {
    "computing": {"color": COLORS[0]},
    "waiting for data": {"color": COLORS[4]},
    "computing, or waiting for work": {"color": COLORS[0], "alpha": 0.6},
    "waiting": {"color": COLORS[1], "hatch": "//", "edgecolor": "white"},
    "sending": {"color": COLORS[2]},
    "waiting and sending": {"color": COLORS[1]},
}


def _plot_time_shares(places: Sequence[Place]) -> Plot | None:
    """Draw how training divides into computing, waiting and sending; only profiles tell the last two apart."""
    stacks: dict[str, dict[str, float]] = {}
    for place in places:
        for way in place.ways:
            name = f"{framework_label(place.framework)}, {place.label}: {way.label}"
            if shares := exchange_shares(way.cell):
                stacks[name] = _timed_stack(way, 100 * float(np.median(shares)))
            if profiled := _profiled_stack(way):
                stacks[f"{name} (profiled)"] = profiled
    if not stacks:
        return None
    more = first_of_words(len(stacks), "ways")
    stacks = dict(list(stacks.items())[:MOST_DRAWN])
    figure = Figure(figsize=(9.0, 1.6 + ROW_INCHES * len(stacks)))
    ax = figure.subplots()
    draw_stacks(ax, list(stacks.values()), _LOOKS)
    label_rows(ax, [wrapped(name, width=60) for name in stacks])
    ax.set_xlabel("% of the training time, mean over workers")
    legend_below(figure)
    figure.suptitle(f"Where the training time goes: medians over runs{more}")
    rows: list[list[Any]] = [[name, part, share] for name, parts in stacks.items() for part, share in parts.items()]
    table = Table("Parts of the training time", ["strategy", "part", "%"], rows, {"%": ".2f"})
    return Plot("strategies-parts", figure, table)


def _timed_stack(way: Way, exchange: float) -> dict[str, float]:
    if staleness_of(way.cell):  # each worker draws its batches, and waits for them by itself
        return {"computing, or waiting for work": 100 - exchange, "waiting and sending": exchange}
    runs = way.cell.timed
    shares = [100 * run.data_wait_seconds / run.training_seconds for run in runs if run.data_wait_seconds >= 0]
    data = min(median_of(shares) or 0.0, 100 - exchange)
    return {"computing": 100 - exchange - data, "waiting for data": data, "waiting and sending": exchange}


def _profiled_stack(way: Way) -> dict[str, float]:
    profiles = [one for run in way.cell.finished if isinstance(one := run.record.profile, StepProfile)]
    if not profiles:
        return {}
    parts = {part: float(np.mean([one.parts_seconds.get(part, 0.0) for one in profiles])) for part in
             profiles[0].parts_seconds}  # fmt: skip
    scale = 100 / max(sum(parts.values()), 1e-12)
    named = {
        "waiting for data": scale * parts.get("input", 0.0),
        "waiting": scale * parts.get("waiting", 0.0),
        "sending": scale * parts.get("allreduce", 0.0),
    }
    return {"computing": 100 - sum(named.values()), **named}
