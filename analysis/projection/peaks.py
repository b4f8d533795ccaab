"""What a device can do at most: of the table of sites, as its maker says, or measured on this machine's processor."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from common.errors import UserError
from common.sites.table import Cpu, Gpu
from common.utils.environments import project_first

_SIDE = 512  # of the matrices that are multiplied
_COPIED = 2**23  # float32 values: 32 MB, and as many for the copy: more than caches hold
_SECONDS = 4.0  # of turns, of which the best is the peak: other processes only slow one down
_GIGA, _TERA = 1e9, 1e12


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Peaks of what computes one rank.

    Attributes:
        device: its name, for readers.
        threads: of a processor; 1 for a GPU.
        flops_per_second: of the type that layers compute in.
        bytes_per_second: of memory.
    """

    device: str
    threads: int
    flops_per_second: float
    bytes_per_second: float


def peaks_of(device: Gpu | Cpu, *, dtype: str = "float32") -> Peaks:
    """Return the peaks of a device in the table of sites.

    Args:
        device: a processor counts with all its threads.
        dtype: float32; in float16 and bfloat16 tensor cores count where the device has some.

    Raises:
        UserError: the table does not state the memory bandwidth.
    """
    bandwidth = device.memory_bandwidth_gb_s
    if bandwidth is None:
        raise UserError(
            f"a projection needs the memory bandwidth of the device. Received: {device.name}. State "
            "`memory_bandwidth_gb_s` in the table of sites"
        )
    tensor = device.tensor_tflops if isinstance(device, Gpu) and dtype != "float32" else None
    return Peaks(
        device=device.name,
        threads=device.threads if isinstance(device, Cpu) else 1,
        flops_per_second=_TERA * (tensor or device.fp32_tflops),
        bytes_per_second=_GIGA * bandwidth,
    )


def measured_peaks(device: str, *, threads: int) -> Peaks:
    """Measure float32 peaks of this machine's processor with NumPy, in about ten seconds.

    Each thread multiplies matrices of its own, then copies arrays of its own.

    Args:
        device: name of the processor.
        threads: that compute at the same time.
    """
    # NumPy's library for products takes its number of threads when it is loaded: so in a process of its own.
    one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(threads)],
        env={**os.environ, **project_first(), **one_thread},
        capture_output=True,
        text=True,
        check=True,
    )
    flops, moved = map(float, done.stdout.split())
    return Peaks(device=device, threads=threads, flops_per_second=flops, bytes_per_second=moved)


def _measure(threads: int) -> tuple[float, float]:
    """Return FLOPs and bytes per second of all threads together."""
    square = np.ones((threads, _SIDE, _SIDE), np.float32)
    product = np.empty_like(square)
    flops = _best(lambda one: np.matmul(square[one], square[one], out=product[one]), threads) * 2 * _SIDE**3
    source = np.ones((threads, _COPIED), np.float32)
    copy = np.empty_like(source)
    return flops, _best(lambda one: np.copyto(copy[one], source[one]), threads) * 2 * source[0].nbytes


def _best(work: Callable[[int], object], threads: int) -> float:
    """Return how often per second all threads together do the work, in the best of several turns."""
    seconds: list[float] = []
    with ThreadPoolExecutor(threads) as pool:
        end = time.perf_counter() + _SECONDS
        while (start := time.perf_counter()) < end or not seconds:
            list(pool.map(work, range(threads)))
            seconds.append(time.perf_counter() - start)
    return threads / min(seconds)


if __name__ == "__main__":
    print(*_measure(int(sys.argv[1])))
