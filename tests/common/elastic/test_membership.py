"""A process that goes on with other ranks: what it remembers, what it reports, and whose state counts."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from fake_ranks import alone, run_ranks

from common.distributed.communicator import Communicator
from common.elastic.commit import Commit
from common.elastic.membership import Hooks, HostsChanged, Membership
from common.run_folder.checkpoints import Checkpoint


class LostRankError(Exception):
    """Another rank has ended."""


def commit(step):
    """The state after an update."""
    return Commit(folder=Path("run"), first_size=2, checkpoint=Checkpoint(0, step, {"w": np.ones(1)}, {}), made_at=0.0)


@dataclass
class Script:
    """A training that ends in these ways, one start after the other; the last one comes to its end."""

    errors: list[Exception]
    membership: Membership = field(default_factory=lambda: Membership(size=1))
    comm: Communicator = field(default_factory=alone)
    commits: int = 9
    makes_updates: bool = False
    starts: int = 0
    joined: int = 0
    left: int = 0

    def train(self):
        self.membership.agree(self.comm)
        self.starts += 1
        if self.starts <= len(self.errors):
            if self.starts <= self.commits:
                self.membership.commit = commit(10 * self.starts)
            self.membership.training_starts()
            if self.makes_updates:
                self.membership.progressed()
            self.membership.count = lambda: 10 * min(self.starts, self.commits) + self.starts + 2
            raise self.errors[self.starts - 1]
        self.membership.training_starts()
        self.membership.progressed()
        self.membership.progressed()

    def run(self, *, changed=lambda listener: None):
        reported = []
        self.membership.report = reported.append
        hooks = Hooks(rejoin=alone, is_lost_rank=lambda error: isinstance(error, LostRankError), listen=changed)
        self.membership.run(self.train, hooks=hooks, leave=self._leave, join=self._join)
        return reported

    def _leave(self):
        assert self.left == self.joined  # once for each time
        self.left += 1

    def _join(self, comm):
        self.joined += 1


def test_training_goes_on_after_a_lost_rank_and_reports_it_once():
    script = Script([LostRankError()])
    (change,) = script.run()
    assert (script.starts, script.joined) == (2, 1)
    assert (change.cause, change.step, change.lost_steps) == ("a rank ended", 10, 3)
    assert (change.ranks_before, change.ranks_after) == (1, 1)
    assert min(change.detect_seconds, change.agree_seconds, change.resume_seconds) >= 0
    assert script.membership.lost_seconds > 0


def test_ranks_that_end_before_the_next_update_are_one_change():
    script = Script([LostRankError(), LostRankError(), HostsChanged()])
    (change,) = script.run()
    assert (script.starts, script.joined) == (4, 3)
    assert (change.cause, change.step) == ("a rank ended", 30)


def test_an_error_of_another_kind_is_not_survived():
    script = Script([ZeroDivisionError()])
    with pytest.raises(ZeroDivisionError):
        script.run()
    assert script.joined == 0


def test_news_of_hosts_is_forgotten_once_the_ranks_have_met():
    heard = []
    script = Script([HostsChanged()])
    (change,) = script.run(changed=heard.append)
    assert (change.cause, change.detect_seconds) == ("the hosts changed", 0.0)
    heard[0].on_hosts_updated(0, 1)
    assert script.membership.has_news()
    script.membership.agree(alone())
    assert not script.membership.has_news()


def test_the_newest_state_of_all_ranks_is_everybodys():
    def meet(comm):
        membership = Membership(size=1)
        membership.commit = {0: commit(5), 1: commit(6), 2: None}[comm.rank]
        membership.agree(comm)
        assert membership.commit
        return membership.commit.step

    assert run_ranks(3, meet) == [6, 6, 6]


def test_of_two_faults_without_a_commit_between_each_counts_its_own():
    script = Script([LostRankError(), LostRankError()], commits=1, makes_updates=True)
    began = time.time()
    script.membership.commit = commit(0)
    changes = script.run()
    assert [(one.step, one.lost_steps) for one in changes] == [(10, 3), (10, 4)]
    assert script.membership.lost_seconds <= time.time() - began  # what was lost twice counts once


def test_ranks_that_end_before_the_first_meeting_are_no_change_and_keep_the_first_size():
    membership = Membership(size=3)
    starts = 0

    def train():
        nonlocal starts
        starts += 1
        if starts == 1:
            raise LostRankError
        membership.agree(alone())
        membership.progressed()

    reported = []
    membership.report = reported.append
    hooks = Hooks(rejoin=alone, is_lost_rank=lambda error: isinstance(error, LostRankError), listen=lambda one: None)
    membership.run(train, hooks=hooks, leave=lambda: None, join=lambda comm: None)
    assert (starts, reported, membership.first_size) == (2, [], 3)


def test_the_size_of_the_first_start_is_that_of_the_ranks_that_began():
    first = Membership(size=2)

    def meet(comm):
        membership = first if comm.rank == 1 else Membership(size=3)
        membership.agree(comm)
        return membership.first_size

    assert run_ranks(3, meet) == [2, 2, 2]
