"""Ranks that come and go (`--elastic`): what this process remembers from one set of ranks to the next.

Not here: Horovod's part (`distributed.py` of each framework folder), and what starts the ranks
(`launch/starting/elastic.py`).
"""

import gc
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from common.config import Config
from common.distributed.communicator import Communicator
from common.distributed.horovod_module import listen_to_hosts
from common.measurement.timing import Timer
from common.run.checkpoints import Checkpoints, at_end, inside
from common.run.commit import Commit, shared_anew
from common.run.epoch import Epoch, Listener
from common.run.resume import recorded_first_copies
from common.run.strategy import RankStrategy
from common.run_folder.checkpoints import Checkpoint, PartialEpoch
from common.run_folder.records import now
from common.run_folder.world_changes import Cause, ElasticRecord, WorldChange
from common.task.task import Task


class HostsChanged(Exception):  # noqa: N818 - not an error
    """Ranks can join, or are about to be removed: all ranks leave the training together and come back."""


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """Horovod's part, as each framework has it.

    Attributes:
        horovod: its module for the framework.
        rejoin: leaves Horovod and joins it again, with the ranks that are there then.
        is_lost_rank: whether an error says that another rank has ended.
    """

    horovod: Any
    rejoin: Callable[[Config], Communicator]
    is_lost_rank: Callable[[BaseException], bool]


@dataclass(frozen=True, kw_only=True)
class _Interruption:
    """Why and when training stopped, and what is known of the ranks after it."""

    cause: Cause
    at: float
    detect_seconds: float
    step: int
    members: Sequence[str]
    agreed_at: float = 0.0


class Elastic(Listener):
    """Keeps the state of the run in memory, and goes on from it with the ranks that are there.

    Attributes:
        commit: the state that this process goes on with; None before its folder is open.

    Args:
        size: number of ranks that this process started with.
    """

    def __init__(self, *, size: int) -> None:
        self.commit: Commit | None = None
        self._report: Callable[[WorldChange], None] = lambda change: None
        self._commits, self._commit_timer, self._lost_seconds = 0, Timer(), 0.0
        self._news = threading.Event()
        self._members: Sequence[str] = ()
        self._epoch: Epoch | None = None
        self._interruption: _Interruption | None = None
        self._has_trained = False
        self._seen_at = self._counted_until = time.time()  # the last progress; what is lost until then is counted
        self._started = self._seen_at, size

    def run(
        self,
        train: Callable[[], None],
        *,
        hooks: Hooks,
        leave: Callable[[], None],
        join: Callable[[], None],
    ) -> None:
        """Train, and go on with the ranks that are there whenever that changes.

        Args:
            train: calls `agree`, then starts from `commit` or, without, from the beginning.
            leave: called when training has stopped, before the communicator is left.
            join: joins the ranks that are there then.
        """
        listen_to_hosts(self)
        is_member = True
        while True:
            try:
                if not is_member:
                    join()
                    is_member = True
                return train()
            except HostsChanged:
                self._interrupted("the hosts changed")
            except Exception as error:
                if not hooks.is_lost_rank(error):
                    raise
                self._interrupted("a rank ended")
            if is_member:
                leave()
            is_member, self._epoch = False, None
            gc.collect()  # the model that the traceback and the epoch held

    def on_hosts_updated(self, timestamp: int, update: int) -> None:
        """Take note that the hosts have changed; Horovod calls this on the first rank."""
        self._news.set()

    def first_copies(self, config: Config, *, comm: Communicator, framework: str, report: Callable[[str], None]) -> int:
        """Return how many ranks the run was first started with; all ranks call this first, and agree where it stands.

        Args:
            report: called with one line if this takes long.
        """
        first_size = self.agree(comm)
        if self.commit:
            return self.commit.first_copies
        recorded = None
        with comm.propagate_errors("looking at the run folder"):
            if comm.rank == 0:
                recorded = recorded_first_copies(config, framework=framework, report=report)
        copies: int = comm.broadcast(recorded) or first_size
        return copies

    def begin(self, task: Task, *, folder: Path, checkpoint: Checkpoint | None) -> None:
        """Keep what the run begins with, if nothing is kept: it goes on even if a rank ends before the first update."""
        if self.commit is None:
            self.commit = Commit(
                folder=folder, first_copies=task.first_copies, checkpoint=checkpoint, made_at=time.time()
            )

    def opened(
        self,
        task: Task,
        *,
        folder: Path | None,
        checkpoint: Checkpoint | None,
        report: Callable[[WorldChange], None],
    ) -> Checkpoint | None:
        """Return what these ranks go on from, once the folder of the run is open.

        Args:
            checkpoint: of other ranks; None: the run starts.
            report: called with each change of the ranks, once training has gone on.
        """
        if checkpoint and checkpoint.ranks:
            before = task.shared_by(len(checkpoint.ranks))
            checkpoint = shared_anew(checkpoint, before=before, after=task.shares)
        folder = self._comm.broadcast(folder)
        assert folder
        self.begin(task, folder=folder, checkpoint=checkpoint)
        self._report = report
        return checkpoint

    def has_news(self) -> bool:
        """Return whether the hosts have changed since the ranks joined, as far as this rank knows."""
        return self._news.is_set()

    def agree(self, comm: Communicator) -> int:
        """Give all ranks the newest commit, and the list of their names; return the ranks of the first start."""
        self._comm = comm
        own = f"{platform.node()}, process {os.getpid()}"
        of_ranks = comm.allgather((own, -2 if self.commit is None else self.commit.step, self._started))
        self._members, steps, started = zip(*of_ranks, strict=True)
        self._seen_at = time.time()
        _, first_size = min(started)
        if len(set(steps)) > 1:
            self.commit = comm.broadcast(self.commit, root=steps.index(max(steps)))
        self._news.clear()
        if self._interruption:
            self._interruption = replace(self._interruption, agreed_at=time.time())
        return int(first_size)

    def goes_on(self, checkpoints: Checkpoints, first: RankStrategy | None) -> None:
        """Training goes on, or starts: then keep its start. What has passed since the commit is lost, but for start-up.

        Args:
            first: the strategy of a run that starts; None: it goes on.
        """
        self._checkpoints = checkpoints
        if self._interruption and self.commit and self._has_trained:
            at = time.time()
            self._lost_seconds += max(0.0, at - max(self.commit.made_at, self._counted_until))
            self._counted_until = at
        self._has_trained = True
        if first:
            start = Checkpoint(0, 0, first.weights(), first.optimizer_state())
            self._keep(lambda: start)

    def epoch_starts(self, epoch: Epoch) -> None:
        """Count the updates of this epoch."""
        self._epoch = epoch

    def most_updates(self, epoch: Epoch, left: int) -> int:
        """Return the updates until a commit."""
        return min(left, epoch.task.config.faults.commit_steps)

    def updated(self, updates: int) -> None:
        """Note that updates have been done; after a change of the ranks report that change."""
        self._seen_at = time.time()
        if self._interruption:
            change, self._interruption = self._change(self._interruption), None
            self._report(change)

    def paused(self, epoch: Epoch) -> None:
        """Keep the state inside an epoch.

        Raises:
            HostsChanged: ranks can join, or are about to be removed; on all ranks.
        """
        if epoch.steps_left:
            seconds = self._checkpoints.timer.seconds
            self._keep(lambda: inside(epoch, comm=self._comm, seconds=seconds, in_memory=True))

    def epoch_recorded(self, epoch: Epoch) -> None:
        """Keep the state at the end of an epoch.

        Raises:
            HostsChanged: ranks can join, or are about to be removed; on all ranks.
        """
        self._keep(lambda: at_end(epoch, PartialEpoch(), comm=self._comm, in_memory=True))

    def take_lost_seconds(self) -> float:
        """Return the time from commits to the training that went on from them, of the rank that has lost most.

        Every rank calls this, and counts anew.
        """
        lost, self._lost_seconds = float(self._comm.maximum(np.array(self._lost_seconds))), 0.0
        return lost

    def counted(self) -> ElasticRecord:
        """Return how many commits this process has made, and how long they took."""
        return ElasticRecord(commits=self._commits, commit_seconds=self._commit_timer.seconds)

    def _keep(self, made: Callable[[], Checkpoint]) -> None:
        """Keep a state as that from which the run goes on; then look whether ranks come or go."""
        assert self.commit
        with self._checkpoints.timer.timed(), self._commit_timer.timed():
            self.commit = replace(self.commit, checkpoint=made(), made_at=time.time())
        self._commits += 1
        if any(self._comm.allgather(self.has_news())):
            raise HostsChanged

    def _interrupted(self, cause: Cause) -> None:
        if self._interruption or not self._members:  # again, before the first update: one change; or nothing began
            return
        at = time.time()
        self._interruption = _Interruption(
            cause=cause,
            at=at,
            detect_seconds=0.0 if cause == "the hosts changed" else max(0.0, at - self._seen_at),
            step=self._epoch.updates_made if self._epoch else 0,
            members=self._members,
        )

    def _change(self, interruption: _Interruption) -> WorldChange:
        before, after, step = interruption.members, self._members, self.commit.step if self.commit else 0
        return WorldChange(
            at=now(),
            cause=interruption.cause,
            step=max(step, 0),
            ranks_before=len(before),
            ranks_after=len(after),
            ended=[name for name in before if name not in after],
            joined=[name for name in after if name not in before],
            lost_steps=max(0, interruption.step - max(step, 0)),
            detect_seconds=interruption.detect_seconds,
            agree_seconds=max(0.0, interruption.agreed_at - interruption.at),
            resume_seconds=max(0.0, time.time() - interruption.agreed_at),
        )
