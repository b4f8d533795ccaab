"""Models that ranks hold together: the bubble of a pipeline, its schedule as it was, memory against time."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from analysis.output.finding import Plot
from analysis.output.plots import COLORS, MARKERS, legend_below, wrapped
from analysis.output.tables import Table
from analysis.questions.strategies.ways import Place, Way, main_places, shares_of
from analysis.runs.cells import Cell
from analysis.runs.table import RunRow
from analysis.stats.inference import median_of
from common.measurement.interference import Interference
from common.pipeline.schedule import ideal_bubble
from common.run_folder.records import ModelRecord
from common.run_folder.sharing import SharingRecord, StageRecord

MOST_PANELS = 6  # of schedules


def is_divided(way: Way) -> bool:
    """Return whether several ranks hold the model together."""
    config = way.cell.first.config
    return config is not None and config.parts.count > 1


def bubble_by_formula(cell: Cell) -> float | None:
    """Return the part of the time, from 0 to 1, that even stages of a pipeline wait; None: no pipeline."""
    config = cell.first.config
    if config is None or config.parts.stages is None:
        return None
    return ideal_bubble(stages=config.parts.stages, microbatches=config.parts.microbatches)


def waiting_share(cell: Cell) -> float | None:
    """Return the part of the time, from 0 to 1, that stages waited: the mean of a run's, the median over timed runs."""
    return median_of(share for run in cell.timed_runs if (share := _waiting_of(run)) is not None)


def _waiting_of(run: RunRow) -> float | None:
    sharing = run.record.sharing
    if not isinstance(sharing, SharingRecord) or not sharing.pipeline or not run.training_seconds:
        return None
    stages = sharing.pipeline
    return sum(stage.waiting_seconds for stage in stages) / len(stages) / run.training_seconds


def peak_megabytes(cell: Cell) -> float | None:
    """Return the most memory of a rank, on its GPU where it has one: the median over runs; None: not recorded."""
    return median_of(most for run in cell.finished_runs if (most := _peak_of(run)))


def _peak_of(run: RunRow) -> float:
    isolation = run.record.isolation
    if not isinstance(isolation, Interference):
        return 0.0
    devices = [value for value in isolation.peak_device_memory_bytes if value is not None]
    return max([0, *(devices or isolation.peak_memory_bytes)]) / 1e6


def model_megabytes(cell: Cell) -> float | None:
    """Return how much the memory of a rank grew from before its model was built: the most, the median over runs."""
    return median_of(most for run in cell.finished_runs if (most := _growth_of(run)))


def _growth_of(run: RunRow) -> float:
    isolation = run.record.isolation
    if not isinstance(isolation, Interference) or not isolation.memory_before_bytes:
        return 0.0
    pairs = zip(isolation.peak_memory_bytes, isolation.memory_before_bytes, strict=True)
    return max(peak - before for peak, before in pairs) / 1e6


def forecast_megabytes(cell: Cell) -> float | None:
    """Return the memory that training takes of a rank by the numbers of its layers: the most; None: not recorded."""
    model = cell.first.record.model
    forecast = model.forecast_bytes if isinstance(model, ModelRecord) else None
    return max(forecast) / 1e6 if forecast else None


def plot_schedules(places: Sequence[Place]) -> Plot | None:
    """Draw when each stage computed which pass in the last update of a run, a panel for each pipeline."""
    found = {
        f"{place.name}, {way.label}": stages for place in places for way in place.ways if (stages := _stages_of(way))
    }
    if not found:
        return None
    more = f"; the first {MOST_PANELS} of {len(found)}" if len(found) > MOST_PANELS else ""
    found = dict(list(found.items())[:MOST_PANELS])
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


def _stages_of(way: Way) -> list[StageRecord]:
    """Return the stages of a way's first run; none where it is no pipeline."""
    return next((sharing.pipeline for _, sharing in shares_of(way.cell) if sharing.pipeline), [])


def _forecasts(place: Place) -> list[float]:
    return [forecast for way in place.ways if (forecast := forecast_megabytes(way.cell))]


def plot_memory(places: Sequence[Place]) -> Plot | None:
    """Draw the memory of a rank against the training time, for each framework's largest model that ranks divide."""
    divided = [place for place in places if any(is_divided(way) for way in place.ways)]
    told = main_places(sorted(divided, key=lambda place: -max(_forecasts(place), default=0.0)))
    if not told:
        return None
    figure = Figure(figsize=(1.0 + 5.0 * len(told), 4.6))
    axes = figure.subplots(1, len(told), squeeze=False)[0]
    labels = list(dict.fromkeys(way.label for place in told for way in place.ways))
    rows: list[list[Any]] = []
    for ax, place in zip(axes, told, strict=True):
        for way in place.ways:
            seconds = median_of(way.cell.seconds("training_seconds").values())
            memory = peak_megabytes(way.cell)
            if seconds is None or memory is None:
                continue
            number = labels.index(way.label)
            look = {
                "color": COLORS[number % len(COLORS)],
                "marker": MARKERS[number // len(COLORS) % len(MARKERS)],
            }
            ax.plot(seconds, memory, linestyle="", label=wrapped(way.label, width=60), **look)
            rows.append([place.name, way.label, seconds, memory])
        ax.set_title(wrapped(place.name, width=60))
        ax.set_xlabel("training, s")
        ax.set_ylabel("most memory of a rank, MB")
        of_place = [row[2:] for row in rows if row[0] == place.name]
        ax.set_xlim(0, 1.1 * max((seconds for seconds, _ in of_place), default=1.0))
        ax.set_ylim(0, 1.1 * max((memory for _, memory in of_place), default=1.0))
    legend_below(figure, ncols=2)
    figure.suptitle("Memory of a rank against time: medians")
    headings = ["work", "strategy", "training, s", "memory per rank, MB"]
    return Plot("strategies-memory", figure, Table("Memory against time", headings, rows, {"training, s": ".3f"}))
