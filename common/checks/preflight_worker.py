"""What both preflight workers share: 1 MB is summed over all ranks, the sum checked, its time and the clocks compared.

Rank 0 prints what was found as one line, JSON after `MARK`: a file would not reach the preflight where hosts share no
folder, which is among the things that it looks for.
"""

import json
import platform
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from common.config import DeviceConfig
from common.distributed.communicator import Communicator
from common.utils.command_line import Parser, run_command

MARK = "preflight exchange: "
NUMBERS = 250_000  # float32, so 10^6 bytes
WARM_UP_ROUNDS = 2  # the first ones make connections and buffers
ROUNDS = 11

# Sums an array over all ranks; returns the sum and the seconds that it took, copies to and from a device left out.
Exchange = Callable[[np.ndarray], tuple[np.ndarray, float]]


def run_worker(arguments: Sequence[str] | None, *, program: str, check: Callable[[DeviceConfig], int]) -> int:
    """Read the command line, join the ranks with the device that is wanted, and check; return the exit code."""
    parser = Parser(prog=program)
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto")
    options = parser.parse_args(arguments)
    return run_command(lambda: check(DeviceConfig(device=options.device)), program=program)


def check_exchange(comm: Communicator, *, device: str, exchange: Exchange) -> int:
    """Sum over all ranks by a framework's exchange, check and time; rank 0 prints the report. Return the exit code."""
    # Small whole numbers, so that their sum is exact in any order and another one for each element.
    values = (np.arange(NUMBERS) % 100 * (comm.rank + 1)).astype(np.float32)
    expected = (np.arange(NUMBERS) % 100 * (comm.size * (comm.size + 1) // 2)).astype(np.float32)
    right, seconds, clocks = True, [], []
    for _ in range(WARM_UP_ROUNDS + ROUNDS):
        total, took = exchange(values)
        clocks.append(time.time())
        seconds.append(took)
        right = right and bool(np.array_equal(total, expected))
    all_right = comm.allgather(right)
    all_clocks = np.array(comm.allgather(clocks[WARM_UP_ROUNDS:]))
    report = {
        "controller": comm.controller,
        "bytes": values.nbytes,
        "hosts": comm.allgather(platform.node()),  # of each rank, as the devices
        "devices": comm.allgather(device),
        "seconds": comm.maximum(np.array(seconds[WARM_UP_ROUNDS:])).tolist(),  # of the slowest rank in each round
        "wrong_ranks": [rank for rank, fine in enumerate(all_right) if not fine],
        # Of each rank against rank 0, seconds: all leave a sum at nearly the same moment.
        "clock_offsets": np.median(all_clocks - all_clocks[0], axis=1).tolist(),
    }
    if comm.rank == 0:
        sys.stdout.write(f"{MARK}{json.dumps(report)}\n")
        sys.stdout.flush()
    return 0
