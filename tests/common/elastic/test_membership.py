"""A process that goes on with other ranks: what it remembers, what it reports, and whose state counts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_ranks import alone, run_ranks

from common.distributed.communicator import Communicator
from common.elastic.commit import Commit
from common.elastic.membership import Hooks, HostsChanged, Membership
from common.run_folder.checkpoints import Checkpoint
from common.run_folder.world_changes import WorldChange


class LostRankError(Exception):
    """Another rank has ended."""


def commit(step: int) -> Commit:
    """The state after an update."""
    return Commit(folder=Path("run"), first_size=2, checkpoint=Checkpoint(0, step, {"w": np.ones(1)}, {}), made_at=0.0)


@dataclass
class Script:
    """A training that ends in these ways, one start after the other; the last one comes to its end."""

    errors: list[Exception]
    membership: Membership = field(default_factory=Membership)
    comm: Communicator = field(default_factory=alone)
    starts: int = 0
    joined: int = 0

    def train(self) -> None:
        self.membership.agree(self.comm)
        self.starts += 1
        if self.starts <= len(self.errors):
            self.membership.commit = commit(10 * self.starts)
            self.membership.count = lambda: 10 * self.starts + 3
            raise self.errors[self.starts - 1]
        self.membership.training_starts()
        self.membership.progressed()
        self.membership.progressed()

    def run(self, *, changed: Callable[[Any], None] = lambda listener: None) -> list[WorldChange]:
        reported: list[WorldChange] = []
        self.membership.report = reported.append
        hooks = Hooks(rejoin=alone, is_lost_rank=lambda error: isinstance(error, LostRankError), listen=changed)
        self.membership.run(self.train, hooks=hooks, join=self._join)
        return reported

    def _join(self, comm: Communicator) -> None:
        self.joined += 1


def test_training_goes_on_after_a_lost_rank_and_reports_it_once() -> None:
    script = Script([LostRankError()])
    (change,) = script.run()
    assert (script.starts, script.joined) == (2, 1)
    assert (change.cause, change.step, change.lost_steps) == ("a rank ended", 10, 3)
    assert (change.ranks_before, change.ranks_after) == (1, 1)
    assert min(change.detect_seconds, change.agree_seconds, change.resume_seconds) >= 0
    assert script.membership.lost_seconds > 0


def test_ranks_that_end_before_the_next_update_are_one_change() -> None:
    script = Script([LostRankError(), LostRankError(), HostsChanged()])
    (change,) = script.run()
    assert (script.starts, script.joined) == (4, 3)
    assert (change.cause, change.step) == ("a rank ended", 30)


def test_an_error_of_another_kind_is_not_survived() -> None:
    script = Script([ZeroDivisionError()])
    with pytest.raises(ZeroDivisionError):
        script.run()
    assert script.joined == 0


def test_news_of_hosts_is_forgotten_once_the_ranks_have_met() -> None:
    heard: list[Any] = []
    script = Script([HostsChanged()])
    (change,) = script.run(changed=heard.append)
    assert (change.cause, change.detect_seconds) == ("the hosts changed", 0.0)
    heard[0].on_hosts_updated(0, 1)
    assert script.membership.has_news()
    script.membership.agree(alone())
    assert not script.membership.has_news()


def test_the_newest_state_of_all_ranks_is_everybodys() -> None:
    def meet(comm: Communicator) -> int:
        membership = Membership()
        membership.commit = {0: commit(5), 1: commit(6), 2: None}[comm.rank]
        membership.agree(comm)
        assert membership.commit
        return membership.commit.step

    assert run_ranks(3, meet) == [6, 6, 6]
