"""Models that ranks hold together: their figures."""

from analysis.output.finding import figures_in
from analysis.questions.strategies.ways import Place, Way, began_once, shares_of
from analysis.runs.cells import Cell
from analysis.runs.table import RunRow
from analysis.runs.validity import listed
from analysis.stats.inference import median_of
from common.measurement.interference import Interference
from common.pipeline.schedule import ideal_bubble
from common.run_folder.records import ModelRecord
from common.run_folder.sharing import SharingRecord, StageRecord

GROWN = "grown since the model was built"  # heading of the memory of a rank


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
    return median_of(share for run in cell.timed if (share := _waiting_of(run)) is not None)


def _waiting_of(run: RunRow) -> float | None:
    sharing = run.record.sharing
    if not isinstance(sharing, SharingRecord) or not sharing.pipeline or not run.training_seconds:
        return None
    if not began_once(run):
        return None
    stages = sharing.pipeline
    return sum(stage.waiting_seconds for stage in stages) / len(stages) / run.training_seconds


def peak_megabytes(cell: Cell) -> float | None:
    """Return the most memory of a rank, on its GPU where it has one: the median over runs; None: not recorded."""
    return median_of(most for run in cell.finished if (most := _peak_of(run)))


def _peak_of(run: RunRow) -> float:
    isolation = run.record.isolation
    if not isinstance(isolation, Interference):
        return 0.0
    devices = [value for value in isolation.peak_device_memory_bytes if value is not None]
    return max([0, *(devices or isolation.peak_memory_bytes)]) / 1e6


def grown_megabytes(cell: Cell) -> float | None:
    """Return how much the memory of a rank grew from before its model was built: the most, the median over runs.

    On a GPU it is all that the framework took there.
    """
    return median_of(most for run in cell.finished if (most := growth_of(run)))


def growth_of(run: RunRow) -> float:
    """Return how much the memory of a rank grew in a run: the most, in megabytes; 0: not recorded."""
    isolation = run.record.isolation
    if not isinstance(isolation, Interference):
        return 0.0
    if any(isolation.peak_device_memory_bytes):
        return _peak_of(run)
    pairs = zip(isolation.peak_memory_bytes, isolation.memory_before_bytes or [], strict=False)
    return max((peak - before for peak, before in pairs), default=0.0) / 1e6


def budget_megabytes(cell: Cell) -> int | None:
    """Return what each rank may take beyond what it had before its model was built; None: it is not limited."""
    config = cell.first.config
    return config.device.memory_limit if config else None


def within_budget(place: Place) -> str:
    """Return in words which ways to train a model fit into what each rank may take, and which do not."""
    ended, trained = ([way for way in place.ways if bool(way.ended_by_limit) == is_so] for is_so in (True, False))
    labels = [[way.label for way in ways] for ways in (trained, ended)]
    if figures_in(str(labels)) > 2:  # beside the budget
        labels = [list(dict.fromkeys(way.strategy for way in ways)) for ways in (trained, ended)]
    names = [listed(of_ways, apart="; ") or "nothing" for of_ways in labels]
    return f"within {budget_megabytes(place.ways[0].cell):,} MB per rank {names[0]} trains, {names[1]} does not"


def forecast_megabytes(cell: Cell) -> float | None:
    """Return the memory that training takes of a rank by the numbers of its layers: the most; None: not recorded."""
    model = cell.first.record.model
    forecast = model.forecast_bytes if isinstance(model, ModelRecord) else None
    return max(forecast) / 1e6 if forecast else None


def stages_of(way: Way) -> list[StageRecord]:
    """Return the stages of a way's first run; none where it is no pipeline."""
    return next((sharing.pipeline for _, sharing in shares_of(way.cell) if sharing.pipeline), [])
