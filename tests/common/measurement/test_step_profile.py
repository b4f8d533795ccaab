"""The step profile: times that others recorded, and the mean over ranks; whole ones: `end_to_end/test_trainers.py`."""

from itertools import count

import pytest

from common.measurement.step_profile import LEFT_OUT_STEPS, PARTS, Laps, Profiler, average_over_ranks, profile_table


@pytest.mark.parametrize("interrupted", [0, 1, 2])
def test_parts_whose_ends_were_recorded_elsewhere(monkeypatch, interrupted):
    """A process interrupted between its readings of two clocks, at any of them, takes no time from a layer."""
    now, readings = [0.0], count()
    profiler = Profiler(synchronize=lambda: None, clock=lambda: now[0])
    with profiler.undone():
        for _ in profiler.steps(iter(range(2 * LEFT_OUT_STEPS))):
            now[0] += 1000.0
    for _ in profiler.steps(iter(range(LEFT_OUT_STEPS))):
        now[0] += 1000.0
    started = 1_000_000.0 + now[0]

    def other_clock():
        now[0] += 2.0 if next(readings) == interrupted else 0.0
        return 1_000_000.0 + now[0]

    monkeypatch.setattr("common.measurement.step_profile.time.time", other_clock)
    for _ in profiler.steps(iter([0])):
        now[0] += 10.0
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
    assert laps.steps == 1 and sum(laps.parts_seconds.values()) == laps.loop_seconds


def test_the_average_over_ranks_by_hand():
    parts = [dict.fromkeys(PARTS, 0.0) | {"input": 2.0, "waiting": 6.0}, dict.fromkeys(PARTS, 0.0) | {"input": 8.0}]
    profile = average_over_ranks([Laps(4, 10.0, parts[0]), Laps(4, 6.0, parts[1])])
    assert profile is not None
    assert (profile.steps, profile.step_seconds, profile.step_seconds_of_ranks) == (4, 2.0, [2.5, 1.5])
    assert (profile.parts_seconds["input"], profile.parts_seconds_of_ranks["input"]) == (1.25, [0.5, 2.0])
    assert profile.parts_over_step == 1.0
    assert "  waiting      750.000 ms   37.5 %" in profile_table(profile)
    assert average_over_ranks([Laps(0, 0.0, dict.fromkeys(PARTS, 0.0))]) is None
