"""Which ranks hang, judged by reports: limits by activity, and who stands out among ranks that all stand still."""

import math
from dataclasses import replace

import pytest

from common.watchdog.verdict import Report, hanging_ranks, limit_of, words

STANDS_STILL = Report(
    host="node1", process=7, activity="training", updates=10, idle_seconds=100.0, slowest_seconds=0.1, state="S"
)


def report(**changes):
    return replace(STANDS_STILL, **changes)


@pytest.mark.parametrize(
    ("changes", "stall_seconds", "limit"),
    [
        ({}, None, 60.0),
        ({"slowest_seconds": 10.0}, None, 200.0),
        ({"slowest_seconds": 0.0}, None, 600.0),  # the first update
        ({"slowest_seconds": 10.0}, 5.0, 5.0),
        ({"activity": "loading data"}, 5.0, 5.0),
        ({"activity": "startup"}, 5.0, 600.0),
        ({"activity": "preparing data"}, 5.0, 3600.0),
        ({"activity": "serving"}, 5.0, math.inf),
        ({"activity": "serving", "slowest_seconds": 0.0, "state": "T"}, None, 60.0),
        ({"activity": "ending", "slowest_seconds": 30.0}, 5.0, 60.0),
        ({"activity": "validation"}, 1000.0, 1000.0),
    ],
)
def test_each_activity_has_its_limit(changes, stall_seconds, limit):
    assert limit_of(report(**changes), stall_seconds=stall_seconds) == limit


@pytest.mark.parametrize(
    ("of_ranks", "hanging"),
    [
        ([{}, {"idle_seconds": 1.0}], [0]),
        ([{}, {"state": "T"}, {}], [1]),
        ([{}, {}, {"silent_seconds": 9.0, "idle_seconds": 60.0}], [2]),
        ([{}, {"activity": "loading data"}, {}], [1]),
        ([{}, {"activity": "loading data", "idle_seconds": 59.0}], [1]),  # begun after the others had to wait for it
        ([{}, {"activity": "loading data", "idle_seconds": 29.0}], [0]),
        ([{"activity": "checkpoint", "idle_seconds": 700.0}, {"idle_seconds": 700.0}], [0]),
        ([{}, {"state": "D"}], [1]),
        ([{"updates": 11}, {"updates": 10}, {"updates": 11}], [1]),
        ([{}, {}], [0, 1]),
        # Waiting for others in start-up or at the end of an epoch is no hang; the stopped rank is.
        ([{"activity": "other"}, {"state": "T"}], [1]),
        # A host that cannot be reached, while all write a checkpoint, for which a rank has 10 minutes.
        ([{"activity": "checkpoint"}, {"activity": "checkpoint", "idle_seconds": 1.0, "silent_seconds": 99.0}], [1]),
        ([{"activity": "checkpoint"}, {"activity": "checkpoint"}], []),
        # A watcher that is no more, not one that is silent.
        ([{"activity": "checkpoint"}, {"state": "gone"}], [1]),
        # A rank that has ended is silent; it is the other one that does not.
        ([{"activity": "ending"}, {"activity": "ending", "silent_seconds": 95.0}], [0]),
        ([{"idle_seconds": 1.0}, {"activity": "ending", "silent_seconds": 95.0}], []),
    ],
)
def test_the_rank_that_stands_out_hangs(of_ranks, hanging):
    reports = {rank: report(**changes) for rank, changes in enumerate(of_ranks)}
    assert hanging_ranks(reports, stall_seconds=None) == hanging


def test_the_words_name_who_stands_out_or_nobody():
    reports = {0: report(activity="imports", updates=0), 1: report(silent_seconds=9.0, host="node2")}
    assert words([0], reports) == "rank 0 (host node1, process 7) makes no progress, in imports, for 100 s"
    silent = "rank 1 (host node2, process 7) does not answer: nothing was received from its host for 9 s"
    assert silent in words([1], reports)
    assert words([0, 1], reports) == "none of 2 ranks has made progress for 100 s, and none stands out"
