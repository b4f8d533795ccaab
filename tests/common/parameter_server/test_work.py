"""Who gets which work, and the schedule of a run."""

import pytest

from common.errors import UserError
from common.parameter_server.schedule import Schedule, load_schedule
from common.parameter_server.work import RecordedWork, WorkCounter


def ask(work, worker, stop=6):
    work.ask(worker, first=0, stop=stop)
    return list(work.grants())


def test_items_are_handed_out_in_their_order_until_none_is_left():
    work = WorkCounter(workers=2, lead=None)
    assert [ask(work, worker, stop=4) for worker in (0, 0, 1, 0)] == [[(0, 0)], [(0, 1)], [(1, 2)], [(0, 3)]]
    assert [ask(work, worker, stop=4) for worker in (1, 0)] == [[(1, None)], [(0, None)]]
    assert work.workers_of_items == [0, 0, 1, 0]
    work.meet()
    work.ask(1, first=4, stop=5)
    assert list(work.grants()) == [(1, 4)]


def test_a_worker_too_far_ahead_waits_for_the_slowest():
    work = WorkCounter(workers=3, lead=1)
    assert ask(work, 0) == [(0, 0)]
    assert ask(work, 0) == [(0, 1)]  # one step ahead of those who have not begun
    assert ask(work, 0) == []
    assert ask(work, 1) == [(1, 2)]
    assert ask(work, 1) == [(1, 3)]
    assert ask(work, 2) == [(2, 4)]
    assert ask(work, 2, stop=7) == [(2, 5), (0, 6)]  # now all are in their second step
    assert ask(work, 0, stop=7) == [(0, None)]


def test_nobody_waits_for_a_worker_that_leaves():
    work = WorkCounter(workers=2, lead=1)
    assert ask(work, 1) == [(1, 0)]
    assert ask(work, 0) == [(0, 1)]
    assert ask(work, 0) == [(0, 2)]
    assert ask(work, 0) == []
    work.leave(1)
    assert list(work.grants()) == [(0, 3)]


def test_recorded_work_is_each_workers_own():
    work = RecordedWork([0, 1, 1, 0, 1, 0])
    assert [ask(work, worker, stop=4) for worker in (1, 1, 1, 0)] == [[(1, 1)], [(1, 2)], [(1, None)], [(0, 0)]]
    work.meet()
    work.ask(0, first=4, stop=6)
    assert list(work.grants()) == [(0, 5)]


def test_a_schedule_is_read_as_it_was_written_and_continued_where_all_workers_met(tmp_path):
    with pytest.raises(UserError, match="no schedule"):
        load_schedule(tmp_path)
    made = Schedule(2)
    made.add_meeting([[(0, 0), (1, 1), (0, 0)], [(1, 0), (0, 1), (0, 0)]], [0, 1, 0])
    made.add_meeting([[(1, 0), (1, 0)], [(1, -1), (1, 3)]], [1, 1])
    made.save(tmp_path)
    assert load_schedule(tmp_path) == made
    assert made.staleness_histogram() == {"0": 6, "1": 2, "3": 1}  # a fetch alone is no push
    assert made.most_ahead(2) == 1
    part = made.until(3)
    assert (made.updates, part.updates) == (5, 3)
    assert (part.workers, part.sources, part.meetings) == ([0, 1, 0], [[0, 1, 0], [1, 0, 0]], [(3, 3, 3)])
    assert made.sources_after(3) == [[1, 1], [1, 1]]
    assert made.until(0) == Schedule(2)
    with pytest.raises(UserError, match="does not reach the checkpoint"):
        made.until(4)
