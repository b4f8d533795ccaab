"""Phases: one clock, synchronized edges, listeners; start-up is separate."""

import pytest

from common.measurement.timing import Phases, Timer, timed


class Log:
    """Records the order of events; its clock advances by a second per reading."""

    def __init__(self):
        self.seen: list[str] = []
        self.now = 0.0

    def clock(self):
        self.seen.append("clock")
        self.now += 1.0
        return self.now

    def synchronize(self):
        self.seen.append("synchronize")


def phases_of(log):
    phases = Phases(clock=log.clock)
    phases.listeners.append(log.seen.append)
    return phases


def test_a_phase_is_synchronized_and_announced_outside_its_time():
    log = Log()
    phases = phases_of(log)
    phases.startup_ends()
    with phases.phase("training", synchronize=log.synchronize) as timer:
        assert phases.current == "training"
        log.now += 5.0
    assert log.seen == ["other", "synchronize", "training", "clock", "synchronize", "clock", "other"]
    assert timer.seconds == 6.0 and phases.current == "other"


def test_start_up_starts_with_the_process_and_includes_its_phases():
    log = Log()
    phases = phases_of(log)
    assert phases.current == "startup" and phases.startup_seconds == 0.0
    with phases.phase("test", synchronize=log.synchronize) as timer:
        assert phases.current == "startup"
    assert timer.seconds == 1.0 and "test" not in log.seen
    phases.startup_ends()
    assert phases.startup_seconds > 0.05, "imports are counted"
    assert log.seen[-1] == "other"


def test_a_phase_that_fails_ends_without_waiting_for_the_device():
    log = Log()
    phases = phases_of(log)
    phases.startup_ends()
    with pytest.raises(KeyError), phases.phase("test", synchronize=log.synchronize):
        raise KeyError
    assert log.seen == ["other", "synchronize", "test", "clock", "clock", "other"]


def test_only_the_wait_for_items_is_timed(monkeypatch):
    log, timer = Log(), Timer()
    monkeypatch.setattr("common.measurement.timing.time.perf_counter", lambda: log.now)

    def make():
        for number in range(3):
            log.now += 2.0
            yield number
        log.now += 100.0

    found = []
    for number in timed(make(), timer):
        log.now += 7.0
        found.append(number)
    assert (found, timer.seconds) == ([0, 1, 2], 6.0)
