"""The ranks of a run and what they compute with, as the record shows them."""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass

from common.distributed.communicator import Communicator
from common.distributed.launchers import launcher_of, runs_at_once
from common.run_folder.records import World
from common.run_folder.values import NotRecorded, OneDNNInForce
from common.task.task import Task


@dataclass(frozen=True, kw_only=True)
class RankDevice:
    """What a rank computes with.

    Attributes:
        name: of its device.
        gpu: its model; None on a CPU.
        onednn: whether oneDNN computes on the CPU.
        peak_memory: returns the most bytes that were used of the GPU, as the framework counts it; None on a CPU.
        pinned_memory: why the setting is not applicable to the framework; None: it is.
    """

    name: str
    gpu: str | None
    threads: int
    onednn: bool
    peak_memory: Callable[[], int | None]
    pinned_memory: NotRecorded | None = None


def describe_world(device: RankDevice, *, task: Task, comm: Communicator) -> World:
    """Return the ranks there are, this one with its device; every rank calls this."""
    in_force: OneDNNInForce | None = None if device.name != "cpu" else "on" if device.onednn else "off"
    of_ranks = comm.allgather((platform.node(), device.name, device.gpu, in_force))
    hosts, devices, gpus, onednn_of_ranks = zip(*of_ranks, strict=True)
    local_size, too_many = comm.local_size, comm.cores.is_exceeded_by(device.threads)
    if task.config.faults.elastic:  # a host may have fewer ranks than places
        local_size = hosts.count(platform.node())
        too_many = local_size * device.threads > comm.cores.total
    return World(
        size=comm.size,
        local_size=local_size,
        servers=comm.servers,
        parts=comm.parts,
        hosts=sorted({*hosts, *comm.server_hosts}),
        controller=comm.controller,
        threads_per_rank=device.threads,
        cores=comm.cores.total,
        oversubscribed=any(comm.allgather(too_many)),
        devices=list(devices),
        gpus=list(gpus),
        onednn=list(onednn_of_ranks),
        launcher=launcher_of(os.environ),
        pinned_memory=device.pinned_memory or task.config.device.pinned_memory,
        at_once=runs_at_once(),
    )
