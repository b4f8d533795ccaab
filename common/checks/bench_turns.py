"""What the two bench workers share: what is measured, and how contestants take turns within one start of ranks.

A contestant is something that trains: a bare loop, our trainer on one rank, our trainer on all ranks. Two of them are
measured in one start, in turns (A B A B ...), so that what changes on the machine meanwhile meets both alike; every
turn of A followed by one of B is a pair. Rank 0 writes one JSON line for each turn.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from common.checks.bench_record import APART, Turn
from common.config import Config, add_onednn_option, config_from_dict
from common.distributed.communicator import Communicator
from common.distributed.launchers import CPU_EXCHANGE
from common.measurement.exchange_meter import ExchangeMeter
from common.run.epoch import Trial
from common.run.strategy import RankStrategy
from common.run_folder.environment import describe_environment
from common.task.prepare import prepare
from common.task.shares import shares_of
from common.task.task import Task

# model -> data set and images per step and rank. Data made from a seed: the same everywhere, and nothing to fetch.
TASKS = {
    "cnn": ("synthetic:40000x28x28x1x10", 64),
    "simplecnn": ("synthetic:40000x28x28x1x10", 64),
    "resnet34": ("synthetic:2000x32x32x1x10", 16),
}
CONTESTANTS = ("bare", "bare_sums", "bare_batches", "np1", "np2", "np2_each", "np2_ddp", "np2_mpi", APART)
MEMORY_BATCHES = 32  # batches that a bare loop holds in memory and goes round
TRACE_STEPS = 2  # steps of the first turn of all, which compiles and allocates and is not counted
MOST_GROWTH = 8.0  # of the steps of a turn, from one attempt to find their number to the next
POLL_SECONDS = 0.005

# Trains an epoch (number, steps) on this rank and returns the seconds it took.
Train = Callable[[int, int], float]
BuildContestant = Callable[[str, Task, Communicator, "ExchangeTimes"], Train]


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """What a worker is asked for.

    Attributes:
        contestants: the base and the one measured against it, of CONTESTANTS.
        seconds: length of a turn.
        threads: compute threads of a rank.
        onednn: as of the trainers.
        results: file to which rank 0 adds a JSON line for each turn.
    """

    models: list[str]
    contestants: list[str]
    rounds: int
    seconds: float
    threads: int
    onednn: str
    results: Path


def read_settings(arguments: Sequence[str] | None) -> BenchSettings:
    """Return the settings on a worker's command line, which `launch.bench.command` writes."""
    parser = argparse.ArgumentParser(description="Started by `python -m launch bench`.")
    parser.add_argument("--models", nargs="+", choices=TASKS, required=True)
    parser.add_argument("--contestants", nargs=2, choices=CONTESTANTS, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--results", type=Path, required=True)
    add_onednn_option(parser)
    return BenchSettings(**vars(parser.parse_args(arguments)))


def task_config(model: str, *, threads: int) -> Config:
    """Return the settings of a run on this task."""
    dataset, batch_size = TASKS[model]
    return config_from_dict(
        {
            "data": {"dataset": dataset},
            "model": {"model": model},
            "training": {"batch_size": batch_size},
            "device": {"threads": threads},
        }
    )


def with_steps(task: Task, *, size: int, epoch: int, steps: int) -> Task:
    """Return the experiment with epochs of so many steps on `size` ranks, without an end.

    An epoch has no more samples than its steps need. Ordering all samples costs the same for a short epoch as for a
    long one, and would weigh more in a short turn. The next epoch has other samples, if there are any.
    """
    shares = shares_of(task.config, [task.shares[0].samples] * size)
    samples = steps * size * shares[0].samples
    first = epoch % (len(task.training_indices) // samples) * samples
    return replace(
        task,
        shares=shares,
        training_indices=task.training_indices[first : first + samples],
        steps_per_epoch=steps,
        total_steps=steps * 10**9,
    )


def constant_rates(task: Task) -> np.ndarray:
    """Return the one learning rate of all steps: a benchmark has no schedule."""
    return np.array([task.config.optimizer.learning_rate])


def trained_epochs(strategy: RankStrategy, batches: Any) -> Train:
    """Return the epochs of either framework's training, fed by its own data path."""

    def train(epoch: int, steps: int) -> float:
        task = with_steps(batches.task, size=batches.comm.size, epoch=epoch, steps=steps)
        own = type(batches)(task, comm=batches.comm, device=batches.device)
        return Trial(task, strategy, own).train(steps, number=epoch).seconds

    return train


def alone(comm: Communicator) -> Communicator:
    """Return this process as the only rank of a run."""
    # It stays on its own device: another process of the host may compute at the same time.
    return replace(comm, rank=0, size=1, controller="none", allgather=lambda value: [value])


@dataclass
class ExchangeTimes(ExchangeMeter):
    """Also when each exchange of this rank began and ended, on a clock that all processes of a host share."""

    began: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    def send(self, count: int) -> None:
        """Count bytes; an exchange begins with its first."""
        if len(self.began) == len(self.ended):
            self.began.append(time.perf_counter())
        super().send(count)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Note the end of an exchange."""
        yield
        self.ended.append(time.perf_counter())

    def restart(self) -> None:
        """Forget what was counted and noted."""
        self.sent_bytes = 0
        self.began, self.ended = [], []


class BareAverage:
    """Averages arrays over the ranks by bare `MPI_Allreduce`, which alone is timed: the floor of an exchange.

    In pieces as large as Horovod's fusion buffer, in one place in memory for the whole training.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], *, times: ExchangeTimes) -> None:
        from mpi4py import MPI  # after the framework (see common/distributed/joining.py)

        self._ranks, self._in_place, self._times = MPI.COMM_WORLD.Dup(), MPI.IN_PLACE, times
        sizes = [math.prod(shape) for shape in shapes]
        self._flat = np.empty(sum(sizes), np.float32)
        parts = np.split(self._flat, np.cumsum(sizes)[:-1])
        self._parts = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
        most = int(CPU_EXCHANGE["HOROVOD_FUSION_THRESHOLD"]) // self._flat.itemsize
        self._pieces = np.split(self._flat, range(most, self._flat.size, most))

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """Return the averages, which the next call overwrites."""
        for part, array in zip(self._parts, arrays, strict=True):
            np.copyto(part, array)
        self._times.send(self._flat.nbytes)
        with self._times.timed():
            for piece in self._pieces:
                self._ranks.Allreduce(self._in_place, piece)
        self._flat /= self._ranks.size
        return self._parts


def measure(settings: BenchSettings, *, comm: Communicator, build: BuildContestant, onednn: bool) -> None:
    """Measure all models; every rank calls this.

    Args:
        onednn: whether it computes on the CPU of this rank.
        build: called as build(contestant, task, comm, times) on every rank; for a contestant of one rank, `comm` is
            this process alone. `times` is the meter of its exchanges.
    """
    in_force = comm.allgather("on" if onednn else "off")
    if comm.rank == 0:
        environment = asdict(describe_environment()) | {"controller": comm.controller, "threads": settings.threads}
        environment["onednn"] = in_force
        _add_line(settings.results, {"environment": environment})
    for model in settings.models:
        task = prepare(task_config(model, threads=settings.threads), ranks=comm.size)
        stage = _Stage(settings, task=task, comm=comm)
        players = [_Player(name, build, stage=stage, number=n) for n, name in enumerate(settings.contestants)]
        # The same steps for all, so that what an epoch costs once weighs alike.
        most = min(player.most_steps for player in players)
        steps = min(most, max(player.warm_up(most) for player in players))
        for number in range(settings.rounds):
            for player in players:
                player.play(number, steps=steps)


class _Stage:
    """Lets the contestants of one model take turns."""

    def __init__(self, settings: BenchSettings, *, task: Task, comm: Communicator) -> None:
        self.settings = settings
        self.task = task
        self.comm = comm
        self._turns_of_one_rank = 0
        self._marker = settings.results.with_name(f"{settings.results.name}.{task.spec.name}.turns")

    def one_rank(self, act: Callable[[], Any]) -> Any:
        """Let rank 0 act and return its result; the others sleep: to wait in a collective takes a core under MPI."""
        self._turns_of_one_rank += 1
        if self.comm.rank == 0:
            result = act()
            # As long as the number of turns done, so that no reader ever sees half a number.
            with self._marker.open("ab") as file:
                file.write(b".")
            return result
        while not self._marker.exists() or self._marker.stat().st_size < self._turns_of_one_rank:
            time.sleep(POLL_SECONDS)
        return None


class _Player:
    """A contestant with its model on the ranks that train."""

    def __init__(self, name: str, build: BuildContestant, *, stage: _Stage, number: int) -> None:
        self.name = name
        self.stage = stage
        self.size = stage.comm.size if name.startswith("np2") else 1
        # Not the epochs of the other contestant, which has just read their samples.
        self._epochs = count(1 + number, 2)
        self._times = ExchangeTimes()
        # Every rank builds every contestant, though rank 0 alone trains those of one rank: Keras numbers what is built,
        # and Horovod's ranks find each other by these names.
        joined = self.size > 1 and name != APART
        task, config = stage.task, stage.task.config
        if name == "np2_each":  # averages each gradient on its own
            task = replace(task, config=replace(config, device=replace(config.device, gradient_groups="each")))
        self._train = build(name, task, stage.comm if joined else alone(stage.comm), self._times)

    @property
    def most_steps(self) -> int:
        """Steps of an epoch that uses all samples."""
        task = self.stage.task
        return len(task.training_indices) // (task.config.training.batch_size * self.size)

    def warm_up(self, most: int) -> int:
        """Compile and allocate, then return how many steps, at most `most`, fill a turn; nothing of it is counted."""
        wanted = self.stage.settings.seconds
        steps = min(TRACE_STEPS, most)
        self._turn(steps)
        # The last of these turns has the length wanted: a slow beginning is no measure of what follows.
        while (seconds := max(self._turn(steps))) < 0.7 * wanted and steps < most:
            steps = min(most, max(steps + 1, round(steps * min(MOST_GROWTH, wanted / seconds))))
        return steps

    def play(self, number: int, *, steps: int) -> None:
        """Take one turn and write it down."""
        self._times.restart()
        cpu_before = time.process_time()
        rank_seconds = [round(seconds, 6) for seconds in self._turn(steps)]
        cpu_seconds = round(time.process_time() - cpu_before, 6)
        exchanges, wait_seconds = self._exchanges()
        if self.stage.comm.rank == 0:
            task = self.stage.task
            turn = Turn(
                model=task.spec.name,
                contestant=self.name,
                round=number,
                ranks=self.size,
                steps=steps,
                images=steps * task.config.training.batch_size * self.size,
                seconds=max(rank_seconds),
                cpu_seconds=cpu_seconds,
                exchanges=exchanges,
                wait_seconds=wait_seconds,
                sent_bytes=self._times.sent_bytes,
                rank_seconds=rank_seconds,
            )
            _add_line(self.stage.settings.results, asdict(turn))

    def _turn(self, steps: int) -> list[float]:
        """Train an epoch; return the seconds of each rank that trains, the same on all ranks."""
        epoch, comm = next(self._epochs), self.stage.comm
        if self.size > 1:
            comm.allgather(None)  # all start at once
            return comm.allgather(self._train(epoch, steps))
        return [comm.broadcast(self.stage.one_rank(lambda: self._train(epoch, steps)))]

    def _exchanges(self) -> tuple[list[float], float]:
        """Return the seconds of each exchange, and those that ranks waited before one (see `Turn`)."""
        began, ended = (np.array(self.stage.comm.allgather(times)) for times in (self._times.began, self._times.ended))
        all_began = began.max(axis=0)
        exchanges: list[float] = (ended.max(axis=0) - all_began).round(7).tolist()
        return exchanges, float((all_began - began.mean(axis=0)).mean().round(7)) if exchanges else 0.0


def _add_line(path: Path, record: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
