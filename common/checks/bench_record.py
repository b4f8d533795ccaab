"""`bench-<time>.json`: the turns of a benchmark.

`python -m launch bench` writes it, `python -m analysis bench` shows it.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from common.json_records import result_file
from common.run_folder.environment import Environment

BENCH_FILE = "bench.json"  # among the committed results
APART = "np2_apart"  # all ranks at once, none knowing of the others
COMMAND = "command"  # the model of a turn that is a command, of which the seconds or the memory are compared
BUSY_SHARE = 0.3  # load average per core from which other programs disturb a measurement


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn of one contestant.

    Attributes:
        images: of all ranks.
        seconds: of the slowest rank.
        cpu_seconds: of all threads of rank 0. It leaves out the time that other programs take, so on a busy machine it
            is more reliable than `seconds` where one rank trains. 0 of a command.
        exchanges: seconds of each exchange of gradients, from the last rank that had them to the last that had their
            averages. Empty where none were timed.
        wait_seconds: before each of them, until the last rank had its gradients; mean over ranks and exchanges.
        sent_bytes: that rank 0 handed to these exchanges.
        rank_seconds: of each rank that trains.
        memory_bytes: of the second rank, PSS; 0 where it is not what is compared.
    """

    model: str
    contestant: str
    round: int
    ranks: int
    steps: int
    images: int
    seconds: float
    cpu_seconds: float
    exchanges: list[float] = field(default_factory=list)
    wait_seconds: float = 0.0
    sent_bytes: int = 0
    rank_seconds: list[float] = field(default_factory=list)
    memory_bytes: int = 0

    @property
    def unit(self) -> str:
        """Of what is compared: throughput, of a command its seconds or its memory."""
        if self.model != COMMAND:
            return "images/s"
        return "MB" if self.memory_bytes else "s"

    @property
    def value(self) -> float:
        """What is compared, in its unit; throughput = images of all ranks / seconds of the slowest rank."""
        if self.model != COMMAND:
            return self.images / self.seconds
        return self.memory_bytes / 1e6 if self.memory_bytes else self.seconds


@dataclass(frozen=True, kw_only=True)
class MeasuredStart:
    """What one start of ranks measured: the turns of two contestants, the base first, per model.

    Attributes:
        start: its name on the command line.
        load_average_before: over 1, 5 and 15 minutes.
        environment: of rank 0 (of commands, its `source_revision` alone), with the controller, the threads per rank
            and `onednn`: on or off, of each rank.
    """

    framework: str
    start: str
    title: str
    load_average_before: tuple[float, float, float]
    environment: dict[str, Any]
    turns: list[Turn]


@dataclass(frozen=True, kw_only=True)
class BenchRecord:
    """A benchmark; `finished` is None while it runs."""

    schema_version: int
    started: str
    settings: dict[str, Any]
    environment: Environment
    threads_per_rank: int
    load_average_before: tuple[float, float, float]
    starts: list[MeasuredStart] = field(default_factory=list)
    finished: str | None = None

    @property
    def busy(self) -> bool:
        """Whether other programs kept the machine busy when the benchmark started."""
        return self.load_average_before[0] > BUSY_SHARE * self.environment.cores

    @property
    def onednn(self) -> str:
        """What was asked of it, as of the trainers; before it could be asked for, the framework decided."""
        return str(self.settings.get("onednn", "framework"))

    @property
    def onednn_in_force(self) -> str | None:
        """Whether it computed: on, off, or "on and off" of different ranks or frameworks; None: it is not recorded."""
        states = {state for start in self.starts for state in start.environment.get("onednn", ())}
        return " and ".join(sorted(states, reverse=True)) or None


BENCHES = result_file(BenchRecord, command="python -m launch bench")


def shown_value(values: Sequence[float], unit: str) -> str:
    """Return the median with its unit."""
    return f"{statistics.median(values):{'.2f' if unit == 's' else ',.0f'}} {unit}"


def pair_ratios(turns: Sequence[Turn]) -> list[float]:
    """Return the value of the measured contestant over that of the base, one ratio for each round that has both.

    Args:
        turns: of one model in one start; the base takes the first.
    """
    base = turns[0].contestant
    values = {(turn.contestant == base, turn.round): turn.value for turn in turns}
    rounds = sorted({turn.round for turn in turns})
    return [
        values[False, number] / values[True, number]
        for number in rounds
        if (True, number) in values and (False, number) in values
    ]
