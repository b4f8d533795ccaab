"""The step profile: parts add up to the step, the first steps are left out, ranks are averaged."""

from itertools import count

import pytest

from common.measurement.step_profile import LEFT_OUT_STEPS, PARTS, Laps, Profiler, average_over_ranks, profile_table


class Clock:
    """A clock set by the test; synchronizing the device takes a second."""

    def __init__(self):
        self.now = 0.0

    def synchronize(self):
        self.now += 1.0

    def __call__(self):
        return self.now


def run_epoch(profiler, clock, *, steps):
    for _ in profiler.steps(iter(range(steps))):
        for seconds, part in enumerate(PARTS[1:-1], start=1):
            clock.now += seconds
            profiler.lap(part)
        clock.now += 0.5


def test_parts_add_up_to_the_steps_of_all_epochs_but_the_first_few_steps():
    clock = Clock()
    profiler = Profiler(synchronize=clock.synchronize, clock=clock)
    run_epoch(profiler, clock, steps=LEFT_OUT_STEPS - 1)
    clock.now += 1000.0
    run_epoch(profiler, clock, steps=3)
    clock.now += 1000.0
    run_epoch(profiler, clock, steps=2)
    laps = profiler.laps
    assert laps.steps == 4
    assert laps.parts_seconds == {
        part: 4 * seconds for part, seconds in zip(PARTS, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1.5], strict=True)
    }
    assert laps.loop_seconds == sum(laps.parts_seconds.values())
    profiler.restart()
    assert profiler.laps.steps == 0


@pytest.mark.parametrize("interrupted", [0, 1, 2])
def test_parts_whose_ends_were_recorded_elsewhere(monkeypatch, interrupted):
    """A process interrupted between its readings of two clocks, at any of them, takes no time from a layer."""
    clock = Clock()
    profiler = Profiler(synchronize=lambda: None, clock=clock)
    run_epoch(profiler, clock, steps=LEFT_OUT_STEPS)
    profiler.laps.parts_seconds.update(dict.fromkeys(PARTS, 0.0))
    started = 1_000_000.0 + clock.now
    readings = count()

    def other_clock():
        clock.now += 2.0 if next(readings) == interrupted else 0.0
        return 1_000_000.0 + clock.now

    monkeypatch.setattr("common.measurement.step_profile.time.time", other_clock)
    for _ in profiler.steps(iter([0])):
        clock.now += 10.0
        profiler.recorded_laps(
            [
                ("forward", "first", started + 3.0),
                ("forward", "last", started + 4.0),
                ("backward", "last", started + 6.0),
            ]
        )
        profiler.lap("backward")
    laps = profiler.laps
    assert laps.layers["last"] == {"forward": 1.0, "backward": 2.0}
    assert laps.layers["first"]["backward"] == 0.0
    assert sum(laps.parts_seconds.values()) == laps.loop_seconds


def test_the_average_over_ranks_by_hand():
    parts = [dict.fromkeys(PARTS, 0.0) | {"input": 2.0, "waiting": 6.0}, dict.fromkeys(PARTS, 0.0) | {"input": 8.0}]
    profile = average_over_ranks([Laps(4, 10.0, parts[0]), Laps(4, 6.0, parts[1])])
    assert profile is not None
    assert (profile.steps, profile.step_seconds, profile.step_seconds_of_ranks) == (4, 2.0, [2.5, 1.5])
    assert (profile.parts_seconds["input"], profile.parts_seconds_of_ranks["input"]) == (1.25, [0.5, 2.0])
    assert profile.parts_over_step == 1.0
    assert "  waiting      750.000 ms   37.5 %" in profile_table(profile)
    assert average_over_ranks([Laps(0, 0.0, dict.fromkeys(PARTS, 0.0))]) is None
