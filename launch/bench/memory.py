"""What a further rank on a host takes of its memory: the contestants of `bench` whose memory is compared."""

import statistics
import subprocess
import time
from contextlib import suppress

import psutil

WINDOW_SECONDS = 2.0  # before the end; the median over them is returned
_POLL_SECONDS = 0.1
_RANK = "OMPI_COMM_WORLD_RANK"


def memory_of_second_rank(process: subprocess.Popen[bytes], *, limit: float) -> int | None:
    """Wait for the end of two ranks; return the memory of the second shortly before the first of them ended, in bytes.

    It is the PSS (proportional set size): of memory that several processes share, each has its part.

    Args:
        limit: seconds to wait at most.

    Returns:
        None if the two were never there at once.
    """
    seen: list[tuple[float, int]] = []
    end = time.monotonic() + limit
    while process.poll() is None and time.monotonic() < end:
        with suppress(psutil.Error):
            ranks = _ranks_of(process.pid)
            if {"0", "1"} <= ranks.keys():
                seen.append((time.monotonic(), int(ranks["1"].memory_full_info().pss)))
        time.sleep(_POLL_SECONDS)
    if not seen:
        return None
    return round(statistics.median(pss for moment, pss in seen if moment >= seen[-1][0] - WINDOW_SECONDS))


def _ranks_of(pid: int) -> dict[str, psutil.Process]:
    """Return rank -> its process; one that has ended, though not waited for, has no environment any more."""
    found: dict[str, psutil.Process] = {}
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):
            rank = process.environ().get(_RANK)
            if rank is not None:
                found.setdefault(rank, process)  # not what a rank has started, which comes later
    return found
