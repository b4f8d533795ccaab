"""The communicator: sums in one order, errors propagated to all ranks, weights compared."""

import errno
import pickle
from dataclasses import replace

import numpy as np
import pytest
from fake_ranks import alone, run_ranks

from common.distributed import communicator
from common.errors import UserError


def test_sums_in_the_order_of_ranks_maximum_and_first():
    values = [1e16, 1.0, -1e16, 1.0]

    def work(comm):
        mine = np.array([values[comm.rank], comm.rank])
        return comm.sum(mine).tolist(), comm.maximum(mine).tolist(), comm.broadcast(f"rank {comm.rank}")

    assert run_ranks(4, work) == [([((1e16 + 1.0) - 1e16) + 1.0, 6.0], [1e16, 3.0], "rank 0")] * 4
    assert work(alone()) == ([1e16, 0.0], [1e16, 0.0], "rank 0")


def test_a_broadcast_is_sent_in_pieces_of_a_size_that_horovod_can_count(monkeypatch):
    monkeypatch.setattr(communicator, "PIECE_BYTES", 1000)
    arrays = {"a": np.arange(1e4), "b": np.zeros(0)}

    def work(comm):
        sent = []

        def allgather(value):
            sent.append(len(pickle.dumps(value)))
            return comm.allgather(value)

        received = replace(comm, allgather=allgather).broadcast(arrays if comm.rank == 1 else None, root=1)
        assert all(np.array_equal(received[name], array) for name, array in arrays.items())
        return max(sent) < 1100, sum(sent) > 8e4

    assert run_ranks(3, work) == [(True, False), (True, True), (True, False)]


def test_states_are_gathered_in_pieces_of_a_size_that_horovod_can_count(monkeypatch):
    monkeypatch.setattr(communicator, "PIECE_BYTES", 1000)

    def work(comm):
        sent = []

        def allgather(value):
            sent.append(len(pickle.dumps(value)))
            return comm.allgather(value)

        of_ranks = replace(comm, allgather=allgather).gather_states(np.arange(1000.0 * comm.rank))
        assert [list(state) for state in of_ranks] == [list(np.arange(1000.0 * rank)) for rank in range(3)]
        return max(sent) < 500

    assert run_ranks(3, work) == [True] * 3
    assert alone().gather_states("own") == ["own"]


DISK_FULL = "writing failed: No space left on device. Received: /data/a. Free some space or name another folder"
STRANGE = "writing failed: strange. Received: no path. Check the path, its disk and its permissions"


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        ({}, None),
        ({0: UserError("no. Received: x. Do y")}, "no. Received: x. Do y"),
        ({2: UserError("no. Received: x. Do y")}, "no. Received: x. Do y (rank 2)"),
        ({1: UserError("one"), 2: UserError("two")}, "one (rank 1)"),
        ({rank: UserError("same") for rank in range(3)}, "same"),
        ({0: OSError(errno.ENOSPC, "No space left on device", "/data/a")}, DISK_FULL),
        ({0: OSError("strange")}, STRANGE),
    ],
)
def test_the_error_of_one_rank_reaches_all(errors, message):
    def work(comm):
        with comm.propagate_errors("writing"):
            if comm.rank in errors:
                raise errors[comm.rank]

    results = run_ranks(3, work)
    assert all(isinstance(result, UserError) == bool(errors) for result in results)
    assert [result and str(result) for result in results] == [message] * 3


def test_a_bug_is_not_turned_into_a_user_error():
    def work(comm):
        with comm.propagate_errors("writing"):
            assert comm.rank

    results = run_ranks(2, work)
    assert isinstance(results[0], AssertionError)
    assert isinstance(results[1], RuntimeError), "the other rank waits for it, until its launcher ends it"
