"""What the trainers are meant to reach on two cores of one host, and whether a benchmark shows that they do."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.output.tables import Cell, Table, shown_interval
from analysis.questions.bench_ratios import SpeedRatio, floors_of
from analysis.stats.inference import median_interval
from common.distributed.console import counted

CORES = 2  # of the host for which the goals are
MET, MISSED, NOT_SHOWN = "met", "missed", "not shown"
_LEAST_OF_LOOP = 0.98  # of a bare loop that sums losses and correct answers, too
# What two ranks keep of the speed of two that exchange nothing.
_LEAST_KEPT = {"cnn": 0.97, "simplecnn": 0.97, "resnet34": 0.93}
_MOST_MS_OF_SMALL_EXCHANGE = 0.1
_SMALL_EXCHANGE = "cnn"  # 87 kB
_LARGE_EXCHANGE = "resnet34"  # 85 MB
_MOST_OF_BARE_EXCHANGE = 1.3
_MOST_SECONDS_TO_START = 0.6
_MOST_SECONDS_AFTER_IMPORTS = 1.0
_MOST_SECONDS_OF_REPORT, _MOST_SECONDS_UP_TO_DATE = 15.0, 3.0
_LEAST_OF_PYDTNN = 3.0
# What a loop without this project takes, 121 and 64 MB, and half of what the trainer of 2026-11-23 took beyond that, 25
# and 23 MB: medians of 7 starts.
_MOST_MB_BEYOND_IMPORTS = {"torch": 133, "keras": 75}


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A limit, and what was measured of it.

    Attributes:
        what: in words, with its unit.
        values: of pairs or turns.
        at_least: whether the limit is the least, not the most.
    """

    what: str
    model: str
    framework: str
    values: Sequence[float]
    limit: float
    at_least: bool

    @property
    def outcome(self) -> str:
        """Whether the 95 % interval of the median keeps to the limit; not shown: a part of it, or there is none."""
        interval = median_interval(self.values)
        if interval is None:
            return NOT_SHOWN
        if interval.low >= self.limit if self.at_least else interval.high <= self.limit:
            return MET
        return MISSED if (interval.high < self.limit if self.at_least else interval.low > self.limit) else NOT_SHOWN


def goals_of(ratios: Sequence[SpeedRatio]) -> list[Goal]:
    """Return the goals that a benchmark has measured."""
    floors = floors_of(ratios)
    found = [goal for one in ratios for goal in _goals(one, floor=floors.get((one.model, one.start.framework)))]
    order = list(dict.fromkeys(goal.what for goal in found))
    return sorted(found, key=lambda goal: order.index(goal.what))


def _goals(one: SpeedRatio, *, floor: float | None) -> Iterator[Goal]:
    def goal(what: str, values: Sequence[float], limit: float, *, at_least: bool = False) -> Goal:
        return Goal(what=what, model=one.model, framework=one.start.framework, values=values, limit=limit,
                    at_least=at_least)  # fmt: skip

    match one.start.start:
        case "sums":
            yield goal("trainer / bare loop that sums losses", one.ratios, _LEAST_OF_LOOP, at_least=True)
        case "horovodrun":
            yield goal("horovodrun with two Pythons that do nothing, s", one.measured, _MOST_SECONDS_TO_START)
        case "report":
            yield goal("report on 10,000 runs, s", one.base, _MOST_SECONDS_OF_REPORT)
            yield goal("the same, up to date, s", one.measured, _MOST_SECONDS_UP_TO_DATE)
        case "first_update":
            yield goal("first update after a command that only imports, s", _beyond(one), _MOST_SECONDS_AFTER_IMPORTS)
        case "memory":
            limit = _MOST_MB_BEYOND_IMPORTS[one.start.framework]
            yield goal("memory of a second rank beyond imports, MB", _beyond(one), limit)
        case "pydtnn" | "pydtnn_np2":
            ranks = counted(one.start.turns[0].ranks, "rank")
            yield goal(f"images/s / PyDTNN's, its recipe, {ranks}", one.ratios, _LEAST_OF_PYDTNN, at_least=True)
        case "exchange":
            if one.model in _LEAST_KEPT:
                yield goal("two ranks / two that exchange nothing", one.ratios, _LEAST_KEPT[one.model], at_least=True)
            if one.model == _SMALL_EXCHANGE and one.timed_turns:
                milliseconds = [1e3 * median for median in one.exchange_medians]
                yield goal("exchange of 87 kB, ms", milliseconds, _MOST_MS_OF_SMALL_EXCHANGE)
            if one.model == _LARGE_EXCHANGE and one.timed_turns and floor:
                of_floor = [median / floor for median in one.exchange_medians]
                yield goal("exchange of 85 MB / bare MPI", of_floor, _MOST_OF_BARE_EXCHANGE)


def _beyond(one: SpeedRatio) -> list[float]:
    """Return by how much the measured contestant exceeds the base, of each pair."""
    pairs = zip(one.base, one.measured, strict=False)  # the last may lack its second
    return [measured - base for base, measured in pairs]


def outcomes(goals: Sequence[Goal]) -> str:
    """Return how many of the goals are met, in words."""
    of_outcome = [goal.outcome for goal in goals]
    counts = (f"{of_outcome.count(outcome)} {outcome}" for outcome in (MET, MISSED, NOT_SHOWN))
    return f"Goals: {', '.join(counts)}."


def goals_table(goals: Sequence[Goal]) -> Table:
    """Return the table of the goals."""
    rows: list[list[Cell]] = [
        [goal.what, goal.model, goal.framework, f"{'at least' if goal.at_least else 'at most'} {goal.limit:g}",
         statistics.median(goal.values), shown_interval(median_interval(goal.values), ".3g"), len(goal.values),
         goal.outcome]
        for goal in goals
    ]  # fmt: skip
    headings = ["goal", "model", "framework", "limit", "median", "95 % interval", "n", "outcome"]
    return Table("Goals", headings, rows, {"median": ".3g", "n": "d"})
