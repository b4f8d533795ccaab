"""What documents claim about strategies, as data (`claims.toml`), each beside what the runs at hand show."""

import tomllib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from analysis.output.tables import Table, shown_interval
from analysis.questions.frameworks import pairs_of
from analysis.questions.strategies.parts import (
    forecast_megabytes,
    grown_megabytes,
    growth_of,
    is_divided,
    within_budget,
)
from analysis.questions.strategies.ways import PLAIN, SLOW, Alone, Place, Way, alone_on, beside, ranks_alone, workers_of
from analysis.runs.cells import Cell, differing
from analysis.runs.labels import framework_label
from analysis.stats.inference import Effect, difference, equivalence, ratio
from common.json_records import Record

Verdict = Literal["holds", "does not hold here", "not shown", "cannot be tested here"]
CLAIMS = Path(__file__).with_name("claims.toml")
_TOO_FEW = "too few runs"
_ALMOST_TWICE = 1.8  # times as fast: an efficiency of 90 %
_EVERY = "average every"


@dataclass(frozen=True, kw_only=True)
class Claim(Record):
    """A row of `claims.toml`: `test`, or a `verdict` with what was `found`."""

    source: str
    where: str
    claim: str
    test: str | None = None
    verdict: Verdict | None = None
    found: str | None = None


@dataclass(frozen=True)
class Evidence:
    """What one framework's runs show of a claim."""

    verdict: Verdict
    found: str

    @property
    def opposite(self) -> "Evidence":
        """What they show of the opposite claim."""
        opposite: dict[Verdict, Verdict] = {"holds": "does not hold here", "does not hold here": "holds"}
        return replace(self, verdict=opposite.get(self.verdict, self.verdict))


@dataclass(frozen=True)
class Runs:
    """What a claim is tested on: one framework's work in several ways, and all its cells."""

    places: Sequence[Place]
    cells: Sequence[Cell]
    margin: float

    @property
    def ways(self) -> Iterator[Way]:
        """All ways of all places."""
        return (way for place in self.places for way in place.ways)

    @cached_property
    def alone(self) -> Alone:
        """The cells in which one worker works alone."""
        return ranks_alone(self.cells)

    def slowed(self, wanted: Callable[[Way], bool]) -> tuple[Way, Effect] | None:
        """Return the wanted way with the largest straggler, and its time / that without; None: no such runs."""
        plain = [way.cell for way in self.ways if way.slow_factor == 1 and wanted(way)]
        slow = [way for way in self.ways if way.slow_factor > 1 and wanted(way)]
        for way in sorted(slow, key=lambda way: -way.slow_factor):
            for cell in beside(way.cell, plain, but=(SLOW,)):
                if effect := ratio(_seconds(way.cell), _seconds(cell)):
                    return way, effect
        return None

    def against_one(self, way: Way) -> Effect | None:
        """Return the time of a way / that of one worker alone, without a straggler; None: there are no such runs."""
        times = [_seconds(cell) for cell in alone_on(way.cell, self.alone)]
        return next((found for alone in times if (found := ratio(_seconds(way.cell), alone))), None)


def claims_table(places: Sequence[Place], cells: Sequence[Cell], *, margin: float) -> Table:
    """Return every claim beside what each framework's runs show.

    Args:
        places: work done in several ways.
        cells: all of them.
        margin: of accuracy, as a fraction.
    """
    by_framework = {
        name: Runs([one for one in places if one.framework == name], [one for one in cells if one.framework == name],
                   margin)
        for name in dict.fromkeys(place.framework for place in places)
    }  # fmt: skip
    rows = []
    for claim in read_claims():
        for framework, evidence in _evidence(claim, by_framework):
            rows.append([claim.source, claim.where, claim.claim, framework, evidence.verdict, evidence.found])
    headings = ["source", "where", "claim", "framework", "verdict", "found, or why not"]
    return Table("What documents claim, and what was found", headings, rows, {})


@cache
def read_claims() -> list[Claim]:
    """Return the claims in the order of the file."""
    content = tomllib.loads(CLAIMS.read_text(encoding="utf-8"))
    return TypeAdapter(list[Claim]).validate_python(content["claims"])


def _evidence(claim: Claim, by_framework: dict[str, Runs]) -> Iterator[tuple[str, Evidence]]:
    """Yield framework and evidence; a claim that no framework's runs can decide once."""
    if claim.test is None:
        assert claim.verdict and claim.found, "a claim without a test has a verdict"
        yield "both", Evidence(claim.verdict, claim.found)
        return
    if claim.test == "frameworks_are_alike":
        yield "both", _frameworks_are_alike(by_framework)
        return
    test, needed = TESTS[claim.test]
    found = {name: evidence for name, runs in by_framework.items() if (evidence := test(runs))}
    for name, evidence in found.items():
        yield framework_label(name), evidence
    if not found:
        yield "both", Evidence("cannot be tested here", f"there are no runs of {needed}")


# The tests: of one framework's runs; None where the runs they need are missing.


def _averaging_waits(runs: Runs) -> Evidence | None:
    return _waits(runs, lambda way: way.strategy == "averaging")


def _allreduce_waits(runs: Runs) -> Evidence | None:
    return _waits(runs, lambda way: way.kind == PLAIN)


def _waits(runs: Runs, wanted: Callable[[Way], bool]) -> Evidence | None:
    """Return whether a straggler costs all workers at least half of what it costs itself."""
    if not (found := runs.slowed(wanted)):
        return None
    way, slower = found
    words = f"{way.kind}, a worker {way.slow_factor:g} times as slow: {_times(slower)} the time"
    return _beyond(slower, (1 + way.slow_factor) / 2, words, above=True)


def _free_servers_do_not_wait(runs: Runs) -> Evidence | None:
    free, waiting = runs.slowed(_is_free), runs.slowed(lambda way: way.kind == PLAIN)
    if not free or not waiting or free[0].slow_factor != waiting[0].slow_factor:
        return None
    words = (
        f"a worker {free[0].slow_factor:g} times as slow: {_times(free[1])} the time of {free[0].kind}, "
        f"{_times(waiting[1])} that of {PLAIN}"
    )
    if free[1].interval is None or waiting[1].interval is None:
        return Evidence("cannot be tested here", f"{_TOO_FEW}; {words}")
    costs = free[1].interval, waiting[1].interval
    return Evidence(_verdict(costs[0].high < costs[1].low, costs[0].low > costs[1].high), words)


def _stale_gradients_learn(runs: Runs) -> Evidence | None:
    free = [way for way in runs.ways if _is_free(way) and way.accuracy and way.slow_factor == 1]
    if not free:
        return None
    best = max(_decided(free), key=lambda way: way.accuracy.estimate if way.accuracy else 0.0)
    return _less_accurate(best, f"{best.kind} against {PLAIN}").opposite


def _mirrored_is_allreduce(runs: Runs) -> Evidence | None:
    mirrored = [way for way in runs.ways if "mirrored" in way.kind and way.accuracy]
    if not mirrored:
        return None
    evidence = _less_accurate(mirrored[0], f"{mirrored[0].kind} against {PLAIN}")
    is_other = mirrored[0].equivalence == "different"  # more accurate copies are not those of all-reduce either
    return Evidence("does not hold here", evidence.found) if is_other else evidence.opposite


def _shares_cost_accuracy(runs: Runs) -> Evidence | None:
    shared = [way for way in runs.ways if "shares" in way.kind and way.accuracy]
    if not shared:
        return None
    way = _decided(shared)[0]
    return _less_accurate(way, f"{way.kind}, weighted by images, against {PLAIN}")


def _more_servers_are_faster(runs: Runs) -> Evidence | None:
    undecided = None
    servers = [way for way in runs.ways if way.strategy == "server" and way.slow_factor == 1]
    one = [way.cell for way in servers if way.cell.settings["servers"] == 1]
    for way in servers:
        others = beside(way.cell, one, but=("servers", "np")) if way.cell.settings["servers"] == 2 else []
        for effect in (ratio(_seconds(way.cell), _seconds(cell)) for cell in others):
            if effect:
                evidence = _beyond(effect, 1.0, f"{way.kind}: {_times(effect)} the time of one", above=False)
                if effect.interval:
                    return evidence
                undecided = evidence
    return undecided


def _a_slow_worker_never_pays(runs: Runs) -> Evidence | None:
    shared = [way for way in runs.ways if "shares" in way.kind and way.slow_factor > 1]
    for way in sorted(shared, key=lambda way: way.slow_factor):
        if effect := runs.against_one(way):
            words = f"{way.kind}, a worker {way.slow_factor:g} times as slow: {_times(effect)} the time of one alone"
            return _beyond(effect, 1.0, words, above=True)
    return None


def _two_workers_scale(runs: Runs) -> Evidence | None:
    two = [way for way in runs.ways if way.kind == PLAIN and way.slow_factor == 1]
    for way in two:
        effect = runs.against_one(way) if workers_of(way.cell.first) == 2 else None
        if effect:
            return _beyond(effect, 1 / _ALMOST_TWICE, f"two workers take {_times(effect)} the time of one", above=False)
    return None


def _data_parallelism_is_faster(runs: Runs) -> Evidence | None:
    divided = [way for way in runs.ways if is_divided(way) and way.time]
    if not divided:
        return None
    best = min(divided, key=lambda way: way.time.estimate if way.time else 0.0)
    words = (
        f"{best.kind}, the fastest of {len(divided)} ways to divide the model: {_times(best.time)} the time of {PLAIN}"
    )
    return _beyond(best.time, 1.0, words, above=True)


def _divided_models_need_less_memory(runs: Runs) -> Evidence | None:
    """Of a model within a budget; else of that which needs the most memory: small ones drown in the framework's."""
    for place in runs.places:
        divided = [way for way in place.ways if is_divided(way)]
        if any(way.ended_by_limit for way in place.ways if not is_divided(way)):
            trained = [way for way in divided if len(way.cell.finished) and not way.ended_by_limit]
            if divided:
                return Evidence(_verdict(bool(trained), not trained), within_budget(place))
    found = [
        (forecast_megabytes(way.base) or 0.0, way, way.base, part, whole)
        for way in runs.ways
        if is_divided(way) and way.base
        if (part := grown_megabytes(way.cell)) and (whole := grown_megabytes(way.base))
    ]
    if not found:
        return None
    _, way, base, part, whole = max(found, key=lambda one: (one[0], -one[3]))
    words = f"{way.kind}: {part:,.0f} MB of a rank beyond the framework's; {PLAIN}: {whole:,.0f} MB"
    return _beyond(ratio(way.cell.results(growth_of), base.results(growth_of)), 1.0, words, above=False)


def _runs_at_once(runs: Runs) -> Evidence | None:
    """Return whether several models train side by side, in less time than one after the other."""
    together = [cell for cell in runs.cells if _at_once(cell) > 1 and len(cell.finished)]
    if len(together) < 2:
        return None
    words = f"{sum(len(cell.finished) for cell in together)} runs of {len(together)} settings, up to "
    words += f"{max(map(_at_once, together))} at once"
    pairs = (
        (_at_once(cell), ratio(_seconds(cell), _seconds(alone)))
        for cell in together
        for alone in runs.cells
        if {**alone.settings, "at once": _at_once(cell)} == cell.settings and _at_once(alone) == 1
    )
    number, effect = next((one for one in pairs if one[1]), (0, None))
    if effect is None:
        return Evidence("cannot be tested here", f"{words}; none was made alone, too, to compare its time")
    words += f"; with {number} at once one takes {_times(effect)} the time of one alone"
    return _beyond(effect, number, words, above=False)


def _at_once(cell: Cell) -> int:
    return int(str(cell.settings.get("at once") or 1))


def _interval_trades_time_for_accuracy(runs: Runs) -> Evidence | None:
    plain = [
        way.cell
        for way in runs.ways
        if way.strategy == "averaging" and way.slow_factor == 1 and way.kind.count(",") == 1
        and isinstance(_every(way.cell), int)
    ]  # fmt: skip
    of_one_work = (sorted(beside(cell, plain, but=(_EVERY,)), key=_every) for cell in plain)
    cells = max(of_one_work, key=lambda cells: len({_every(cell) for cell in cells}), default=[])
    if len({_every(cell) for cell in cells}) < 2:
        return None
    often, seldom = cells[0], cells[-1]
    time = ratio(_seconds(often), _seconds(seldom))
    accuracies = seldom.results("accuracy"), often.results("accuracy")
    accuracy = difference(*accuracies)
    if not time or not accuracy:
        return None
    words = (
        f"every {_every(often)} takes {_times(time)} the time of every {_every(seldom)}, whose accuracy is "
        f"{100 * accuracy.estimate:+.2f} points apart"
    )
    if time.interval is None or accuracy.interval is None:
        return Evidence("cannot be tested here", f"{_TOO_FEW}; {words}")
    shown = equivalence(*accuracies, margin=runs.margin)
    is_less = shown == "different" and accuracy.estimate < 0
    is_not_less = shown != "not shown" and not is_less
    return Evidence(_verdict(time.interval.low > 1 and is_less, time.interval.high < 1 or is_not_less), words)


def _every(cell: Cell) -> Any:
    return cell.settings[_EVERY]


def _frameworks_are_alike(by_framework: dict[str, Runs]) -> Evidence:
    pairs, _ = pairs_of([way.cell for runs in by_framework.values() for way in runs.ways])
    both = [pair for pair in pairs if not differing(*pair)]
    if not both:
        return Evidence("cannot be tested here", "there are no runs of one strategy in both frameworks")
    margin = next(iter(by_framework.values())).margin
    found = [equivalence(*(cell.results("accuracy") for cell in pair), margin=margin) for pair in both]
    words = f"to within {100 * margin:g} points the same in {found.count('same')} of {len(found)} rows"
    if "different" in found:
        return Evidence("does not hold here", f"{words}, different in {found.count('different')}")
    return Evidence("holds" if set(found) == {"same"} else "not shown", words)


TESTS: dict[str, tuple[Callable[[Runs], Evidence | None], str]] = {
    "averaging_waits": (_averaging_waits, "averaging with and without a straggler"),
    "allreduce_waits": (_allreduce_waits, "allreduce with and without a straggler"),
    "free_servers_do_not_wait": (_free_servers_do_not_wait, "free servers and of allreduce with the same straggler"),
    "stale_gradients_learn": (_stale_gradients_learn, "free servers and of allreduce"),
    "mirrored_is_allreduce": (_mirrored_is_allreduce, "MirroredStrategy and of allreduce"),
    "shares_cost_accuracy": (_shares_cost_accuracy, "unequal shares and of allreduce"),
    "more_servers_are_faster": (_more_servers_are_faster, "1 and of 2 servers"),
    "a_slow_worker_never_pays": (_a_slow_worker_never_pays, "shares with a straggler and of one worker alone"),
    "two_workers_scale": (_two_workers_scale, "one and of two workers"),
    "data_parallelism_is_faster": (_data_parallelism_is_faster, "layers or split, and of allreduce"),
    "divided_models_need_less_memory": (_divided_models_need_less_memory, "layers or split, and of allreduce"),
    "runs_at_once": (_runs_at_once, "several settings side by side (`--at-once`, or a search with several workers)"),
    "interval_trades_time_for_accuracy": (_interval_trades_time_for_accuracy, "averaging by two intervals"),
}


def _less_accurate(way: Way, words: str) -> Evidence:
    """Return whether a way is less accurate than all-reduce, by more than the margin or by any that is shown."""
    assert way.accuracy, "asked before"
    words = f"{words}: {100 * way.accuracy.estimate:+.2f} points"
    if way.accuracy.interval is None:
        return Evidence("cannot be tested here", f"{_TOO_FEW}; {words}")
    if way.equivalence == "not shown":
        interval = shown_interval(way.accuracy.interval, "+.2f", scale=100)
        return Evidence("not shown", f"{words}: 95 % interval {interval}")
    is_less = way.equivalence == "different" and way.accuracy.estimate < 0
    return Evidence(_verdict(is_less, not is_less), words)


def _beyond(effect: Effect | None, limit: float, words: str, *, above: bool) -> Evidence:
    """Return whether an effect is shown to be above a limit, or below; not shown: its interval contains the limit."""
    if effect is None or effect.interval is None:
        return Evidence("cannot be tested here", f"{_TOO_FEW}; {words}")
    interval = effect.interval
    if interval.contains(limit):
        return Evidence("not shown", f"{words}: 95 % interval {shown_interval(interval, '.2f')}, limit {limit:.2f}")
    return Evidence(_verdict((interval.low > limit) == above, (interval.low > limit) != above), words)


def _decided(ways: Sequence[Way]) -> Sequence[Way]:
    """Return the ways whose accuracy is shown to be all-reduce's or another; else those with an interval, or all."""
    decided = [way for way in ways if way.equivalence != "not shown"]
    return decided or [way for way in ways if way.accuracy and way.accuracy.interval] or ways


def _is_free(way: Way) -> bool:
    return way.strategy == "server" and "staleness none" in way.kind


def _seconds(cell: Cell) -> dict[Hashable, float]:
    return cell.seconds("training_seconds")


def _times(effect: Effect | None) -> str:
    return f"{effect.estimate:.2f} times" if effect else "not known"


def _verdict(is_so: bool, is_not: bool) -> Verdict:
    """Return what is shown of a claim: that it is so, that it is not, or neither."""
    return "holds" if is_so else "does not hold here" if is_not else "not shown"
