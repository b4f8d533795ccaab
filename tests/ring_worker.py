"""Ranks that do nothing but sum a vector: all of them, and fewer; rank 0 prints a line for each number of ranks.

mpirun -np 4 ... python tests/ring_worker.py NUMBERS UPDATES      a line: ranks, seconds of all updates
"""

import json
import sys
import time

import numpy as np
from mpi4py import MPI


def main() -> None:
    """Sum a vector of float32 NUMBERS so often as there are UPDATES, on 2 ranks, on 3, and so on."""
    numbers, updates = int(sys.argv[1]), int(sys.argv[2])
    world = MPI.COMM_WORLD
    vector = np.ones(numbers, np.float32)
    for size in range(2, world.size + 1):
        ranks = world.Split(0 if world.rank < size else MPI.UNDEFINED)
        if ranks == MPI.COMM_NULL:
            continue
        ranks.Allreduce(MPI.IN_PLACE, vector)  # connections are made by the first
        ranks.Barrier()
        began = time.perf_counter()
        for _ in range(updates):
            ranks.Allreduce(MPI.IN_PLACE, vector)
        seconds = ranks.allreduce(time.perf_counter() - began, op=MPI.MAX)
        if world.rank == 0:
            print(json.dumps([size, seconds]), flush=True)


if __name__ == "__main__":
    main()
