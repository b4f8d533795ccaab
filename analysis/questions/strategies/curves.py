"""Accuracy over the time and the images of a run, and at equal time: cut from the same runs, not run again."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from analysis.questions.strategies.ways import Place
from analysis.runs.cells import Cell
from analysis.runs.table import Selection, curve

FEWEST_POINTS = 2  # of a curve


@dataclass(frozen=True)
class Progress:
    """A run after each of its validations.

    Attributes:
        key: that pairs the run with others: its seed, or its folder.
        seconds: of training so far, (points,) float64.
        images: trained so far, (points,) float64.
        accuracy: of validation, as a fraction, (points,) float64.
    """

    key: Hashable
    seconds: NDArray[np.float64]
    images: NDArray[np.float64]
    accuracy: NDArray[np.float64]

    def accuracy_at(self, seconds: float) -> float:
        """Return the accuracy after so many seconds, on straight lines between validations; NaN before the first."""
        if seconds < self.seconds[0]:
            return math.nan
        return float(np.interp(seconds, self.seconds, self.accuracy))


AllProgress = Mapping[Cell, dict[str, Progress]]


def progress_of(selection: Selection, places: Sequence[Place]) -> AllProgress:
    """Return cell of a way -> folder -> progress of the timed runs that validated at least twice."""
    return {way.cell: _progress_of(selection, way.cell) for place in places for way in place.ways}


def _progress_of(selection: Selection, cell: Cell) -> dict[str, Progress]:
    found: dict[str, Progress] = {}
    for run in cell.timed:
        seconds = np.cumsum(curve(selection.epochs, run, "training_seconds"))
        images = np.cumsum(curve(selection.epochs, run, "steps")) * (run.global_batch or math.nan)
        accuracy = curve(selection.epochs, run, "validation_accuracy")
        known = np.isfinite(accuracy) & np.isfinite(seconds)
        if known.sum() >= FEWEST_POINTS:
            folder = str(run.folder)
            key = folder if run.seed is None else run.seed
            found[folder] = Progress(key, seconds[known], images[known], accuracy[known])
    return found


def at_equal_time(progress: AllProgress, place: Place) -> tuple[float, dict[int, dict[Hashable, float]]] | None:
    """Return the training seconds of the fastest way, and number of a way -> seed -> accuracy at that time.

    Runs of one seed are one result, their median. None where fewer than two ways have curves.
    """
    curves = {number: found for number, way in enumerate(place.ways) if (found := progress[way.cell])}
    if len(curves) < 2:
        return None
    seconds = min(float(np.median([one.seconds[-1] for one in found.values()])) for found in curves.values())
    return seconds, {number: _accuracies(found.values(), seconds) for number, found in curves.items()}


def _accuracies(runs: Iterable[Progress], seconds: float) -> dict[Hashable, float]:
    by_key: dict[Hashable, list[float]] = defaultdict(list)
    for run in runs:
        accuracy = run.accuracy_at(seconds)
        if math.isfinite(accuracy):
            by_key[run.key].append(accuracy)
    return {key: median(values) for key, values in by_key.items()}
