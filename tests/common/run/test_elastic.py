"""A process that goes on with other ranks: what it remembers, what it reports, and whose state counts."""

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_ranks import alone, run_ranks
from played_run import HOOKS, LostRankError

from common.run import elastic as elastic_module
from common.run.commit import Commit
from common.run.elastic import Elastic, HostsChanged
from common.run_folder.checkpoints import Checkpoint


def commit(step):
    """The state after an update."""
    return Commit(
        folder=Path("run"), first_copies=2, checkpoint=Checkpoint(0, step, {"w": np.ones(1)}, {}), made_at=0.0
    )


class Script:
    """A training that ends in these ways, one start after the other; the last one comes to its end."""

    def __init__(self, *errors, commits=9, makes_updates=False):
        self.errors, self.commits, self.makes_updates = errors, commits, makes_updates
        self.elastic = Elastic(size=1)
        self.changes = []
        self.starts = self.joined = self.left = 0

    def train(self):
        self.elastic.agree(alone())
        self.starts += 1
        if self.starts > len(self.errors):
            self.elastic.goes_on(None, None)
            self.elastic.updated(1)
            self.elastic.updated(1)
            return
        if self.starts <= self.commits:
            self.elastic.commit = commit(10 * self.starts)
        self.elastic.goes_on(None, None)
        if self.makes_updates:
            self.elastic.updated(1)
        self.elastic.epoch_starts(SimpleNamespace(updates_made=10 * min(self.starts, self.commits) + self.starts + 2))
        raise self.errors[self.starts - 1]

    def run(self):
        self.elastic._report = self.changes.append
        self.elastic.run(self.train, hooks=HOOKS, leave=self._leave, join=self._join)
        return self

    def _leave(self):
        assert self.left == self.joined  # once for each time
        self.left += 1

    def _join(self):
        self.joined += 1


@pytest.fixture(autouse=True)
def _nobody_tells_of_hosts(monkeypatch):
    monkeypatch.setattr(elastic_module, "listen_to_hosts", lambda elastic: None)


@pytest.mark.parametrize(
    ("errors", "options", "changes"),
    [
        ([LostRankError()], {}, [("a rank ended", 10, 3)]),
        # Ranks that end before the next update are one change.
        ([LostRankError(), LostRankError(), HostsChanged()], {}, [("a rank ended", 30, 0)]),
        ([HostsChanged()], {}, [("the hosts changed", 10, 3)]),
        # Of two faults without a commit between them each counts its own.
        (
            [LostRankError(), LostRankError()],
            {"commits": 1, "makes_updates": True},
            [("a rank ended", 10, 3), ("a rank ended", 10, 4)],
        ),
    ],
)
def test_training_goes_on_after_a_change_and_reports_it_once(errors, options, changes):
    began = time.time()
    script = Script(*errors, **options)
    script.elastic.commit = commit(0)
    script.run()
    assert script.starts == len(errors) + 1 and script.joined == len(errors)
    assert [(change.cause, change.step, change.lost_steps) for change in script.changes] == changes
    for change in script.changes:
        assert (change.ranks_before, change.ranks_after) == (1, 1)
        assert min(change.detect_seconds, change.agree_seconds, change.resume_seconds) >= 0
        assert change.cause == "a rank ended" or change.detect_seconds == 0
    # What was lost twice counts once.
    assert 0 < script.elastic.take_lost_seconds() <= time.time() - began


def test_start_up_that_is_made_again_is_no_lost_training():
    elastic = Elastic(size=1)
    elastic._seen_at -= 100  # preparing the data, before the ranks met
    elastic.agree(alone())
    elastic.commit = commit(0)
    for has_trained in (False, True):
        elastic._interrupted("a rank ended")
        elastic.agree(alone())
        elastic.goes_on(None, None)
        assert (elastic.take_lost_seconds() > 0) == has_trained
        changes = []
        elastic._report = changes.append
        elastic.updated(1)
        assert changes[0].detect_seconds < 50


def test_an_error_of_another_kind_is_not_survived():
    script = Script(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        script.run()
    assert script.joined == 0


def test_news_of_hosts_is_forgotten_once_the_ranks_have_met():
    script = Script().run()
    script.elastic.on_hosts_updated(0, 1)
    assert script.elastic.has_news()
    script.elastic.agree(alone())
    assert not script.elastic.has_news()


def test_the_newest_state_and_the_size_of_the_ranks_that_began_are_everybodys():
    first = Elastic(size=2)

    def meet(comm):
        elastic = first if comm.rank == 1 else Elastic(size=3)
        elastic.commit = {0: commit(5), 1: commit(6), 2: None}[comm.rank]
        first_size = elastic.agree(comm)
        return elastic.commit.step, first_size

    assert run_ranks(3, meet) == [(6, 2)] * 3


def test_ranks_that_end_before_the_first_meeting_are_no_change_and_keep_the_first_size():
    elastic, starts, sizes, reported = Elastic(size=3), [], [], []

    def train():
        starts.append(len(starts))
        if len(starts) == 1:
            raise LostRankError
        sizes.append(elastic.agree(alone()))
        elastic.updated(1)

    elastic._report = reported.append
    elastic.run(train, hooks=HOOKS, leave=lambda: None, join=lambda: None)
    assert (len(starts), reported, sizes) == (2, [], [3])
