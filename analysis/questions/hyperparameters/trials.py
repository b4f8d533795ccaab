"""Runs as choices of batch, resolution and share of validation samples, and which of them form a study."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from analysis.runs.cells import Cell
from analysis.runs.reading import StudiedRun
from analysis.runs.settings import SERIES
from analysis.stats.inference import median_of
from common.run_folder.records import DataRecord

_STUDIED = (SERIES, "global batch", "image size", "data set", "samples", "validation share")
_CHANCE = 1.5  # times 1 / classes: up to there an accuracy is no better than guessing
_FALLEN = 0.1  # of accuracy: so much below its best a run has fallen


@dataclass(frozen=True)
class Trial:
    """A cell as a choice of batch, resolution and share of validation samples; 0, "unknown", None: not known.

    Attributes:
        share: validation / (training + validation) samples, as a fraction.
        label: in words, the framework aside.
    """

    cell: Cell
    batch: int
    size: str
    share: float | None
    label: str

    @property
    def pixels(self) -> int:
        """Of an image, by which resolutions are sorted."""
        width, _, height = self.size.partition("x")
        return int(width) * int(height) if height else 0

    @cached_property
    def seconds(self) -> dict[Hashable, float]:
        """Train + validation + test of each timed run."""
        return self.cell.seconds(lambda run: run.total_seconds)

    @property
    def n(self) -> int:
        """Number of its runs that have a time or an accuracy."""
        return max(len(self.seconds), len(self.cell.results(lambda run: run.accuracy)))

    def median(self, of: Callable[[StudiedRun], float]) -> float | None:
        """Return the median over timed runs of a time; None without."""
        return median_of(self.cell.seconds(of).values())

    def result(self, of: Callable[[StudiedRun], float]) -> float | None:
        """Return the median over finished runs of a result; None without."""
        return median_of(self.cell.results(of).values())

    @property
    def last(self) -> float | None:
        """Validation accuracy after the last epoch; of runs without validation, that on the test samples."""
        last = self.result(lambda run: _at(accuracy_curve(run), -1))
        return self.result(lambda run: run.accuracy) if last is None else last

    @property
    def best(self) -> float | None:
        """Highest validation accuracy of a run."""
        return self.result(lambda run: float(max(accuracy_curve(run), default=np.nan)))

    @property
    def remark(self) -> str | None:
        """What became of the accuracy, where that is not well."""
        data, last, best = self.cell.runs[0].record.data, self.last, self.best
        if not isinstance(data, DataRecord) or last is None or best is None or not data.class_names:
            return None
        chance = 1 / len(data.class_names)
        if best <= _CHANCE * chance:
            return f"never better than guessing ({100 * chance:.1f} %)"
        if last <= _CHANCE * chance:
            return f"collapsed: ended at guessing ({100 * chance:.1f} %)"
        return f"ended {100 * (best - last):.1f} points below its best" if best - last >= _FALLEN else None


def accuracy_curve(run: StudiedRun) -> NDArray[np.float64]:
    """Return the validation accuracies of a run, without epochs that had none: (epochs,) float64."""
    accuracies = run.series("validation_accuracy")
    return accuracies[np.isfinite(accuracies)]


def _at(values: NDArray[np.float64], place: int) -> float:
    return float(values[place]) if len(values) else float("nan")


def trial_of(cell: Cell) -> Trial:
    """Return a cell as a choice."""
    first = cell.runs[0]
    data = first.record.data
    share = None
    if isinstance(data, DataRecord) and data.training_samples + data.validation_samples > 0:
        share = data.validation_samples / (data.training_samples + data.validation_samples)
    label = f"{first.image_size} with batch {first.global_batch}" if isinstance(data, DataRecord) else first.name
    return Trial(cell=cell, batch=first.global_batch, size=first.image_size, share=share, label=label)


def family_of(cell: Cell) -> Hashable:
    """Return what the cells of a study have in common."""
    first = cell.runs[0]
    data = first.record.data
    if not isinstance(data, DataRecord):
        return tuple(item for item in cell.settings.items() if item[0] not in ("data", SERIES))
    # Prepared files of other resolutions have other names; their classes and number of samples are the same.
    name = tuple(data.class_names) if data.name.startswith("prepared:") else data.name
    samples = data.training_samples + data.validation_samples + data.test_samples
    return name, samples, tuple(item for item in cell.settings.items() if item[0] not in _STUDIED)


def batch_studies(family: Sequence[Trial]) -> list[list[Trial]]:
    """Return the trials of a family that differ in batch or resolution.

    Where some differ in the share of validation samples alone, each share makes a study; else all are one.
    """
    known = [trial for trial in family if trial.batch]
    by_share: dict[float | None, list[Trial]] = defaultdict(list)
    repeated = len(known) > len({(trial.batch, trial.size) for trial in known})
    for trial in known:
        by_share[trial.share if repeated else None].append(trial)
    studies = [sorted(trials, key=lambda one: (one.pixels, one.batch)) for trials in by_share.values()]
    return [trials for trials in studies if len({(one.batch, one.size) for one in trials}) > 1]


def share_studies(family: Sequence[Trial]) -> list[list[Trial]]:
    """Return the trials of a family that differ in the share of validation, those of a batch and resolution together.

    Where the share is not recorded, each run stands for one: nothing else that is known tells them apart.
    """
    groups: dict[Hashable, list[Trial]] = defaultdict(list)
    for trial in family:
        if trial.share is not None:
            groups[trial.batch, trial.size].append(trial)
            continue
        for one in trial.cell.timed:
            if one.total("validation_seconds") > 0:
                alone = replace(trial.cell, runs=[one])
                groups["unknown"].append(Trial(cell=alone, batch=0, size="unknown", share=None, label=one.name))
    trials = [sorted(group, key=lambda one: -(one.share or 0.0)) for group in groups.values()]
    return [group for group in trials if len({one.share if one.share is not None else one.label for one in group}) > 1]


def share_label(trial: Trial) -> str:
    """Return the share of validation samples in words, or the run's name where it is not recorded."""
    return trial.label if trial.share is None else f"{100 * trial.share:.1f} %"


def training_an_epoch(run: StudiedRun) -> float:
    """Return seconds, mean over all epochs."""
    return run.epoch_seconds


def validation_an_epoch(run: StudiedRun) -> float:
    """Return seconds, mean over all epochs."""
    epochs = run.total("epochs")
    return run.total("validation_seconds") / epochs if epochs > 0 else float("nan")
