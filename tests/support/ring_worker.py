"""Ranks that do nothing but sum a vector: all of them, and fewer; rank 0 prints a line for each number of ranks.

mpirun -np 4 ... python tests/support/ring_worker.py NUMBERS UPDATES      a line: ranks, seconds of all updates
"""

import json
import sys
import time

import numpy as np
from mpi4py import MPI

READY_SECONDS = 0.3  # until the last rank has heard when to begin


def main():
    """Sum a vector of float32 on 2 ranks, on 3, and so on; of several sums the fastest counts."""
    numbers, sums = int(sys.argv[1]), int(sys.argv[2])
    world = MPI.COMM_WORLD
    vector = np.ones(numbers, np.float32)
    for size in range(2, world.size + 1):
        ranks = world.Split(0 if world.rank < size else MPI.UNDEFINED)
        if ranks == MPI.COMM_NULL:
            continue
        ranks.Allreduce(MPI.IN_PLACE, vector)  # connections are made by the first
        seconds = [sum_together(ranks, vector) for _ in range(sums)]
        if world.rank == 0:
            print(json.dumps([size, min(seconds)]), flush=True)


def sum_together(ranks, vector):
    """Return the seconds from the moment at which all ranks begin, by the clock of their one machine."""
    began = ranks.bcast(time.perf_counter() + READY_SECONDS)
    time.sleep(max(0.0, began - time.perf_counter()))
    ranks.Allreduce(MPI.IN_PLACE, vector)
    return ranks.allreduce(time.perf_counter(), op=MPI.MAX) - began


if __name__ == "__main__":
    main()
