"""Phases: one clock, synchronized edges, listeners; start-up is separate."""

import pytest

from common.measurement.timing import Phases


class Log:
    """Records the order of events; its clock advances by a second per reading."""

    def __init__(self):
        self.seen: list[str] = []
        self.now = 0.0
        self.phases = Phases(clock=self.clock)
        self.phases.listeners.append(self.seen.append)

    def clock(self):
        self.seen.append("clock")
        self.now += 1.0
        return self.now

    def phase(self, name):
        return self.phases.phase(name, synchronize=lambda: self.seen.append("synchronize"))


def test_start_up_has_its_phases_and_later_ones_are_synchronized_and_announced_outside_their_time():
    log = Log()
    assert log.phases.current == "startup" and log.phases.startup_seconds == 0.0
    with log.phase("test") as timer:
        assert log.phases.current == "startup"
    assert timer.seconds == 1.0 and "test" not in log.seen
    log.phases.startup_ends()
    assert log.phases.startup_seconds > 0.05, "imports are counted"
    assert log.seen.pop() == log.phases.current == "other"
    log.seen.clear()
    with log.phase("training") as timer:
        assert log.phases.current == "training"
        log.now += 5.0
    assert log.seen == ["synchronize", "training", "clock", "synchronize", "clock", "other"]
    assert timer.seconds == 6.0 and log.phases.current == "other"


def test_a_phase_that_fails_ends_without_waiting_for_the_device():
    log = Log()
    log.phases.startup_ends()
    with pytest.raises(KeyError), log.phase("test"):
        raise KeyError
    assert log.seen == ["other", "synchronize", "test", "clock", "clock", "other"]
