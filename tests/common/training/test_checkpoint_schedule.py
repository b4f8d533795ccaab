"""When checkpoints inside an epoch are due: by a clock that the test sets."""

import pytest

from common.training.checkpoint_schedule import GROWTH, CheckpointSchedule


class Steps:
    """Trains steps that take a known time, in the parts that a schedule asks for, as the trainers do."""

    def __init__(self, *, minutes, step_seconds):
        self.now, self.step_seconds = 1000.0, step_seconds
        self.schedule = CheckpointSchedule(minutes, clock=lambda: self.now)
        self.parts: list[int] = []
        self.written: list[float] = []

    def epoch(self, steps):
        left = steps
        while left:
            part = self.schedule.next_steps(left)
            self.schedule.segment_starts(part)
            self.now += part * self.step_seconds
            self.parts.append(part)
            left -= part
            if self.schedule.segment_ended() and left:
                self.written.append(self.now)
                self.schedule.written()
        self.schedule.written()


def test_checkpoints_come_at_the_interval_and_parts_are_few():
    steps = Steps(minutes=10, step_seconds=0.5)
    steps.epoch(6000)  # 50 minutes
    assert [moment - 1000.0 for moment in steps.written] == pytest.approx([600, 1200, 1800, 2400], abs=1)
    assert sum(steps.parts) == 6000
    assert len(steps.parts) <= 12
    assert steps.parts[:3] == [1, GROWTH, GROWTH**2], "the first step alone decides nothing"


def test_an_epoch_shorter_than_the_interval_is_one_part_once_steps_are_known():
    """The interval starts again after each epoch."""
    steps = Steps(minutes=1, step_seconds=0.1)
    steps.epoch(500)
    steps.parts.clear()
    for _ in range(3):
        steps.epoch(500)
    assert steps.parts == [500] * 3 and steps.written == []


@pytest.mark.parametrize("minutes", [1e-9, 1e-300])
def test_an_interval_shorter_than_a_step_is_after_every_step(minutes):
    steps = Steps(minutes=minutes, step_seconds=2.0)
    steps.epoch(5)
    assert steps.parts == [1] * 5 and len(steps.written) == 4


def test_steps_that_become_slow_are_followed():
    steps = Steps(minutes=1, step_seconds=0.1)
    steps.epoch(300)
    steps.step_seconds = 20.0
    steps.epoch(30)
    steps.parts.clear()
    steps.epoch(30)
    assert steps.parts == [3] * 10


def test_a_stopped_clock_ends_nothing():
    steps = Steps(minutes=1, step_seconds=0.0)
    steps.epoch(10_000)
    assert sum(steps.parts) == 10_000 and steps.written == []
