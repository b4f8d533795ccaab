"""Plots of models that ranks hold together: the schedule as it was, waiting against the bubble, memory against time."""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from matplotlib.figure import Figure

from analysis.output.finding import Plot
from analysis.output.plots import COLORS, IDEAL, MARKERS, framework_style, legend_below, wrapped
from analysis.output.tables import Table
from analysis.questions.strategies.parts import (
    GROWN,
    bubble_by_formula,
    budget_megabytes,
    forecast_megabytes,
    grown_megabytes,
    is_divided,
    stages_of,
    waiting_share,
)
from analysis.questions.strategies.ways import Alone, Place, alone_on, ended_by_limit, main_places
from analysis.runs.cells import Cell
from analysis.stats.inference import median_of

MOST_PANELS = 6  # of schedules


def plot_schedules(places: Sequence[Place]) -> Plot | None:
    """Draw when each stage computed which pass in the last update of a run, a panel for each pipeline."""
    pipelines = [(place, way, stages) for place in places for way in place.ways if (stages := stages_of(way))]
    if not pipelines:
        return None
    more = f"; {MOST_PANELS} of {len(pipelines)}" if len(pipelines) > MOST_PANELS else ""
    seen: Counter[Hashable] = Counter()
    turns = []  # the first pipeline of each framework and number of stages, then the second of each
    for number, (place, _, stages) in enumerate(pipelines):
        turns.append((seen[place.framework, len(stages)], number))
        seen[place.framework, len(stages)] += 1
    chosen = sorted(number for _, number in sorted(turns)[:MOST_PANELS])
    found = {f"{place.name}, {way.label}": stages for place, way, stages in (pipelines[number] for number in chosen)}
    most = max(map(len, found.values()))
    figure = Figure(figsize=(10.0, 1.0 + len(found) * (0.9 + 0.28 * most)))
    panels = figure.subplots(len(found), 1, squeeze=False)[:, 0]
    rows: list[list[Any]] = []
    for ax, (name, stages) in zip(panels, found.items(), strict=True):
        ax.set_axisbelow(True)
        for number, stage in enumerate(stages):
            for one in stage.passes:
                start, length = 1e3 * one.start, 1e3 * (one.end - one.start)
                kind = "forward" if one.is_forward else "backward"
                ax.barh(number, length, left=start, height=0.8, color=COLORS[0 if one.is_forward else 1],
                        edgecolor="white", label=kind if number == one.microbatch == 0 else None)  # fmt: skip
                ax.text(start + length / 2, number, str(one.microbatch), ha="center", va="center", fontsize=7,
                        color="white", clip_on=True)  # fmt: skip
                rows.append([name, number, one.microbatch, kind, start, start + length])
        ax.set_yticks(range(len(stages)), [f"{one.first_layer} to {one.last_layer}" for one in stages])
        ax.invert_yaxis()
        ax.set_title(wrapped(name, width=100))
    panels[-1].set_xlabel("ms since the first pass of the update")
    legend_below(figure)
    figure.suptitle(f"Who computed which microbatch when: the last update of a run{more}")
    headings = ["pipeline", "stage", "microbatch", "pass", "from, ms", "to, ms"]
    table = Table("Passes of an update", headings, rows, {"from, ms": ".3f", "to, ms": ".3f"})
    return Plot("strategies-schedule", figure, table)


def plot_bubbles(places: Sequence[Place]) -> Plot | None:
    """Draw the share of the time that stages waited against the formula, a marker for each pipeline."""
    measured = [
        (place, way, len(passes), formula, waited)
        for place in places
        for way in place.ways
        if (passes := stages_of(way))
        and (formula := bubble_by_formula(way.cell)) is not None
        and (waited := waiting_share(way.cell)) is not None
    ]
    if not measured:
        return None
    figure = Figure(figsize=(6.4, 6.0))
    ax = figure.subplots()
    models = list(dict.fromkeys((place.ways[0].cell.first.model, stages) for place, _, stages, *_ in measured))
    rows: list[list[Any]] = []
    for place, way, stages, formula, waited in measured:
        style, model = framework_style(place.framework), place.ways[0].cell.first.model
        marker = MARKERS[models.index((model, stages)) % len(MARKERS)]
        ax.plot(100 * formula, 100 * waited, linestyle="", color=style["color"], marker=marker, alpha=0.8,
                label=f"{style['label']}, {model}, {stages} stages")  # fmt: skip
        rows.append([place.name, way.label, stages, 100 * formula, 100 * waited])
    most = 1.1 * max(max(row[3:]) for row in rows)
    ax.plot([0, most], [0, most], label="formula: even stages, a core each", **IDEAL)
    ax.set_xlim(0, most)
    ax.set_ylim(0, most)
    ax.set_xlabel("(S - 1) / (M + S - 1), % (S stages, M microbatches)")
    ax.set_ylabel("measured: mean share of the time that stages waited, %")
    legend_below(figure, ncols=2)
    figure.suptitle("Waiting in pipelines against the formula: medians")
    headings = ["work", "strategy", "stages", "by formula, %", "waited, %"]
    formats = {"stages": "d", "by formula, %": ".2f", "waited, %": ".2f"}
    return Plot("strategies-bubble", figure, Table("Waiting against the formula", headings, rows, formats))


def plot_memory(places: Sequence[Place], alone: Alone) -> Plot | None:
    """Draw what the memory of a rank grew by against time, for each framework's largest model that ranks divide.

    Beside it are the forecast, hollow, and the budget of a rank, if it has one; runs that the budget ended are crosses.

    Args:
        places: work done in several ways.
        alone: of all cells: one rank alone, which did the same work, is drawn, too.
    """
    divided = [place for place in places if any(is_divided(way) for way in place.ways)]
    told = main_places(sorted(divided, key=_by_budget_and_size))
    drawn = {
        place.name: dict(
            [
                *(("one rank alone", cell) for cell in alone_on(place.ways[0].cell, alone)[:1]),
                *((way.label, way.cell) for way in place.ways),
            ]
        )
        for place in told
    }
    if not drawn:
        return None
    figure = Figure(figsize=(1.0 + 5.0 * len(drawn), 5.0))
    axes = figure.subplots(1, len(drawn), squeeze=False)[0]
    labels = list(dict.fromkeys(label for of_place in drawn.values() for label in of_place))
    rows: list[list[Any]] = []
    for ax, (name, of_place) in zip(axes, drawn.items(), strict=True):
        known = [row for label, cell in of_place.items() if (row := _memory_row(name, label, cell))]
        budget = next((row[5] for row in known if row[5]), None)
        right = max((row[2] for row in known if row[2] is not None), default=1.0)
        crosses = 0
        for _, label, seconds, grown, forecast, _, ended in known:
            number = labels.index(label)
            look = {
                "color": COLORS[number % len(COLORS)],
                "marker": MARKERS[number // len(COLORS) % len(MARKERS)],
            }
            words = wrapped(label, width=60)
            if ended:
                crosses += 1  # side by side
                seconds, grown = 0.06 * right * crosses, budget
                look["marker"], words = "x", f"{words}: ended by the limit"
            ax.plot(seconds, grown, linestyle="", markersize=8, label=words, **look)
            if forecast:
                ax.plot(seconds, forecast, linestyle="", markerfacecolor="none", **{**look, "marker": "o"})
        if budget:
            ax.axhline(budget, label="what a rank may take (--memory-limit)", **IDEAL)
        ax.plot([], [], linestyle="", color="#555555", marker="o", markerfacecolor="none", label="forecast")
        ax.set_title(wrapped(name, width=60))
        ax.set_xlabel("training, s")
        ax.set_ylabel(f"memory of a rank {GROWN}, MB")
        ax.set_xlim(0, 1.1 * right)
        ax.set_ylim(0, 1.1 * max(value or 0.0 for row in known for value in row[3:6]) if known else None)
        rows += known
    legend_below(figure, ncols=2)
    without_time = "; crosses have no time" if any(row[6] for row in rows) else ""
    figure.suptitle(f"Memory of a rank against time: medians{without_time}")
    headings = ["work", "strategy", "training, s", f"memory per rank {GROWN}, MB", "by forecast, MB", "budget, MB",
                "ended by the limit"]  # fmt: skip
    formats = {"training, s": ".3f", headings[3]: ",.0f", "by forecast, MB": ",.0f", headings[6]: "d"}
    return Plot("strategies-memory", figure, Table("Memory against time", headings, rows, formats))


def _by_budget_and_size(place: Place) -> tuple[bool, float]:
    """Order the places whose ranks have a budget first, then those of the largest models."""
    forecasts = [forecast_megabytes(way.cell) or 0.0 for way in place.ways]
    return not any(way.ended_by_limit for way in place.ways), -max(forecasts)


def _memory_row(name: str, label: str, cell: Cell) -> list[Any] | None:
    """Return a row of the table behind the plot; None where there is nothing to draw."""
    seconds, grown = median_of(cell.seconds("training_seconds").values()), grown_megabytes(cell)
    ended = ended_by_limit(cell)
    if not ended and (seconds is None or grown is None):
        return None
    return [name, label, seconds, grown, forecast_megabytes(cell), budget_megabytes(cell), ended or None]
