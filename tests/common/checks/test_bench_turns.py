"""`common.checks.bench_turns`: the bare average against which exchanges are measured."""

import sys
from types import SimpleNamespace

import numpy as np

from common.checks import bench_turns
from common.checks.bench_turns import BareAverage, ExchangeTimes


def test_the_bare_average_is_that_of_all_ranks_in_pieces_and_is_timed(monkeypatch):
    """Two ranks, of which the other one has zeros: the average is half of what this one has."""
    pieces = []
    ranks = SimpleNamespace(size=2, Allreduce=lambda in_place, piece: pieces.append(piece.size))
    mpi = SimpleNamespace(COMM_WORLD=SimpleNamespace(Dup=lambda: ranks), IN_PLACE=None)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=mpi))
    monkeypatch.setitem(bench_turns.CPU_EXCHANGE, "HOROVOD_FUSION_THRESHOLD", "16")
    gradients = [np.arange(6, dtype=np.float32).reshape(2, 3), np.float32(8.0), np.ones(4, np.float32)]
    times = ExchangeTimes()
    average = BareAverage([np.shape(gradient) for gradient in gradients], times=times)
    for factor in (1, 3):  # in the same place in memory
        means = average(*(factor * gradient for gradient in gradients))
        for mean, gradient in zip(means, gradients, strict=True):
            np.testing.assert_array_equal(mean, factor * gradient / 2)
    assert pieces == 2 * [4, 4, 3]
    assert times.sent_bytes == 2 * 4 * 11
    assert len(times.began) == len(times.ended) == 2
    assert all(began < ended for began, ended in zip(times.began, times.ended, strict=True))
