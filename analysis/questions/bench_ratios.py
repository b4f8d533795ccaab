"""What `python -m launch bench` measured, start by start and model by model."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from common.checks.bench_record import BenchRecord, MeasuredStart, Turn, pair_ratios

FLOOR = "floor"  # the start in which bare MPI exchanges gradients


@dataclass(frozen=True)
class SpeedRatio:
    """What one start measured of one model: values of the base and of the measured contestant, ratio of each pair."""

    model: str
    start: MeasuredStart
    unit: str
    base: list[float]
    measured: list[float]
    ratios: list[float]

    @property
    def median(self) -> float:
        """Of the ratios."""
        return statistics.median(self.ratios)

    @property
    def timed_turns(self) -> list[Turn]:
        """The turns whose exchanges were timed."""
        return [turn for turn in self.start.turns if turn.model == self.model and turn.exchanges]

    @property
    def exchange_medians(self) -> list[float]:
        """The median exchange of each of these turns, in seconds."""
        return [statistics.median(turn.exchanges) for turn in self.timed_turns]


def speed_ratios(record: BenchRecord) -> list[SpeedRatio]:
    """Return what was measured, sorted by model and framework, then in the order of the starts."""
    found = []
    for start in record.starts:
        turns: dict[str, list[Turn]] = {}
        for turn in start.turns:
            turns.setdefault(turn.model, []).append(turn)
        for model, of_model in turns.items():
            base = of_model[0].contestant
            sides = [[one.value for one in of_model if (one.contestant == base) is is_base]
                     for is_base in (True, False)]  # fmt: skip
            found.append(SpeedRatio(model, start, of_model[0].unit, sides[0], sides[1], pair_ratios(of_model)))
    return sorted((one for one in found if one.ratios), key=lambda one: (one.model, one.start.framework))


def floors_of(ratios: Sequence[SpeedRatio]) -> dict[tuple[str, str], float]:
    """Return model and framework -> the median exchange of bare MPI, in seconds."""
    return {
        (one.model, one.start.framework): statistics.median(one.exchange_medians)
        for one in ratios
        if one.start.start == FLOOR and one.timed_turns
    }
