"""The cores of each rank of a host: its own where the launcher binds ranks, else a share of those they have in common.

TensorFlow takes its number of threads before its first operation, so also before ranks can exchange anything through
it: each rank reads from /proc which cores the others of its host may use.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from common.distributed.launchers import LOCAL_RANK_VARIABLES
from common.utils.cores import cpu_quota, own_cores

Cores = frozenset[int]
ROUNDING = 1e-9  # of a sum of thirds


@dataclass(frozen=True)
class CoreShare:
    """The number of cores that the ranks of this host may use in all, and how many of them are this rank's."""

    total: int
    own: float

    def is_exceeded_by(self, threads: int) -> bool:
        """Return whether this rank has more threads than cores."""
        return threads > self.own + ROUNDING


# By these a rank knows the processes of its own start on its own host; each launcher sets some of them.
_START_VARIABLES = (
    "PMIX_NAMESPACE", "PMIX_HOSTNAME",
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURMD_NODENAME",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT", "HOROVOD_HOSTNAME",
)  # fmt: skip


def core_share(*, local_size: int) -> CoreShare:
    """Return this rank's share of its host's cores, from /proc.

    Where the ranks of the host cannot all be found (other launchers, one container per rank), each is taken to have
    the cores of this one.
    """
    own = own_cores()
    found = _cores_by_local_rank(os.environ) if hasattr(os, "sched_getaffinity") and local_size > 1 else {}
    # Servers, which compute nothing, are the last ranks of a host.
    workers = [cores for local_rank, cores in found.items() if int(local_rank) < local_size]
    ranks = workers if len(workers) == local_size else [own] * local_size
    total = len(frozenset().union(*ranks))
    return limited(CoreShare(total=total, own=share_of_cores(own, ranks)), quota=cpu_quota())


def limited(share: CoreShare, *, quota: float | None) -> CoreShare:
    """Return what is left of a share where the ranks' container may use the time of `quota` cores; None: of all."""
    if quota is None or quota >= share.total:
        return share
    return CoreShare(total=max(1, math.floor(quota)), own=share.own * quota / share.total)


def _cores_by_local_rank(variables: Mapping[str, str]) -> dict[str, Cores]:
    start = {name: variables.get(name) for name in _START_VARIABLES}
    local_rank = next((name for name in LOCAL_RANK_VARIABLES if name in variables), None)
    if local_rank is None or not any(start.values()):
        return {}
    found: dict[str, Cores] = {}
    for process in psutil.process_iter():
        try:
            theirs = process.environ()
            if local_rank not in theirs or any(theirs.get(name) != value for name, value in start.items()):
                continue
            cores = frozenset(process.cpu_affinity())
        except psutil.Error:  # another user's, or gone
            continue
        # A shell around a rank has the rank's variables, and maybe more cores.
        number = theirs[local_rank]
        found[number] = min(found.get(number, cores), cores, key=len)
    return found


def share_of_cores(own: Cores, ranks: Sequence[Cores]) -> float:
    """Return how many cores a rank has: one that k ranks of the host may use counts as 1/k.

    Args:
        own: the cores that this rank may use.
        ranks: those of every rank of the host, this one's included.
    """
    return sum(1 / sum(core in cores for cores in ranks) for core in own)


def threads_per_rank(wanted: int | None, *, share: CoreShare) -> int:
    """Return the compute threads of a rank: `wanted`, else its share of the cores, at least 1."""
    return wanted or max(1, math.floor(share.own + ROUNDING))
