"""When checkpoints are written, and what is in them: at the end of every epoch, and inside it (`--checkpoint-minutes`).

Every rank calls every method; rank 0 decides when, and writes.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from common.distributed.communicator import Communicator
from common.distributed.whole_arrays import whole_arrays
from common.elastic.membership import HostsChanged, Membership
from common.model.weights import Weights
from common.run.checkpoint_schedule import CheckpointSchedule
from common.run.trainer import Trainer, TrainingState
from common.run_folder.checkpoints import Checkpoint, PartialEpoch, remove_old_checkpoints, save_checkpoint
from common.task.task import Task
from common.watchdog.board import doing


@dataclass(frozen=True)
class SavedEpoch:
    """The checkpoint of a finished epoch.

    Attributes:
        seconds: spent on checkpoints since the epoch started.
        weights_hash: of the weights in it; empty on ranks that write nothing.
    """

    seconds: float
    weights_hash: str


class Checkpointer:
    """Writes checkpoints and measures the time that takes.

    Args:
        folder: of the run, on rank 0; None on the others.
        seconds: spent on checkpoints of the current epoch before the run was resumed inside it.
        membership: keeps copies of the state in memory (`--elastic`).
    """

    def __init__(
        self,
        task: Task,
        *,
        comm: Communicator,
        folder: Path | None,
        seconds: float = 0.0,
        membership: Membership | None = None,
    ) -> None:
        self.task = task
        self.comm = comm
        self.folder = folder
        self._seconds = seconds
        self._membership = membership
        minutes = task.config.record.checkpoint_minutes
        self._schedule = None if minutes is None else CheckpointSchedule(minutes)

    def next_segment(self, steps_left: int) -> int:
        """Return the updates until a checkpoint or a commit may be due; where there are none, all that remain."""
        if self._membership:
            steps_left = min(steps_left, self.task.config.faults.commit_steps)
        if self._schedule is None:
            return steps_left
        with self._timed():
            steps: int = self.comm.broadcast(self._schedule.next_steps(steps_left))
        self._schedule.segment_starts(steps)
        return steps

    def save_if_due(self, trainer: Trainer) -> None:
        """Write a checkpoint inside the epoch if it is time.

        Raises:
            UserError: the weights differ between ranks, or the checkpoint cannot be written; on all ranks.
            HostsChanged: ranks can join, or are about to be removed; on all ranks.
        """
        if self._membership and trainer.steps_left:
            self._keep(self._inside, trainer)
        if self._schedule is None:
            return
        with self._timed():
            is_due = self._schedule.segment_ended()
            if trainer.steps_left and self.comm.broadcast(is_due):
                self._save_inside(trainer)
                self._schedule.written()

    def save_epoch(self, epoch: int, state: TrainingState, own: PartialEpoch) -> SavedEpoch:
        """Write the checkpoint of a finished epoch.

        Args:
            epoch: its number, from 1.
            state: at its end, with the same weights on all ranks.
            own: what this rank alone starts the next epoch with.

        Raises:
            UserError: the weights differ between ranks, or the checkpoint cannot be written; on all ranks.
        """
        with self._timed():
            weights = state.export_weights()
            self.comm.check_same_weights(weights, when=f"after epoch {epoch}", cut=self.task.partition.axes)
            step = self.task.steps_after(epoch)
            ranks = self.comm.allgather(own) if self.task.averaging.optimizers_differ_after(step) else []
            hashed = self._save(epoch, step, state, weights=weights, ranks=ranks)
            if self._schedule:
                self._schedule.written()
        seconds, self._seconds = self._seconds, 0.0
        return SavedEpoch(seconds, hashed)

    def epoch_is_recorded(self, trainer: Trainer) -> None:
        """Remove what the checkpoint of the last epoch replaces, and keep its end in memory.

        To be called once the epoch is in the record: a run that ends between checkpoint and record is resumed from the
        checkpoint before.

        Raises:
            HostsChanged: ranks can join, or are about to be removed; on all ranks.
        """
        with self.comm.propagate_errors("removing old checkpoints"):
            if self.folder:
                remove_old_checkpoints(self.folder, keep=self.task.config.record.keep)
        if self._membership:
            self._keep(self._at_end, trainer)

    def keep_start(self, trainer: Trainer) -> None:
        """Keep in memory what training starts from."""
        self._keep(self._at_end, trainer)

    def _at_end(self, trainer: Trainer) -> Checkpoint:
        """Return the state at the end of the trainer's epoch, or, before the first, at the start."""
        state, epoch = trainer.state, trainer.epoch
        return Checkpoint(epoch, self.task.steps_after(epoch), state.export_weights(), state.export_optimizer())

    def _inside(self, trainer: Trainer) -> Checkpoint:
        state, partial, finished = trainer.state, trainer.partial_epoch(), trainer.epoch - 1
        weights, step = state.export_weights(), self.task.steps_after(finished) + partial.steps
        own = {weight.name: weights[weight.name] for weight in self.task.spec.weights if not weight.trainable}
        ranks = self.comm.allgather(replace(partial, weights=own))
        return Checkpoint(finished, step, weights, state.export_optimizer(), ranks, self._seconds)

    def _keep(self, made: Callable[[Trainer], Checkpoint], trainer: Trainer) -> None:
        """Keep the state in memory as that from which the run goes on; then look whether ranks come or go.

        Raises:
            HostsChanged: they do; on all ranks.
        """
        membership = self._membership
        assert membership
        assert membership.commit
        started = time.perf_counter()
        with self._timed():
            membership.commit = replace(membership.commit, checkpoint=made(trainer), made_at=time.time())
        membership.commits += 1
        membership.commit_seconds += time.perf_counter() - started
        if any(self.comm.allgather(membership.has_news())):
            raise HostsChanged

    def _save_inside(self, trainer: Trainer) -> None:
        weights, partial = trainer.state.export_weights(), trainer.partial_epoch()
        finished = trainer.epoch - 1
        step = self.task.steps_after(finished) + partial.steps
        own = own_state(self.task, trainer.state, step=step)
        if not own.weights:
            names = [weight.name for weight in self.task.spec.weights if weight.trainable and weight.name in weights]
            trained = {name: weights[name] for name in names}
            when = f"after step {partial.steps} of epoch {trainer.epoch}"
            self.comm.check_same_weights(trained, when=when, cut=self.task.partition.axes)
            own = replace(own, weights={name: array for name, array in weights.items() if name not in trained})
        ranks = self.comm.allgather(replace(partial, weights=own.weights, optimizer_state=own.optimizer_state))
        self._save(finished, step, trainer.state, weights=weights, ranks=ranks)

    def _save(
        self, epoch: int, step: int, state: TrainingState, *, weights: Weights, ranks: Sequence[PartialEpoch]
    ) -> str:
        """Write a checkpoint of the whole model, of which this rank may hold a part; return the hash of its weights.

        Args:
            weights: of this rank.
        """
        optimizer = state.export_optimizer() if self.comm.data_rank == 0 else {}
        hashed = ""
        with (
            self.comm.propagate_errors("writing the checkpoint"),
            whole_arrays(weights, optimizer, partition=self.task.partition, comm=self.comm) as whole,
        ):
            if self.folder:
                checkpoint = Checkpoint(epoch, step, {}, {}, ranks, self._seconds)
                with doing("checkpoint"):
                    hashed = save_checkpoint(self.folder, checkpoint, streams=whole)
        return hashed

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - started


def own_state(task: Task, state: TrainingState, *, step: int) -> PartialEpoch:
    """Return the weights and optimizer state of this rank after an update of the run, where other ranks have others."""
    return PartialEpoch(
        weights=state.export_weights() if task.averaging.weights_differ_after(step) else {},
        optimizer_state=state.export_optimizer() if task.averaging.optimizers_differ_after(step) else {},
    )
