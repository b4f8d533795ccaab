"""`--memory-limit`: a run ends when a rank takes more memory than it may."""

import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path

from common.distributed.communicator import Communicator

POLL_SECONDS = 0.02
OVER_LIMIT = "needs more memory than it may have"  # in the message of a run that the limit ended
_END_SECONDS = 5.0  # after which a host no longer waits for rank 0 to end the run


def watch_memory(
    megabytes: int, *, comm: Communicator, end: Callable[[str], None], end_by_rank_0: Callable[[str], None]
) -> None:
    """Watch all ranks, those of each host from its first one; every rank calls this, before it builds its model.

    Args:
        megabytes: of 10^6 bytes, beyond what a rank has now: Python, the framework, MPI.
        end: called with the reason on a thread of rank 0, which writes the record; on the first rank of another host
            if rank 0 has not ended the run.
        end_by_rank_0: called with the reason on the first rank of another host, before that.
    """
    host = platform.node()
    of_ranks = comm.allgather((host, os.getpid(), own_bytes(os.getpid())))
    if comm.local_rank:
        return
    before = {rank: (process, size) for rank, (there, process, size) in enumerate(of_ranks) if there == host}

    def watch() -> None:
        while True:
            for rank, (process, size) in before.items():
                taken = own_bytes(process) - size
                if taken > megabytes * 1e6:
                    reason = (
                        f"rank {rank} {OVER_LIMIT}. Received: --memory-limit {megabytes}, and "
                        f"{taken / 1e6:,.0f} MB beyond the {size / 1e6:,.0f} MB before its model was built. Divide the "
                        "model by --strategy layers or split, or give a smaller --batch-size"
                    )
                    if comm.rank:
                        end_by_rank_0(reason)
                        time.sleep(_END_SECONDS)
                    end(reason)
                    return
            time.sleep(POLL_SECONDS)

    threading.Thread(target=watch, name="memory limit", daemon=True).start()


def own_bytes(process: int) -> int:
    """Return the memory that a process holds for itself alone, without mapped files; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)
