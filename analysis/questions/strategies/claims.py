"""What documents claim about strategies, as data (`claims.toml`), each beside what the runs at hand show."""

import tomllib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter

from analysis.output.tables import Table
from analysis.questions.strategies.parts import forecast_megabytes, grown_megabytes, is_divided, within_budget
from analysis.questions.strategies.ways import PLAIN, Alone, Place, Way, alone_on, ranks_alone, work_of, workers_of
from analysis.runs.cells import Cell
from analysis.runs.labels import framework_label
from analysis.stats.inference import Effect, difference, equivalence, ratio

Verdict = Literal["holds", "does not hold here", "cannot be tested here"]
CLAIMS = Path(__file__).with_name("claims.toml")
_TOO_FEW = "too few runs"
_ALMOST_TWICE = 1.8  # times as fast: an efficiency of 90 %


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A row of `claims.toml`: `test`, or a `verdict` with what was `found`."""

    __pydantic_config__ = ConfigDict(extra="forbid")
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
        plain = {_kind(way): way for way in self.ways if way.slow_factor == 1 and wanted(way)}
        slow = [way for way in self.ways if way.slow_factor > 1 and wanted(way) and _kind(way) in plain]
        for way in sorted(slow, key=lambda way: -way.slow_factor):
            effect = ratio(_seconds(way.cell), _seconds(plain[_kind(way)].cell))
            if effect:
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
    return _waits(runs, lambda way: way.label == PLAIN)


def _waits(runs: Runs, wanted: Callable[[Way], bool]) -> Evidence | None:
    """Return whether a straggler costs all workers at least half of what it costs itself."""
    if not (found := runs.slowed(wanted)):
        return None
    way, slower = found
    words = f"{way.label}, a worker {way.slow_factor:g} times as slow: {_times(slower)} the time"
    if slower.interval is None:
        return Evidence("cannot be tested here", f"{_TOO_FEW}; {words}")
    return Evidence(_holds(slower.interval.low > (1 + way.slow_factor) / 2), words)


def _free_servers_do_not_wait(runs: Runs) -> Evidence | None:
    free, waiting = runs.slowed(_is_free), runs.slowed(lambda way: way.label == PLAIN)
    if not free or not waiting or free[0].slow_factor != waiting[0].slow_factor:
        return None
    words = (
        f"a worker {free[0].slow_factor:g} times as slow: {_times(free[1])} the time of {free[0].label}, "
        f"{_times(waiting[1])} that of {PLAIN}"
    )
    if free[1].interval is None or waiting[1].interval is None:
        return Evidence("cannot be tested here", f"{_TOO_FEW}; {words}")
    return Evidence(_holds(free[1].interval.high < waiting[1].interval.low), words)


def _stale_gradients_learn(runs: Runs) -> Evidence | None:
    free = [way for way in runs.ways if _is_free(way) and way.accuracy and way.slow_factor == 1]
    if not free:
        return None
    best = max(_decided(free), key=lambda way: way.accuracy.estimate if way.accuracy else 0.0)
    return _same_accuracy(best, words=f"{best.label} against {PLAIN}")


def _mirrored_is_allreduce(runs: Runs) -> Evidence | None:
    mirrored = [way for way in runs.ways if "mirrored" in way.label and way.accuracy]
    return _same_accuracy(mirrored[0], words=f"{mirrored[0].label} against {PLAIN}") if mirrored else None


def _shares_cost_accuracy(runs: Runs) -> Evidence | None:
    shared = [way for way in runs.ways if "shares" in way.label and way.accuracy]
    if not shared:
        return None
    way = _decided(shared)[0]
    evidence = _same_accuracy(way, words=f"{way.label}, weighted by images, against {PLAIN}")
    opposite: dict[Verdict, Verdict] = {"holds": "does not hold here", "does not hold here": "holds"}
    return Evidence(opposite.get(evidence.verdict, evidence.verdict), evidence.found)


def _more_servers_are_faster(runs: Runs) -> Evidence | None:
    undecided = None
    for place in runs.places:
        servers = {way.label: way for way in place.ways if way.strategy == "server" and way.slow_factor == 1}
        for label, one in servers.items():
            more = servers.get(label.replace(", servers 1", ", servers 2"))
            effect = ratio(_seconds(more.cell), _seconds(one.cell)) if more and more is not one else None
            if more and effect:
                words = f"{more.label}: {_times(effect)} the time of one"
                if effect.interval:
                    return Evidence(_holds(effect.interval.high < 1), words)
                undecided = Evidence("cannot be tested here", f"{_TOO_FEW}; {words}")
    return undecided


def _a_slow_worker_never_pays(runs: Runs) -> Evidence | None:
    shared = [way for way in runs.ways if "shares" in way.label and way.slow_factor > 1]
    for way in sorted(shared, key=lambda way: way.slow_factor):
        if effect := runs.against_one(way):
            words = f"{way.label}, a worker {way.slow_factor:g} times as slow: {_times(effect)} the time of one alone"
            if effect.interval is None:
                return Evidence("cannot be tested here", f"{_TOO_FEW}; {words}")
            return Evidence(_holds(effect.interval.high >= 1), words)
    return None


def _two_workers_scale(runs: Runs) -> Evidence | None:
    two = [way for way in runs.ways if way.label == PLAIN and way.slow_factor == 1]
    for way in two:
        effect = runs.against_one(way) if workers_of(way.cell.first) == 2 else None
        if effect:
            words = f"two workers take {_times(effect)} the time of one"
            interval = effect.interval
            if interval is None or interval.contains(1 / _ALMOST_TWICE):
                return Evidence("cannot be tested here", f"{_TOO_FEW}; {words}")
            return Evidence(_holds(interval.high < 1 / _ALMOST_TWICE), words)
    return None


def _data_parallelism_is_faster(runs: Runs) -> Evidence | None:
    divided = [way for way in runs.ways if is_divided(way) and way.time]
    if not divided:
        return None
    best = min(divided, key=lambda way: way.time.estimate if way.time else 0.0)
    words = (
        f"{best.label}, the fastest of {len(divided)} ways to divide the model: {_times(best.time)} the time of {PLAIN}"
    )
    if best.time is None or best.time.interval is None:
        return Evidence("cannot be tested here", f"{_TOO_FEW}; {words}")
    return Evidence(_holds(best.time.interval.low > 1), words)


def _divided_models_need_less_memory(runs: Runs) -> Evidence | None:
    """Of a model within a budget; else of that which needs the most memory: small ones drown in the framework's."""
    for place in runs.places:
        if any(way.ended_by_limit for way in place.ways):
            divided = [way for way in place.ways if is_divided(way)]
            trained = [way for way in divided if len(way.cell.finished) and not way.ended_by_limit]
            if divided:
                return Evidence(_holds(bool(trained)), within_budget(place))
    found = [
        (forecast_megabytes(way.base) or 0.0, way, part, whole)
        for way in runs.ways
        if is_divided(way) and way.base
        if (part := grown_megabytes(way.cell)) and (whole := grown_megabytes(way.base))
    ]
    if not found:
        return None
    _, way, part, whole = max(found, key=lambda one: (one[0], -one[2]))
    words = f"{way.label}: {part:,.0f} MB of a rank beyond the framework's; {PLAIN}: {whole:,.0f} MB"
    return Evidence(_holds(part < whole), words)


def _runs_at_once(runs: Runs) -> Evidence | None:
    """Return whether several models train side by side, and in less time than one after the other where it is known."""
    beside = [cell for cell in runs.cells if _at_once(cell) > 1 and len(cell.finished)]
    if len(beside) < 2:
        return None
    words = f"{sum(len(cell.finished) for cell in beside)} runs of {len(beside)} settings, up to "
    words += f"{max(map(_at_once, beside))} at once"
    pairs = (
        (_at_once(cell), ratio(_seconds(cell), _seconds(alone)))
        for cell in beside
        for alone in runs.cells
        if {**alone.settings, "at once": _at_once(cell)} == cell.settings and _at_once(alone) == 1
    )
    number, effect = next((one for one in pairs if one[1]), (0, None))
    if effect is None:
        return Evidence("holds", f"{words}; none was made alone, too, to compare its time")
    words += f"; with {number} at once one takes {_times(effect)} the time of one alone"
    if effect.interval is None:
        return Evidence("cannot be tested here", f"{_TOO_FEW}; {words}")
    return Evidence(_holds(effect.interval.high < number), words)


def _at_once(cell: Cell) -> int:
    return int(str(cell.settings.get("at once") or 1))


def _interval_trades_time_for_accuracy(runs: Runs) -> Evidence | None:
    of_places = [
        {
            every: way
            for way in place.ways
            if way.strategy == "averaging" and way.slow_factor == 1 and way.label.count(",") == 1
            and isinstance(every := way.cell.first.config.strategy.average_every, int)
        }
        for place in runs.places
    ]  # fmt: skip
    ways = max(of_places, key=len, default={})
    if len(ways) < 2:
        return None
    often, seldom = ways[min(ways)], ways[max(ways)]
    time = ratio(_seconds(often.cell), _seconds(seldom.cell))
    accuracy = difference(seldom.cell.results("accuracy"), often.cell.results("accuracy"))
    if not time or not accuracy:
        return None
    words = (
        f"every {min(ways)} takes {_times(time)} the time of every {max(ways)}, whose accuracy is "
        f"{100 * accuracy.estimate:+.2f} points apart"
    )
    if time.interval is None or accuracy.interval is None:
        return Evidence("cannot be tested here", f"{_TOO_FEW}; {words}")
    return Evidence(_holds(time.interval.low > 1 and accuracy.interval.high < 0), words)


def _frameworks_are_alike(by_framework: dict[str, Runs]) -> Evidence:
    sides = [
        {(place.label, way.label): way for place in runs.places for way in place.ways}
        for runs in by_framework.values()
    ]  # fmt: skip
    both = sorted(sides[0].keys() & sides[1].keys()) if len(sides) > 1 else []
    if not both:
        return Evidence("cannot be tested here", "there are no runs of one strategy in both frameworks")
    margin = next(iter(by_framework.values())).margin
    found = [equivalence(*(side[key].cell.results("accuracy") for side in sides), margin=margin) for key in both]
    words = f"to within {100 * margin:g} points the same in {found.count('same')} of {len(found)} rows"
    if "different" in found:
        return Evidence("does not hold here", f"{words}, different in {found.count('different')}")
    return Evidence("holds" if set(found) == {"same"} else "cannot be tested here", words)


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


def _same_accuracy(way: Way, *, words: str) -> Evidence:
    assert way.accuracy, "asked before"
    words = f"{words}: {100 * way.accuracy.estimate:+.2f} points"
    if way.equivalence == "not shown":
        return Evidence("cannot be tested here", f"{_TOO_FEW}; {words}")
    return Evidence(_holds(way.equivalence == "same" or way.accuracy.estimate > 0), words)


def _decided(ways: Sequence[Way]) -> Sequence[Way]:
    """Return the ways with enough runs to say whether their accuracy is all-reduce's; if there are none, all."""
    return [way for way in ways if way.equivalence != "not shown"] or ways


def _kind(way: Way) -> Hashable:
    """Return the way and the work, a straggler apart."""
    return way.label, work_of(way.cell, with_straggler=False)


def _is_free(way: Way) -> bool:
    return way.strategy == "server" and "staleness none" in way.label


def _seconds(cell: Cell) -> dict[Hashable, float]:
    return cell.seconds("training_seconds")


def _times(effect: Effect | None) -> str:
    return f"{effect.estimate:.2f} times" if effect else "not known"


def _holds(is_so: bool) -> Verdict:
    return "holds" if is_so else "does not hold here"
