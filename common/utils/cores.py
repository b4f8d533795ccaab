"""The cores of this machine."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def own_cores() -> frozenset[int]:
    """Return the cores that this process may use, which a batch system may have limited."""
    has_masks = hasattr(os, "sched_getaffinity")
    return frozenset(os.sched_getaffinity(0) if has_masks else range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return the number of `own_cores`, or of those whose time a container may use; at least 1."""
    cores, quota = len(own_cores()), cpu_quota()
    return cores if quota is None else max(1, min(cores, math.floor(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the processor time that a container of this process may use, in cores; None: as much as there is."""
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    """Yield the quotas of the process's groups and of all above them (Linux: cgroups of version 1 and 2)."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup"
        place = mounted / "cpu" if controllers else mounted
        group = place / path.lstrip("/")
        # In a container the path may be that of the host, which is not there: its own group is at the top.
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):
                yield _quota(folder)
            if folder == place:
                break


def _quota(group: Path) -> float:
    """Return the quota of a group.

    Raises:
        OSError, ValueError: it has none.
    """
    if (group / "cpu.max").exists():  # "max 100000" or "150000 100000"
        quota, period = map(int, (group / "cpu.max").read_text().split())
    else:
        quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    if quota <= 0:
        raise ValueError("no limit")
    return quota / period
