"""The end of a launcher that outlives its ranks. The watcher imports this file: the standard library alone.

`mpirun` waits for its daemons on all hosts, also for one on a host that does not answer any more.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from common.utils.process_state import ENDED, process_state

NAMES = ("mpirun", "mpiexec", "orterun")
PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.2


def parent_of(process: int) -> int:
    """Return the process that has started another one; 0: it has ended."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def end_launcher(process: int, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """End a process by force, if it is `mpirun` and does not end by itself."""
    try:
        called = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return
    is_launcher = Path(called).name in NAMES
    last = time.monotonic() + patience_seconds
    while is_launcher and process_state(process) not in ENDED:
        if time.monotonic() > last:
            # With what it has started to reach other hosts, which would keep its output open.
            children = [int(one.name) for one in Path("/proc").glob("[0-9]*") if parent_of(int(one.name)) == process]
            for one in (process, *children):
                with suppress(OSError):
                    os.kill(one, signal.SIGKILL)
            return
        time.sleep(_POLL_SECONDS)
