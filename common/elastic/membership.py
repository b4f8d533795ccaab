"""This process among the ranks of an elastic run, through all changes of them."""

import gc
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from common.distributed.communicator import Communicator
from common.elastic.commit import Commit
from common.run_folder.records import now
from common.run_folder.world_changes import Cause, ElasticRecord, WorldChange


class HostsChanged(Exception):  # noqa: N818 - not an error
    """Ranks can join, or are about to be removed: all ranks leave the training together and come back."""


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """Horovod's part, as each framework has it.

    Attributes:
        rejoin: leaves Horovod and joins it again, with the ranks that are there then.
        is_lost_rank: whether an error says that another rank has ended.
        listen: has `on_hosts_updated` of an object called, from another thread, when the hosts change.
    """

    rejoin: Callable[[], Communicator]
    is_lost_rank: Callable[[BaseException], bool]
    listen: Callable[[Any], None]


@dataclass(frozen=True, kw_only=True)
class _Interruption:
    """Why and when training stopped, and what is known of the ranks after it."""

    cause: Cause
    at: float
    detect_seconds: float
    step: int
    members: Sequence[str]
    agreed_at: float = 0.0


class Membership:
    """What a process of an elastic run remembers from one set of ranks to the next.

    Attributes:
        commit: the state of the run that this process goes on with; None before its folder is open.
        commits: number of commits that this process has made.
        commit_seconds: the time they took.
        lost_seconds: from commits to the training that went on from them, of the current epoch.
        first_size: ranks of the first start, once the ranks have agreed.
        report: called with each change of the ranks, once training has gone on.
        count: returns how many updates of the run this rank has done.

    Args:
        size: number of ranks that this process started with.
    """

    def __init__(self, *, size: int) -> None:
        self.commit: Commit | None = None
        self.commits = 0
        self.commit_seconds = 0.0
        self.lost_seconds = 0.0
        self.report: Callable[[WorldChange], None] = lambda change: None
        self.count: Callable[[], int] = lambda: 0
        self._news = threading.Event()
        self._members: Sequence[str] = ()
        self._interruption: _Interruption | None = None
        self._seen_at = self._counted_until = time.time()  # the last progress; what is lost until then is counted
        self._started = self._seen_at, size
        self.first_size = size

    def run(
        self,
        train: Callable[[], None],
        *,
        hooks: Hooks,
        leave: Callable[[], None],
        join: Callable[[Communicator], None],
    ) -> None:
        """Train, and go on with the ranks that are there whenever that changes.

        Args:
            train: calls `agree`, then starts from `commit` or, without, from the beginning.
            leave: called when training has stopped, before the communicator is left.
            join: takes a new one.
        """
        hooks.listen(self)
        is_member = True
        while True:
            try:
                if not is_member:
                    join(hooks.rejoin())
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
            is_member = False
            self.count = lambda: 0
            gc.collect()  # the model that the traceback and `count` held

    def on_hosts_updated(self, timestamp: int, update: int) -> None:
        """Take note that the hosts have changed; Horovod calls this on the first rank."""
        self._news.set()

    def has_news(self) -> bool:
        """Return whether the hosts have changed since the ranks joined, as far as this rank knows."""
        return self._news.is_set()

    def take_lost_seconds(self, comm: Communicator) -> float:
        """Return `lost_seconds` of the rank that has lost most, and count anew; every rank calls this."""
        lost, self.lost_seconds = float(comm.maximum(np.array(self.lost_seconds))), 0.0
        return lost

    def counted(self) -> ElasticRecord:
        """Return how many commits this process has made, and how long they took."""
        return ElasticRecord(commits=self.commits, commit_seconds=self.commit_seconds)

    def progressed(self) -> None:
        """Note that updates have been done; after a change of the ranks report that change."""
        self._seen_at = time.time()
        if self._interruption:
            change, self._interruption = self._change(self._interruption), None
            self.report(change)

    def training_starts(self) -> None:
        """Note that training goes on: what has passed since the commit is lost."""
        if self._interruption and self.commit:
            now = time.time()
            self.lost_seconds += max(0.0, now - max(self.commit.made_at, self._counted_until))
            self._counted_until = now

    def agree(self, comm: Communicator) -> None:
        """Give all ranks the newest commit, and the list of their names; every rank calls this."""
        own = f"{platform.node()}, process {os.getpid()}"
        of_ranks = comm.allgather((own, -2 if self.commit is None else self.commit.step, self._started))
        self._members, steps, started = zip(*of_ranks, strict=True)
        _, self.first_size = min(started)
        if len(set(steps)) > 1:
            self.commit = comm.broadcast(self.commit, root=steps.index(max(steps)))
        self._news.clear()
        if self._interruption:
            self._interruption = replace(self._interruption, agreed_at=time.time())

    def _interrupted(self, cause: Cause) -> None:
        if self._interruption or not self._members:  # again, before the first update: one change; or nothing began
            return
        at = time.time()
        self._interruption = _Interruption(
            cause=cause,
            at=at,
            detect_seconds=0.0 if cause == "the hosts changed" else max(0.0, at - self._seen_at),
            step=self.count(),
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
