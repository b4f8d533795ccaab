"""Who gets which work of free workers; whole runs and their schedules: `end_to_end/test_server.py`."""

import pytest

from common.errors import UserError
from common.parameter_server.schedule import Schedule, load_schedule
from common.parameter_server.work import WorkCounter


def test_a_worker_too_far_ahead_waits_for_the_slowest_but_not_for_one_that_leaves():
    work = WorkCounter(workers=3, lead=1)

    def ask(worker):
        work.ask(worker, first=0, stop=7)
        return list(work.grants())

    assert ask(0) == [(0, 0)]
    assert ask(0) == [(0, 1)]  # one step ahead of those who have not begun
    assert ask(0) == []
    assert ask(1) == [(1, 2)]
    assert ask(1) == [(1, 3)]
    assert ask(2) == [(2, 4)]
    assert ask(2) == [(2, 5), (0, 6)]  # now all are in their second step
    assert ask(0) == [(0, None)]
    work.meet()
    assert ask(0) == [(0, 0)] and ask(0) == [(0, 1)] and ask(0) == []
    work.leave(1)
    assert list(work.grants()) == []
    work.leave(2)
    assert list(work.grants()) == [(0, 2)]


def test_a_schedule_that_is_missing_or_too_short_is_refused(tmp_path):
    with pytest.raises(UserError, match="no schedule"):
        load_schedule(tmp_path)
    Schedule(2, workers=[0, 1], meetings=[(2, 0, 0)]).save(tmp_path)
    schedule = load_schedule(tmp_path)
    assert schedule.until(0) == Schedule(2)
    with pytest.raises(UserError, match="does not reach the checkpoint"):
        schedule.until(3)
