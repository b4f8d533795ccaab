"""A session of a run whose ranks come and go (`--elastic`): it may begin in the middle of a run."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.config import Config, FaultConfig
from common.distributed.communicator import Communicator
from common.distributed.console import Console
from common.elastic.commit import Commit, shared_anew
from common.elastic.membership import Membership
from common.run.checkpointer import Checkpointer
from common.run.console_report import onednn_notes, warning
from common.run.measured import Measured
from common.run.opening import reopen_run_folder
from common.run.recorder import NullRecorder, RunRecorder
from common.run.resume import recorded_first_copies
from common.run.session import Session
from common.run.trainer import Trainer
from common.run_folder.checkpoints import Checkpoint
from common.run_folder.records import World
from common.run_folder.world_changes import ElasticRecord
from common.task.task import Task
from common.watchdog.board import announce
from common.watchdog.watch import stop_watch, watch_startup


class ElasticSession(Session):
    """A session that goes on from what this process, or another rank, has kept of the run."""

    membership: Membership

    def __init__(self, *, framework: str, comm: Communicator, console: Console) -> None:
        super().__init__(framework=framework, comm=comm, console=console)
        # Of the start, also if a rank ended before all had met: what Horovod changes then is not seen here.
        self.membership = Membership(size=int(os.environ.get("HOROVOD_SIZE", comm.size)))

    def first_copies(self, config: Config) -> int | None:
        """Return how many ranks the run was first started with; None: as many as there are.

        All ranks call this first, and learn where the run stands if it has begun.
        """
        self.membership.agree(self.comm)
        if self.membership.commit:
            return self.membership.commit.first_copies
        recorded = None
        with self.comm.propagate_errors("looking at the run folder"):
            if self.comm.rank == 0:
                recorded = recorded_first_copies(config, framework=self.framework, report=self.console.line)
        copies: int = self.comm.broadcast(recorded) or self.membership.first_size
        return copies

    def start(self, task: Task, **device: Any) -> Checkpoint | None:
        """Open the run folder, or go on with that of the ranks before; return the checkpoint to go on from.

        Args:
            device: as for any session.

        Raises:
            UserError: the run folder cannot be opened; on all ranks.
        """
        commit = self.membership.commit
        checkpoint = self._go_on(task, commit, **device) if commit else super().start(task, **device)
        if checkpoint and checkpoint.ranks:
            before = task.shared_by(len(checkpoint.ranks))
            checkpoint = shared_anew(checkpoint, before=before, after=task.shares)
        if commit is None:
            folder: Path = self.comm.broadcast(self.recorder.folder)
            # The run can go on even if a rank ends before the first update.
            self.membership.commit = Commit(
                folder=folder, first_copies=task.first_copies, checkpoint=checkpoint, made_at=time.time()
            )
        recorder, onednn = self.recorder, self.world.onednn
        self.membership.report = lambda change: recorder.add_change(replace(change, onednn=onednn))
        return checkpoint

    def leave(self, config: FaultConfig) -> None:
        """Watch this process alone, as at its start: which ranks there will be is not known yet."""
        stop_watch()
        watch_startup(config)
        announce("joining the others")

    def rejoined(self, comm: Communicator) -> None:
        """Go on as a rank of another communicator, without its record until the ranks have agreed."""
        self.recorder.release()
        self.comm, self.console = comm, self.console.of(comm)
        self.recorder = NullRecorder()
        announce("preparing data")

    def is_complete(self, *, step: int) -> bool:
        """Return whether nothing is left to train; a process looks at its host only once."""
        if self.phases.current == "startup":
            return super().is_complete(step=step)
        return bool(self.comm.broadcast(self.recorder.should_stop(step)))

    def start_training(self, trainer: Trainer, checkpoint: Checkpoint | None) -> Checkpointer:
        """End start-up; keep in memory what training starts from; return what writes the checkpoints."""
        if self.phases.current == "startup":
            self.phases.startup_ends()
        self.membership.training_starts()
        checkpointer = self._checkpointer(checkpoint)
        if checkpoint is None:
            checkpointer.keep_start(trainer)
        self.membership.count = lambda: (
            self.task.steps_after(trainer.epoch - 1) + trainer.updates_done if trainer.epoch else 0
        )
        return checkpointer

    def progress_bar(self, epoch: int, *, done: int) -> Callable[[int], object]:
        """Return a function that takes a number of steps done, for the progress bar and for `membership`."""
        advance = super().progress_bar(epoch, done=done)

        def advance_and_note(steps: int) -> None:
            advance(steps)
            self.membership.progressed()

        return advance_and_note

    def finish(self, trainer: Trainer, test: Measured, *arguments: Any, **options: Any) -> None:
        """Record the end of the run, and before it a change of the ranks after its last update.

        What was lost after the last epoch's record is time of the test.
        """
        self.membership.progressed()
        test = replace(test, seconds=test.seconds + self._lost_seconds())
        super().finish(trainer, test, *arguments, **options)

    def _go_on(self, task: Task, commit: Commit, **device: Any) -> Checkpoint | None:
        """Open the record of a run that other ranks began; return what they have kept."""
        self.task = task
        self._on_gpu = device["gpu"] is not None
        self._start_watch()
        self.world = self._world(**device)
        for note in onednn_notes(task.config.model.onednn, self.world.onednn or []):
            self.console.line(warning(note))
        with self.comm.propagate_errors("opening the run folder"):
            if self.comm.rank == 0:
                writer = reopen_run_folder(commit.folder, epochs=commit.checkpoint.epoch if commit.checkpoint else 0)
                self.recorder = RunRecorder(writer, task=task, console=self.console)
        return commit.checkpoint

    def _world(self, **device: Any) -> World:
        """Return the ranks there are, of which a host may have fewer than places."""
        world, here = super()._world(**device), platform.node()
        on_host = self.comm.allgather(here).count(here)
        too_many = on_host * device["threads"] > self.comm.cores.total
        return replace(world, local_size=on_host, oversubscribed=too_many)

    def _lost_seconds(self) -> float:
        return self.membership.take_lost_seconds(self.comm)

    def _commits(self) -> ElasticRecord:
        return self.membership.counted()
