"""Which runs form a curve over ranks: cells that differ in np, and in what follows from it, with the base of each."""

import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from analysis.questions.scaling.models import Work
from analysis.runs.cells import IN_FORCE, Cell, Settings
from analysis.runs.labels import framework_label, strategy_label
from analysis.runs.settings import SERIES
from analysis.runs.table import images_trained
from analysis.runs.validity import pair_flags
from analysis.stats.inference import EQUIVALENCE_CONFIDENCE, Effect, Equivalence, difference, equivalence, ratio
from common.config import Config
from common.errors import UserError
from common.run_folder.records import ModelRecord, RunRecord, World

TIMES = ("total_seconds", "training_seconds")  # T = train + validation + test, as in the thesis; training alone
Kind = Literal["strong", "weak", "other batch", "as many ranks"]
# Settings that follow from np, or that np is scaled with; `image size` and the like must stay.
_FOLLOWING = ("np", "global batch", "controller", "threads", "hosts", IN_FORCE, SERIES)
PLAIN = strategy_label(Config())
BYTES = {"float16": 2, "float32": 4, "float64": 8}  # of a number


@dataclass(frozen=True)
class Point:
    """A cell compared with its base.

    Attributes:
        kind: strong: the same batch per update; weak: the same batch per rank.
        total, training: speedup T_base / T, of train + validation + test and of training alone.
        devices: times those of the base; None: they are of another kind.
        accuracy: the cell's minus the base's.
        equivalence: of both accuracies, at the margin asked for.
        margin: the smallest at which the accuracies would be shown to be the same; None: too few runs.
    """

    cell: Cell
    base: Cell
    kind: Kind
    total: Effect | None
    training: Effect | None
    devices: float | None
    accuracy: Effect | None
    equivalence: Equivalence
    margin: float | None

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.cell.first.np

    @property
    def speedup(self) -> float:
        """Of the whole run; NaN where a time is missing."""
        return self.total.estimate if self.total else float("nan")

    def per_device(self, comparison: Effect | None) -> float | None:
        """Return the efficiency: speedup / (devices / devices of the base); None between unlike devices."""
        return comparison.estimate / self.devices if comparison and self.devices else None


@dataclass(frozen=True)
class Study:
    """A base and the points compared with it, by ranks.

    Attributes:
        given: whether the base was asked for: it may be another machine.
    """

    base: Cell
    points: list[Point]
    given: bool = False

    @property
    def label(self) -> str:
        """Framework, model, data set, and the strategy with its options if it is another than plain allreduce."""
        return self._label(self.strategy)

    @property
    def short_label(self) -> str:
        """The same without the options."""
        return self._label(self.strategy.partition(",")[0])

    def _label(self, strategy: str) -> str:
        run = self.base.first
        parts = [framework_label(run.framework), run.model, run.data_set]
        parts += [strategy] if self.strategy != PLAIN else []
        return ", ".join(parts) + (" (published)" if run.origin == "published" else "")

    @property
    def strategy(self) -> str:
        """How the base's ranks share their work, with options; where settings are unknown, by plain allreduce."""
        return strategy_label(self.base.first.record.config)

    @property
    def ranks(self) -> list[int]:
        """Numbers of ranks other than the base's, and that too where it is another machine."""
        own = self.base.first.np
        return sorted({point.ranks for point in self.points if point.ranks != own or self.other_machine})

    @cached_property
    def other_machine(self) -> bool:
        """Whether the base is another machine than the rest: then these are no figures of scaling."""
        return any(point.devices is None for point in self.points)

    def at(self, ranks: int) -> list[Point]:
        """Return what has this many ranks, the fastest first."""
        timed = [point for point in self.points if point.ranks == ranks and point.total]
        return sorted(timed, key=lambda point: -point.speedup)

    def curve(self, kind: Kind) -> list[Point]:
        """Return the points of one kind, by ranks; of several with as many ranks the fastest."""
        return [found[0] for p in self.ranks if (found := [one for one in self.at(p) if one.kind == kind])]

    @property
    def cells(self) -> list[Cell]:
        """The base and the cells compared with it."""
        return [self.base, *(point.cell for point in self.points)]

    def flags(self) -> list[str]:
        """Return why a cell is not comparable with the base."""
        return [flag for point in self.points for flag in _pair_flags(point)]


def studies_of(cells: Sequence[Cell], *, margin: float, base: str | None = None) -> tuple[list[Study], list[Cell]]:
    """Return the curves over ranks, and the cells that are part of none.

    The base is the cell with the fewest ranks, of several with the same batch the fastest. A cell belongs to the base
    whose batch per update or per rank it shares; one that shares neither, to the fastest base.

    Args:
        cells: all of them; those without times are dropped.
        margin: of accuracy, as a fraction.
        base: WORDS or WORDS/NP: words in the label of a cell, or how its runs' names begin; None: the fewest ranks.

    Raises:
        UserError: no cell or several of one model have these words.
    """
    timed = [cell for cell in cells if cell.first.np and cell.seconds("total_seconds")]
    if base is not None:
        studies = _against(_named(timed, base), timed, margin=margin)
    else:
        families: dict[Hashable, list[Cell]] = defaultdict(list)
        for cell in timed:
            families[tuple(_lasting(cell).items())].append(cell)
        studies = [study for family in families.values() for study in _in_family(family, margin=margin)]
    used = {run.Index for study in studies for cell in study.cells for run in cell.runs}
    return studies, [cell for cell in timed if used.isdisjoint(run.Index for run in cell.runs)]


def _lasting(cell: Cell) -> Settings:
    return {name: value for name, value in cell.settings.items() if name not in _FOLLOWING}


def _in_family(family: Sequence[Cell], *, margin: float) -> list[Study]:
    fewest = min(cell.first.np for cell in family)
    first = [cell for cell in family if cell.first.np == fewest]
    first.sort(key=lambda cell: (-len(cell.timed), _median_seconds(cell)))  # a base is best known by many runs
    bases = list({cell.first.global_batch: cell for cell in reversed(first)}.values())
    of_base: dict[int, list[Cell]] = {id(base): [] for base in bases}
    for cell in family:
        if any(cell is base for base in bases):
            continue
        related = [base for base in bases if _kind(cell, base) != "other batch"]
        for base in related or [min(bases, key=_median_seconds)]:
            of_base[id(base)].append(cell)
    studies = [Study(base, [_point(cell, base, margin=margin) for cell in of_base[id(base)]]) for base in bases]
    studies.sort(key=lambda study: study.base.first.global_batch or 0)
    return [study for study in studies if study.ranks]


def _median_seconds(cell: Cell) -> float:
    return statistics.median(cell.seconds("total_seconds").values())


def _named(cells: Sequence[Cell], wanted: str) -> list[Cell]:
    words, _, ranks = wanted.rpartition("/") if "/" in wanted else (wanted, "", "")
    if ranks and not ranks.isdigit():
        raise UserError(f"the base has a wrong number of ranks. Received: --base {wanted}. Give WORDS/NP, as in cpu/1")
    found: list[Cell] = []
    untimed: list[Cell] = []
    for cell in cells:
        named = [run for run in cell.runs if run.name.startswith(words)]
        # Names may pick some runs of a cell; words of its label, all of them.
        runs = cell.runs if words in f"{cell.framework}, {cell.label}, {_machine(cell)}" else named
        if runs and ranks in ("", str(cell.first.np)):
            base = replace(cell, runs=runs)
            (found if base.seconds("total_seconds") else untimed).append(base)
    if untimed and not found:
        raise UserError(f"the base has no time. Received: --base {wanted}, {untimed[0].first.name}. Name a timed run")
    if not found:
        known = "; ".join(f"{cell.framework}, {cell.label}" for cell in cells) or "no cell with times"
        raise UserError(f"there is no such base. Received: --base {wanted}. Use words of one of: {known}")
    workloads = [_workload(cell) for cell in found]
    twice = [cell for cell, workload in zip(found, workloads, strict=True) if workloads.count(workload) > 1]
    if twice:
        labels = "; ".join(f"{cell.framework}, {cell.label}, {_machine(cell)}: {cell.first.name}" for cell in twice)
        raise UserError(f"several cells can be the base. Received: --base {wanted}. Say which: {labels}")
    return found


def _machine(cell: Cell) -> str:
    return f"{cell.first.site}, {cell.first.device}"


def _hardware(cell: Cell) -> Hashable:
    return tuple(cell.settings.get(name) for name in ("site", "device", "machine"))


def _workload(cell: Cell) -> Hashable:
    run = cell.first
    return run.framework, run.model, run.data_set, run.image_size, run.origin


def _against(bases: Sequence[Cell], cells: Sequence[Cell], *, margin: float) -> list[Study]:
    studies = []
    for base in bases:
        # A cell some of whose runs are the base is not compared with them.
        others = [
            cell
            for cell in cells
            if _workload(cell) == _workload(base) and all(run.Index != base.first.Index for run in cell.runs)
        ]
        points = [_point(cell, base, margin=margin) for cell in others]
        # What runs on the machine of the base scales; what runs on another is faster or slower than it.
        for of_kind in (
            [point for point in points if point.devices is not None],
            [point for point in points if point.devices is None],
        ):
            if of_kind:
                studies.append(Study(base, of_kind, given=True))
    return studies


def _point(cell: Cell, base: Cell, *, margin: float) -> Point:
    results = cell.results("accuracy"), base.results("accuracy")
    inner = difference(*results, confidence=EQUIVALENCE_CONFIDENCE)
    return Point(
        cell=cell,
        base=base,
        kind=_kind(cell, base),
        total=ratio(base.seconds("total_seconds"), cell.seconds("total_seconds")),
        training=ratio(base.seconds("training_seconds"), cell.seconds("training_seconds")),
        devices=_units(cell) / _units(base) if _hardware(cell) == _hardware(base) else None,
        accuracy=difference(*results),
        equivalence=equivalence(*results, margin=margin),
        margin=max(abs(inner.interval.low), abs(inner.interval.high)) if inner and inner.interval else None,
    )


def _kind(cell: Cell, base: Cell) -> Kind:
    run, other = cell.first, base.first
    if run.np == other.np:
        return "as many ranks" if run.global_batch == other.global_batch else "other batch"
    if not run.global_batch:
        return "other batch"
    if run.global_batch == other.global_batch:
        return "strong"
    return "weak" if run.global_batch * other.np == other.global_batch * run.np else "other batch"


def _units(cell: Cell) -> int:
    """Return the devices it ran on: GPUs, one per rank; on a CPU the cores, because ranks share them."""
    run = cell.first
    world = run.record.world
    threads = world.threads_per_rank if isinstance(world, World) else None
    return run.np * threads if run.device == "cpu" and isinstance(threads, int) else run.np


def _pair_flags(point: Point) -> list[str]:
    # Compared without what follows from np: that it differs is the question, not an objection.
    sides = [replace(cell, settings=_lasting(cell)) for cell in (point.base, point.cell)]
    return pair_flags(sides[0], sides[1])


def training_runs(study: Study, kind: Kind) -> tuple[list[int], list[float]]:
    """Return ranks and training seconds of every timed run of a curve, the base's with them."""
    cells = [study.base, *(point.cell for point in study.curve(kind))]
    pairs = [(cell.first.np, seconds) for cell in cells for seconds in cell.seconds("training_seconds").values()]
    return [p for p, _ in pairs], [seconds for _, seconds in pairs]


def work_of(study: Study, kind: Kind) -> Work | None:
    """Return what the runs of a curve have in common; None where it is not known."""
    known = (run for run in study.base.timed if isinstance(run.record.model, ModelRecord))
    run = next((run for run in known if np.isfinite(images_trained(run))), None)
    if run is None:
        return None
    images = images_trained(run)
    weak = kind == "weak"
    batch = run.global_batch // run.np if weak else run.global_batch
    return Work(images=images, batch=batch, weak=weak, gradient_bytes=gradient_bytes(run.record))


def gradient_bytes(record: RunRecord) -> int:
    """Return the bytes of all gradients of a run as ranks send them; where settings are unknown, as float32.

    Gradients have the type of the weights, also where layers compute in another, unless they are compressed.
    """
    dtype = "float32"
    if isinstance(config := record.config, Config):
        dtype = "float16" if config.device.compression == "fp16" else config.model.dtype
    assert isinstance(record.model, ModelRecord)
    return BYTES[dtype] * record.model.parameters
