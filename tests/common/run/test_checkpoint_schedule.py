"""When checkpoints inside an epoch are due: by a clock that the test sets."""

import pytest

from common.run.checkpoints import GROWTH, Schedule


class Steps:
    """Trains steps that take a known time, in the parts that a schedule asks for, as the trainers do."""

    def __init__(self, minutes):
        self.now = 1000.0
        self.schedule = Schedule(minutes, clock=lambda: self.now)

    def epoch(self, steps, *, step_seconds):
        """Train an epoch; return the steps of its parts, and after how many seconds checkpoints were written."""
        parts, written, start = [], [], self.now
        while (left := steps - sum(parts)) > 0:
            parts.append(self.schedule.next_updates(left))
            self.schedule.begin()
            self.now += parts[-1] * step_seconds
            if self.schedule.end(parts[-1]) and parts[-1] < left:
                written.append(self.now - start)
                self.schedule.written()
        self.schedule.written()
        assert sum(parts) == steps
        return parts, written


def test_checkpoints_come_at_the_interval_and_parts_are_few():
    parts, written = Steps(10).epoch(6000, step_seconds=0.5)  # 50 minutes
    assert written == pytest.approx([600, 1200, 1800, 2400], abs=1)
    assert parts[:3] == [1, GROWTH, GROWTH**2] and len(parts) <= 12, "the first step alone decides nothing"


@pytest.mark.parametrize(
    ("minutes", "before", "epoch", "parts", "checkpoints"),
    [
        (1, [(500, 0.1)] * 3, (500, 0.1), [500], 0),  # shorter than the interval, which starts again after each epoch
        (1, [(300, 0.1), (30, 20.0)], (30, 20.0), [3] * 10, 9),  # steps that become slow are followed
        (1e-9, [], (5, 2.0), [1] * 5, 4),  # an interval shorter than a step
        (1e-300, [], (5, 2.0), [1] * 5, 4),
        (1, [(10_000, 0.0)], (10_000, 0.0), [10_000], 0),  # a stopped clock
    ],
)
def test_parts_and_checkpoints(minutes, before, epoch, parts, checkpoints):
    steps = Steps(minutes)
    for count, seconds in before:
        steps.epoch(count, step_seconds=seconds)
    trained, written = steps.epoch(epoch[0], step_seconds=epoch[1])
    assert (trained, len(written)) == (parts, checkpoints)
