"""The end of a launcher that outlives its ranks. The watcher imports this file: the standard library alone.

`mpirun` waits for its daemons on all hosts, also for one on a host that does not answer any more.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from common.utils.process_state import ENDED, parent_of, process_state

NAMES = ("mpirun", "mpiexec", "orterun")
PATIENCE_SECONDS = 30.0


def end_launcher(process: int, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """End a process by force, if it is `mpirun` and does not end by itself."""
    try:
        program = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return
    if Path(program).name not in NAMES:
        return
    last = time.monotonic() + patience_seconds
    while process_state(process) not in ENDED:
        if time.monotonic() > last:
            # With what it has started to reach other hosts, which would keep its output open.
            children = [int(path.name) for path in Path("/proc").glob("[0-9]*") if parent_of(int(path.name)) == process]
            for number in (process, *children):
                with suppress(OSError):
                    os.kill(number, signal.SIGKILL)
            return
        time.sleep(0.2)
