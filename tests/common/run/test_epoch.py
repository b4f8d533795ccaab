"""An epoch: stacks end where a listener wants the run to stand still, and what is trained between two stops counts."""

import numpy as np
import pytest
from builders import make_config, make_task
from played_run import FakeBatches, FakeStrategy

from common.measurement.timing import Phases
from common.run.epoch import Epoch, Listener, Trial
from common.run_folder.checkpoints import PartialEpoch


class Pauses(Listener):
    """Wants a pause after so many updates, and notes what it hears."""

    def __init__(self, every):
        self.every, self.heard = every, []

    def most_updates(self, epoch, left):
        return min(left, self.every)

    def updated(self, updates):
        self.heard.append(updates)

    def paused(self, epoch):
        self.heard.append(f"at {epoch.done}")


class Drawing(FakeStrategy):
    """Computes three items of each segment, however many others there are."""

    def draw(self, first, stop):
        yield from range(first, first + 3)


class DrawnBatches(FakeBatches):
    def drawn(self, epoch, items):
        """Yield a batch for each item."""
        for item in items:
            yield [item], [item]


class Clock:
    """A clock that tells a second more at each look."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def epoch_of(task, *, listeners=(), strategy=None, own=None):
    phases = Phases(clock=Clock())
    phases.startup_ends()
    return Epoch(1, task=task, strategy=strategy or FakeStrategy({}), phases=phases, listeners=listeners, own=own)


@pytest.fixture
def task(tmp_path):
    return make_task(make_config(tmp_path, training={"batch_size": 15}))  # 8 updates an epoch


def test_a_stack_ends_where_the_first_of_two_listeners_needs_a_pause(task):
    threes, fives = Pauses(3), Pauses(5)
    epoch = epoch_of(task, listeners=(threes, fives))
    assert [len(images) for images, _ in epoch.take(FakeBatches(task))] == [3, 3, 2]
    assert threes.heard == fives.heard == [3, "at 3", 3, "at 6", 2, "at 8"]
    assert (epoch.done, epoch.taken, epoch.steps_left, epoch.seconds) == (8, 8, 0, 3.0)


def test_an_epoch_that_was_trained_in_part_goes_on(task):
    own = PartialEpoch(steps=6, training_seconds=10.0, data_wait_seconds=4.0)
    epoch = epoch_of(task, own=own)
    assert [len(images) for images, _ in epoch.take(FakeBatches(task))] == [2]
    partial = epoch.partial(PartialEpoch(weights={"w": np.ones(1)}))
    assert (partial.steps, partial.own_steps, partial.training_seconds) == (8, None, 11.0)
    assert partial.data_wait_seconds >= 4.0 and partial.weights.keys() == {"w"}


def test_a_rank_that_draws_its_batches_counts_its_own(task):
    epoch = epoch_of(task, listeners=[Pauses(4)], strategy=Drawing({}))
    assert [len(images) for images, _ in epoch.take(DrawnBatches(task))] == [1] * 6
    assert (epoch.done, epoch.taken, epoch.partial(PartialEpoch()).own_steps) == (8, 6, 6)


def test_an_error_of_the_loop_leaves_a_phase_that_can_be_abandoned(task):
    epoch = epoch_of(task)
    with pytest.raises(ZeroDivisionError):
        for _ in epoch.take(FakeBatches(task)):
            raise ZeroDivisionError
    assert epoch._phases.current == "training" and epoch.done == 0
    epoch._phases.abandon()
    assert epoch._phases.current == "other"


def test_a_trial_trains_no_more_updates_than_an_epoch_has(task):
    strategy = FakeStrategy({})
    strategy.step = lambda images, labels: trained.append(len(images))
    trained = []
    Trial(task, strategy, FakeBatches(task)).train(3)
    Trial(task, strategy, FakeBatches(task)).train(30)
    assert trained == [3, 8]
