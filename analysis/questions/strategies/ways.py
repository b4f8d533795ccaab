"""Cells as ways to share the same work: all-reduce and everything that is compared with it."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from analysis.runs.cells import IN_FORCE, Cell
from analysis.runs.labels import STRATEGY_SETTINGS, framework_label, strategy_label
from analysis.runs.settings import SERIES
from analysis.runs.table import RunRow, images_trained
from analysis.runs.validity import pair_flags
from analysis.stats.inference import Effect, Equivalence, difference, equivalence, median_of, ratio
from common.distributed.console import counted
from common.measurement.memory_limit import OVER_LIMIT
from common.run_folder.records import NotRecorded, Status, World
from common.run_folder.sharing import SharingRecord, WorkerShare
from common.run_folder.world_changes import ElasticRecord

PLAIN = "allreduce"
SLOW = "slow"
_OF_STRATEGY = tuple(name for name in STRATEGY_SETTINGS if name != SLOW)  # a straggler is part of the work
# Further settings in which two ways to do the same work may differ, and which the label of a way names.
_NAMED = ("compression", "gradient groups", "tuning", "lr scaling", "learning rate", "warmup epochs")
# What mostly follows from these, and names a way only where two would have one name.
_TELLING_APART = ("global batch", "threads", "controller", IN_FORCE)
_FOLLOWING = ("np", *_TELLING_APART, SERIES)


@dataclass(frozen=True)
class Way:
    """A cell beside plain all-reduce on the same work.

    Attributes:
        kind: the strategy, its options, and the settings of `_NAMED` that differ from all-reduce's.
        label: the kind; of several ways of one kind, the later ones name what differs from the first.
        base: the cell of plain all-reduce; None: there is none.
        time, accuracy: against the base; None without one, or without times.
    """

    cell: Cell
    kind: str
    label: str
    base: Cell | None = None
    time: Effect | None = None
    accuracy: Effect | None = None
    equivalence: Equivalence = "not shown"
    flags: list[str] = field(default_factory=list)

    @property
    def strategy(self) -> str:
        """Name of the strategy."""
        return strategy_of(self.cell.first)

    @property
    def is_base(self) -> bool:
        """Whether it is the plain all-reduce that others are compared with."""
        return self.base is self.cell

    @property
    def is_faster(self) -> bool:
        """Whether it is shown to be faster than the base."""
        interval = self.time.interval if self.time else None
        return interval is not None and interval.high < 1

    @property
    def ended_by_limit(self) -> int:
        """How many of its runs needed more memory than they may have, which ended them (`--memory-limit`)."""
        return ended_by_limit(self.cell)

    @property
    def slow_factor(self) -> float:
        """How many times as long a planted straggler computes; 1: none is planted."""
        config = self.cell.first.config
        return config.balance.straggler.factor if config and config.balance.straggler else 1.0


@dataclass(frozen=True)
class Place:
    """The same work on the same machine, done in several ways, the plain all-reduce first."""

    framework: str
    label: str
    ways: list[Way]

    @property
    def name(self) -> str:
        """Framework and work."""
        return f"{framework_label(self.framework)}, {self.label}"


def places_of(cells: Sequence[Cell], *, margin: float) -> list[Place]:
    """Return where work was done in several ways, or in another than plain all-reduce.

    Those with plain all-reduce come first, and those with most ways.

    Args:
        cells: of any runs; those without a run that finished, or was ended by its memory limit, are dropped.
        margin: of accuracy, as a fraction, within which two are the same.
    """
    groups: dict[Hashable, list[Cell]] = defaultdict(list)
    for cell in cells:
        if (len(cell.finished) or ended_by_limit(cell)) and not cell.is_published:
            groups[work_of(cell)].append(cell)
    places = [_place(group, margin=margin) for group in groups.values()]
    told = [place for place in places if len(place.ways) > 1 or not place.ways[0].is_base]
    return sorted(told, key=lambda one: (not one.ways[0].is_base, -len(one.ways), one.framework != "torch"))


def main_places(places: Sequence[Place]) -> list[Place]:
    """Return, of each framework, the work that was done in most ways."""
    first: dict[str, Place] = {}
    for place in places:
        first.setdefault(place.framework, place)
    return list(first.values())


def ended_by_limit(cell: Cell) -> int:
    """Return how many runs of a cell were ended because a rank took more memory than its `--memory-limit`."""
    statuses = (run.record.status for run in cell.runs)
    return sum(OVER_LIMIT in (status.message or "") for status in statuses if isinstance(status, Status))


def strategy_of(run: RunRow) -> str:
    """Return the name of a run's strategy; where settings are unknown, all-reduce."""
    return PLAIN if run.config is None else run.config.strategy.strategy


def workers_of(run: RunRow) -> int | None:
    """Return how many workers compute gradients; None: not known."""
    record = run.record
    if record.sharing:
        return len(record.sharing.workers)
    return record.world.size if isinstance(record.world, World) else None


def work_of(cell: Cell, *, with_straggler: bool = True) -> tuple[Hashable, ...]:
    """Return what is the same in all ways to do the same work; a straggler is part of it, unless left out."""
    left_out = (*_OF_STRATEGY, *_NAMED, *_FOLLOWING, *(() if with_straggler else (SLOW,)))
    settings = {name: value for name, value in cell.settings.items() if name not in left_out}
    return workers_of(cell.first), *settings.items()


Alone = Mapping[Hashable, Sequence[Cell]]


def ranks_alone(cells: Sequence[Cell]) -> Alone:
    """Return the cells in which one worker works alone, in plain all-reduce and without a straggler, by their work."""
    found: dict[Hashable, list[Cell]] = defaultdict(list)
    for cell in cells:
        if workers_of(cell.first) == 1 and not cell.settings.get(SLOW) and _is_plain(cell):
            found[_work_alone(cell)].append(cell)
    return found


def alone_on(cell: Cell, alone: Alone) -> list[Cell]:
    """Return the cells in which one worker alone does the work of a cell, in batches of the same size.

    Without a straggler, and in the same experiment: from one to another the speed of a machine drifts.

    Args:
        cell: of any number of workers.
        alone: of all cells.
    """
    return [
        one
        for one in alone.get(_work_alone(cell), ())
        if one.first.global_batch == cell.first.global_batch
        and one.experiments & cell.experiments
        and not abs(images_trained(one.first) - images_trained(cell.first)) > 0  # not known of a run that was ended
    ]


def beside(cell: Cell, others: Sequence[Cell], *, but: Collection[str]) -> list[Cell]:
    """Return those of other cells that differ from a cell in these settings alone, in the same experiment.

    Those with most timed runs come first.
    """
    same = _settings_but(cell, but)
    found = [one for one in others if _settings_but(one, but) == same and one.experiments & cell.experiments]
    return sorted(found, key=lambda one: -len(one.timed))


def _settings_but(cell: Cell, but: Collection[str]) -> dict[str, Hashable]:
    return {name: value for name, value in cell.settings.items() if name not in but}


def _work_alone(cell: Cell) -> Hashable:
    _, *work = work_of(cell, with_straggler=False)
    return tuple(work)


def efficiency(cell: Cell, alone: Alone) -> float | None:
    """Return the time of one worker alone / (workers x time of a cell), in training; None: there are no such runs.

    Args:
        cell: of any number of workers.
        alone: of all cells.
    """
    times = [one.seconds("training_seconds") for one in alone_on(cell, alone)]
    speedup = next((found for one in times if (found := ratio(one, cell.seconds("training_seconds")))), None)
    workers = workers_of(cell.first)
    return speedup.estimate / workers if speedup and workers else None


def _place(cells: Sequence[Cell], *, margin: float) -> Place:
    plain = [cell for cell in cells if _is_plain(cell) and len(cell.finished)]
    base = max(plain, key=lambda cell: (not cell.settings.get("tuning"), len(cell.finished)), default=None)
    ordered = sorted(cells, key=lambda cell: cell is not base)
    first = ordered[0].first
    parts = [first.model, first.data_set, f"{workers_of(first)} workers", first.site]
    slow = ordered[0].settings.get(SLOW)
    label = ", ".join([*parts, *([f"slow {slow}"] if slow else [])])
    plain_side = base and _side(base, PLAIN)
    ways = [
        _compared(way, base, plain_side, margin=margin) if base and plain_side else way
        for way in _named_ways(ordered, base)
    ]
    return Place(str(first.framework), label, ways)


def _side(cell: Cell, words: str) -> Cell:
    """Return a side of a comparison, without the settings in which the ways differ: that is the question, not an
    objection."""
    asked = (*_OF_STRATEGY, *_NAMED, *_FOLLOWING)
    settings = {name: value for name, value in cell.settings.items() if name not in asked}
    return replace(cell, settings=settings, words=words)


def _is_plain(cell: Cell) -> bool:
    groups, types = cell.settings.get("gradient groups", "one"), cell.settings.get("compression", "none")
    return _strategy_label(cell) == PLAIN and (groups, types) == ("one", "none")


def _strategy_label(cell: Cell) -> str:
    """Return the strategy with its options; a straggler is part of the work, not of the way it is done."""
    config = cell.first.config
    if config is None:
        return PLAIN
    return strategy_label(replace(config, balance=replace(config.balance, slow=None, slow_is_subject=False)))


def _named_ways(cells: Sequence[Cell], base: Cell | None) -> Iterator[Way]:
    first: dict[str, Cell] = {}
    for cell in cells:
        kind = _kind(cell, base)
        other = first.setdefault(kind, cell)
        differing = [name for name in _TELLING_APART if cell.settings.get(name) != other.settings.get(name)]
        yield Way(cell, kind, ", ".join([kind, *(f"{name} {cell.settings.get(name)}" for name in differing)]))


def _kind(cell: Cell, base: Cell | None) -> str:
    words = [_strategy_label(cell)]
    for name in _NAMED:
        value = cell.settings.get(name)
        if value is None or value is False or value == (base.settings.get(name) if base else value):
            continue
        if (name, value) == ("gradient groups", "auto"):
            value = f"auto ({_chosen_groups(cell)})"
        words.append(name if value is True else str(value) if name == "tuning" else f"{name} {value}")
    return ", ".join(words)


def _chosen_groups(cell: Cell) -> str:
    """Return what the runs of a cell have chosen by `--gradient-groups auto`, the most frequent first."""
    chosen = Counter(run.record.groups.chosen for run in cell.finished if run.record.groups)
    return ", ".join(f"{name} in {counted(count, 'run')}" for name, count in chosen.most_common())


def _compared(way: Way, base: Cell, plain_side: Cell, *, margin: float) -> Way:
    if way.cell is base:
        return replace(way, base=base)
    accuracies = way.cell.results("accuracy"), base.results("accuracy")
    return replace(
        way,
        base=base,
        time=ratio(way.cell.seconds("training_seconds"), base.seconds("training_seconds")),
        accuracy=difference(*accuracies),
        equivalence=equivalence(*accuracies, margin=margin),
        flags=pair_flags(plain_side, _side(way.cell, way.label)),
    )


# What the workers of a way exchanged


def shares_of(cell: Cell) -> list[tuple[RunRow, SharingRecord]]:
    """Return the runs of a cell that recorded what their workers exchanged, and that record."""
    return [(run, run.record.sharing) for run in cell.finished if run.record.sharing]


def began_once(run: RunRow) -> bool:
    """Return whether a run was neither resumed nor had its ranks changed: else its times of exchange are of a part."""
    status, elastic = run.record.status, run.record.elastic
    is_resumed = isinstance(status, Status) and bool(status.resumed_after_steps)
    return not is_resumed and not (isinstance(elastic, ElasticRecord) and elastic.changes)


def bytes_per_image(cell: Cell) -> float | None:
    """Return the bytes that all workers hand over and get, per image trained; None: not recorded."""
    return median_of(
        _per_image(run, sharing.workers, both)
        for run, sharing in shares_of(cell)
        if (both := _bytes_of_workers(sharing)) is not None
    )


def bytes_per_update(cell: Cell) -> float | None:
    """Return the bytes that all workers together hand over and get in an update; None: not recorded."""
    of_runs = (_bytes_of_workers(sharing) for _, sharing in shares_of(cell))
    return median_of(sum(both) for both in of_runs if both is not None)


def formula_bytes_per_image(cell: Cell) -> float | None:
    """Return the bytes of all workers by the formula of the wire, per image trained; None: not recorded."""
    return median_of(
        _per_image(run, sharing.workers, [sharing.formula_bytes] * len(sharing.workers))
        for run, sharing in shares_of(cell)
    )


def exchange_shares(cell: Cell) -> list[float]:
    """Return the part of the training time that workers spend exchanging and waiting, mean over workers, per run."""
    shares = []
    for run, sharing in shares_of(cell):
        if not began_once(run):
            continue
        seconds = [s for one in sharing.workers if not isinstance(s := one.exchange_seconds, NotRecorded)]
        if run.training_seconds > 0 and len(seconds) == len(sharing.workers):
            shares.append(min(1.0, statistics.fmean(seconds) / run.training_seconds))
    return shares


def why_no_exchange(cell: Cell) -> list[str]:
    """Return why the time of a cell's exchanges was not measured; empty where it was."""
    times = (worker.exchange_seconds for _, sharing in shares_of(cell) for worker in sharing.workers)
    return [time.not_recorded for time in times if isinstance(time, NotRecorded)]


def staleness_of(cell: Cell) -> Counter[int]:
    """Return updates between fetch and push -> pushes, over all runs of a cell; empty: none can be stale."""
    counts: Counter[int] = Counter()
    for _, sharing in shares_of(cell):
        counts += Counter({int(lag): count for lag, count in (sharing.staleness or {}).items()})
    return counts


def staleness_at(counts: Counter[int], share: float) -> int | None:
    """Return the staleness that this share of the pushes does not exceed; None without any."""
    if not counts:
        return None
    lags = np.array(sorted(counts))
    cumulative = np.cumsum([counts[int(lag)] for lag in lags])
    return int(lags[np.searchsorted(cumulative, share * cumulative[-1])])


def _bytes_of_workers(sharing: SharingRecord) -> list[float] | None:
    """Return the bytes that each worker hands over and gets in an update; None: not recorded of all."""
    both = [_both(worker) for worker in sharing.workers]
    known = [one for one in both if one is not None]
    return known if len(known) == len(both) else None


def _both(worker: WorkerShare) -> float | None:
    sent, received = worker.sent_bytes, worker.received_bytes
    return None if isinstance(sent, NotRecorded) or isinstance(received, NotRecorded) else sent + received


def _per_image(run: RunRow, workers: Sequence[WorkerShare], of_update: Sequence[float | None]) -> float:
    parts = run.record.world.parts if isinstance(run.record.world, World) else 1  # these see the same images
    spent = sum(worker.updates * (value or 0.0) for worker, value in zip(workers, of_update, strict=True))
    return spent / max(sum(worker.images for worker in workers) / parts, 1)
