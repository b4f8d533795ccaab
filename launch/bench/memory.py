"""What a further rank on a host takes of its memory: the contestants of `bench` whose memory is compared."""

import statistics
import subprocess
import time
from contextlib import suppress

import psutil

from common.errors import UserError

SECONDS = 2.0  # before the end, of which the median counts
_POLL_SECONDS = 0.1
_RANK = "OMPI_COMM_WORLD_RANK"


def memory_of_second_rank(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of two ranks; return the memory of the second shortly before, in bytes.

    It is the PSS (proportional set size): of memory that several processes share, each has its part.

    Raises:
        UserError: the ranks ended before they were seen.
    """
    seen: list[tuple[float, int]] = []
    while process.poll() is None:
        with suppress(psutil.Error):
            ranks = _ranks_of(process.pid)
            if {"0", "1"} <= ranks.keys():
                pss = int(ranks["1"].memory_full_info().pss)
                if ranks["0"].memory_info().rss:  # one that has ended shares nothing any more
                    seen.append((time.monotonic(), pss))
        time.sleep(_POLL_SECONDS)
    if not seen:
        raise UserError("the memory of two ranks was not seen before they ended. Look at the messages above")
    return round(statistics.median(pss for moment, pss in seen if moment >= seen[-1][0] - SECONDS))


def _ranks_of(pid: int) -> dict[str, psutil.Process]:
    """Return rank -> its process."""
    found: dict[str, psutil.Process] = {}
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):
            rank = process.environ().get(_RANK)
            if rank is not None and process.status() != psutil.STATUS_ZOMBIE:
                found.setdefault(rank, process)  # not what a rank has started, which comes later
    return found
