"""When checkpoints are written, and what is in them: at the end of every epoch, and inside it (`--checkpoint-minutes`).

Every rank calls every method; rank 0 decides when, and writes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from common.distributed.communicator import Communicator
from common.distributed.whole_arrays import whole_arrays
from common.measurement.timing import Timer
from common.run.epoch import Epoch, Listener
from common.run_folder.checkpoints import Checkpoint, PartialEpoch, remove_old_checkpoints, save_checkpoint
from common.task.task import Task
from common.watchdog.board import doing

# The first update of a run takes memory and builds graphs; it alone must not decide how long other stretches are.
GROWTH = 8


@dataclass(frozen=True)
class SavedEpoch:
    """The checkpoint of a finished epoch.

    Attributes:
        seconds: spent on checkpoints since the epoch started.
        weights_hash: of the weights in it; empty on ranks that write nothing.
    """

    seconds: float
    weights_hash: str


class Schedule:
    """Decides when checkpoints inside an epoch are due. Rank 0 asks, all ranks follow.

    Args:
        minutes: from the end of a checkpoint to the next one.
    """

    def __init__(self, minutes: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_seconds = 60 * minutes
        self._clock = clock
        self._written_at = self._began_at = clock()
        self._seconds_per_update: float | None = None
        self._most_updates = 1

    def written(self) -> None:
        """Restart the interval: a checkpoint has been written."""
        self._written_at = self._clock()

    def next_updates(self, left: int) -> int:
        """Return the updates until a checkpoint may be due, of those left in the epoch."""
        if self._seconds_per_update is None:
            return 1
        wanted = self._seconds_left() / max(self._seconds_per_update, 1e-9)
        return round(min(max(1.0, wanted), self._most_updates, left))

    def begin(self) -> None:
        """Start timing updates."""
        self._began_at = self._clock()

    def end(self, updates: int) -> bool:
        """Learn from the updates that have been made since; return whether a checkpoint is due."""
        self._seconds_per_update = (self._clock() - self._began_at) / updates
        self._most_updates = GROWTH * updates
        return self._seconds_left() <= self._seconds_per_update / 2

    def _seconds_left(self) -> float:
        return self._interval_seconds - (self._clock() - self._written_at)


class Checkpoints(Listener):
    """Writes checkpoints and measures the time that takes.

    Args:
        folder: of the run, on rank 0; None on the others.
        seconds: spent on checkpoints of the current epoch before the run was resumed inside it.
    """

    def __init__(self, task: Task, *, comm: Communicator, folder: Path | None, seconds: float = 0.0) -> None:
        self.task = task
        self.comm = comm
        self.folder = folder
        self.timer = Timer(seconds)
        minutes = task.config.record.checkpoint_minutes
        self._schedule = None if minutes is None else Schedule(minutes)

    def most_updates(self, epoch: Epoch, left: int) -> int:
        """Return the updates until a checkpoint may be due; where there are none, all that remain."""
        if self._schedule is None:
            return left
        with self.timer.timed():
            updates: int = self.comm.broadcast(self._schedule.next_updates(left))
        self._first = epoch.done
        self._schedule.begin()
        return updates

    def paused(self, epoch: Epoch) -> None:
        """Write a checkpoint inside the epoch if it is time.

        Raises:
            UserError: the weights differ between ranks, or the checkpoint cannot be written; on all ranks.
        """
        if self._schedule is None:
            return
        with self.timer.timed():
            is_due = self._schedule.end(epoch.done - self._first)
            if epoch.steps_left and self.comm.broadcast(is_due):
                self._write(inside(epoch, comm=self.comm, seconds=self.timer.seconds))
                self._schedule.written()

    def save(self, epoch: Epoch, own: PartialEpoch) -> SavedEpoch:
        """Write the checkpoint of a finished epoch.

        Args:
            own: what this rank alone starts the next epoch with.

        Raises:
            UserError: the weights differ between ranks, or the checkpoint cannot be written; on all ranks.
        """
        with self.timer.timed():
            hashed = self._write(at_end(epoch, own, comm=self.comm))
            if self._schedule:
                self._schedule.written()
        timer, self.timer = self.timer, Timer()
        return SavedEpoch(timer.seconds, hashed)

    def epoch_recorded(self, epoch: Epoch) -> None:
        """Remove what the checkpoint of the epoch replaces.

        Only now: a run that ends between checkpoint and record is resumed from the checkpoint before.
        """
        with self.comm.propagate_errors("removing old checkpoints"):
            if self.folder:
                remove_old_checkpoints(self.folder, keep=self.task.config.record.keep)

    def _write(self, checkpoint: Checkpoint) -> str:
        """Write a checkpoint of the whole model, of which this rank may hold a part; return the hash of its weights."""
        hashed = ""
        groups = checkpoint.weights, checkpoint.optimizer_state
        with (
            self.comm.propagate_errors("writing the checkpoint"),
            whole_arrays(*groups, partition=self.task.partition, comm=self.comm) as whole,
        ):
            if self.folder:
                with doing("checkpoint"):
                    hashed = save_checkpoint(self.folder, checkpoint, streams=whole)
        return hashed


def at_end(epoch: Epoch, own: PartialEpoch, *, comm: Communicator, in_memory: bool = False) -> Checkpoint:
    """Return the state of the run after an epoch.

    Args:
        own: what this rank alone starts the next epoch with.
        in_memory: every rank keeps all of it, and weights are not compared.

    Raises:
        UserError: the weights differ between ranks; on all ranks.
    """
    task, strategy = epoch.task, epoch.strategy
    weights = strategy.weights()
    if not in_memory:
        comm.check_same_weights(weights, when=f"after epoch {epoch.number}", cut=task.partition.axes)
    ranks = comm.gather_states(own)
    optimizer = strategy.optimizer_state() if in_memory or comm.data_rank == 0 else {}
    ranks = ranks if any(rank.has_arrays for rank in ranks) else []
    return Checkpoint(epoch.number, task.steps_after(epoch.number), weights, optimizer, ranks)


def inside(epoch: Epoch, *, comm: Communicator, seconds: float, in_memory: bool = False) -> Checkpoint:
    """Return the state of the run inside an epoch, with what each rank alone has; otherwise as `at_end`.

    Args:
        seconds: spent on checkpoints since the epoch started.
    """
    task, strategy = epoch.task, epoch.strategy
    own = strategy.own_state(epoch.step)
    weights = own.weights or strategy.weights()
    if not own.weights:
        trained = {one.name: weights[one.name] for one in task.spec.weights if one.trainable and one.name in weights}
        if not in_memory:
            when = f"after step {epoch.done} of epoch {epoch.number}"
            comm.check_same_weights(trained, when=when, cut=task.partition.axes)
        own = replace(own, weights={name: array for name, array in weights.items() if name not in trained})
    ranks = comm.gather_states(epoch.partial(own))
    optimizer = {}
    if in_memory or comm.data_rank == 0:
        optimizer = own.optimizer_state or strategy.optimizer_state()
    if in_memory:  # the same on all ranks, which may go on without the first
        weights = weights | ranks[0].weights
    return Checkpoint(epoch.number - 1, epoch.step, weights, optimizer, ranks, seconds)
