"""Runs as points of a sweep over batch, resolution or share of validation samples."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from analysis.questions.clouds.sites import VARIANT
from analysis.runs.cells import IN_FORCE, Cell
from analysis.runs.settings import SERIES
from analysis.runs.validity import chance_of, is_guess
from analysis.stats.inference import median_of
from common.run_folder.records import DataRecord

_SWEPT = (SERIES, "global batch", "image size", "data set", "mean of pixels", "samples", "validation share")
# Where and how it was run, which figures show in other ways or not at all.
_OF_PLACE = ("np", "site", "origin", "published in", "at once", "tuning", IN_FORCE, *VARIANT)
_FALLEN = 0.1  # of accuracy, below the best: the run has fallen


@dataclass(frozen=True)
class SweepPoint:
    """A cell by its batch, resolution and share of validation samples; "unknown" or None: not known.

    Attributes:
        share: validation / (training + validation) samples, as a fraction.
        label: in words, the framework aside.
        work: settings in which its sweep differs from others of its framework and model, in words.
    """

    cell: Cell
    batch: Any  # int
    size: str
    share: float | None
    label: str
    work: str = ""

    @property
    def pixels(self) -> int:
        """Of an image, by which resolutions are sorted."""
        width, _, height = self.size.partition("x")
        return int(width) * int(height) if height else 0

    @cached_property
    def seconds(self) -> dict[Hashable, float]:
        """Train + validation + test of each timed run."""
        return self.cell.seconds("total_seconds")

    @property
    def n(self) -> int:
        """Number of its runs that have a time or an accuracy."""
        return max(len(self.seconds), len(self.cell.results("accuracy")))

    def median(self, column: str) -> float | None:
        """Return the median over timed runs of a time; None without."""
        return median_of(self.cell.seconds(column).values())

    def result(self, column: str) -> float | None:
        """Return the median over finished runs of a result; None without."""
        return median_of(self.cell.results(column).values())

    @property
    def last(self) -> float | None:
        """Validation accuracy after the last epoch; of runs without validation, that on the test samples."""
        last = self.result("last_validation_accuracy")
        return self.result("accuracy") if last is None else last

    @property
    def best(self) -> float | None:
        """Highest validation accuracy of a run."""
        return self.result("best_validation_accuracy")

    @property
    def remark(self) -> str | None:
        """Whether the accuracy collapsed, fell or never rose; None: neither."""
        chance, last, best = chance_of(self.cell), self.last, self.best
        if chance is None or last is None or best is None:
            return None
        if is_guess(best, chance=chance):
            return f"never better than guessing ({100 * chance:.1f} %)"
        if is_guess(last, chance=chance):
            return f"collapsed: ended at guessing ({100 * chance:.1f} %)"
        return f"ended {100 * (best - last):.1f} points below its best" if best - last >= _FALLEN else None


def point_of(cell: Cell) -> SweepPoint:
    """Return a cell as a point of a sweep."""
    first = cell.first
    data = first.record.data
    share = None
    if isinstance(data, DataRecord) and data.training_samples + data.validation_samples > 0:
        share = data.validation_samples / (data.training_samples + data.validation_samples)
    label = f"{first.image_size} with batch {first.global_batch}" if isinstance(data, DataRecord) else first.name
    return SweepPoint(cell=cell, batch=first.global_batch, size=first.image_size, share=share, label=label)


def family_of(cell: Cell) -> Hashable:
    """Return what the cells of a sweep have in common."""
    first = cell.first
    data = first.record.data
    if not isinstance(data, DataRecord):
        return tuple(item for item in cell.settings.items() if item[0] not in ("data", SERIES))
    # Prepared files of other resolutions have other names; their classes and number of samples are the same.
    name = tuple(data.class_names) if data.name.startswith("prepared:") else data.name
    samples = data.training_samples + data.validation_samples + data.test_samples
    return name, samples, tuple(item for item in cell.settings.items() if item[0] not in _SWEPT)


def told_apart(sweeps: Sequence[list[SweepPoint]]) -> list[list[SweepPoint]]:
    """Return the sweeps; points of several of one framework and model name the settings in which these differ."""
    groups: dict[Hashable, list[list[SweepPoint]]] = defaultdict(list)
    for sweep in sweeps:
        first = sweep[0].cell.first
        groups[first.framework, first.model].append(sweep)
    return [_with_work(sweep, groups[sweep[0].cell.first.framework, sweep[0].cell.first.model]) for sweep in sweeps]


def _with_work(sweep: Sequence[SweepPoint], others: Sequence[Sequence[SweepPoint]]) -> list[SweepPoint]:
    of_others = [_settings_of(other) for other in others]
    differing = [
        f"{name} {value}"
        for name, value in _settings_of(sweep).items()
        if any(settings.get(name) != value for settings in of_others)
    ]
    return [replace(point, work=", ".join(differing)) for point in sweep]


def _settings_of(sweep: Sequence[SweepPoint]) -> dict[str, Hashable]:
    """Return the settings of training that the points of a sweep share."""
    cell = sweep[0].cell
    settings = {name: value for name, value in cell.settings.items() if name not in (*_SWEPT, *_OF_PLACE)}
    return settings | {"data set": cell.first.data_set}


def batch_sweeps(family: Sequence[SweepPoint]) -> list[list[SweepPoint]]:
    """Return the points of a family that differ in batch or resolution.

    Where some differ in the share of validation samples alone, each share makes a sweep; else all are one.
    """
    known = [point for point in family if point.batch]
    by_share: dict[float | None, list[SweepPoint]] = defaultdict(list)
    repeated = len(known) > len({(point.batch, point.size) for point in known})
    for point in known:
        by_share[point.share if repeated else None].append(point)
    sweeps = [sorted(points, key=lambda one: (one.pixels, one.batch or 0)) for points in by_share.values()]
    return [points for points in sweeps if len({(one.batch, one.size) for one in points}) > 1]


def share_sweeps(family: Sequence[SweepPoint]) -> list[list[SweepPoint]]:
    """Return the points of a family that differ in the share of validation samples, by batch and resolution.

    Where the share is not recorded, each run is a point: nothing else that is known distinguishes them.
    """
    groups: dict[Hashable, list[SweepPoint]] = defaultdict(list)
    for point in family:
        if point.share is not None:
            groups[point.batch, point.size].append(point)
            continue
        for run in point.cell.timed:
            if run.validation_seconds > 0:
                alone = replace(point.cell, runs=[run])
                groups["unknown"].append(SweepPoint(cell=alone, batch=None, size="unknown", share=None, label=run.name))
    points = [sorted(group, key=lambda one: -(one.share or 0.0)) for group in groups.values()]
    return [group for group in points if len({one.share if one.share is not None else one.label for one in group}) > 1]


def share_label(point: SweepPoint) -> str:
    """Return the share of validation samples in words, or the run's name where it is not recorded."""
    return point.label if point.share is None else f"{100 * point.share:.1f} %"
