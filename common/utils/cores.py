"""The cores of this machine."""

import os


def own_cores() -> frozenset[int]:
    """Return the cores that this process may use, which a batch system may have limited."""
    has_masks = hasattr(os, "sched_getaffinity")
    return frozenset(os.sched_getaffinity(0) if has_masks else range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return the number of `own_cores`."""
    return len(own_cores())
