"""The cores of this machine."""

import os


def usable_cores() -> int:
    """Return the number of cores that this process may use, which a batch system may have limited."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
