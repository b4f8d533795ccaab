"""Device pinning: functions of lists of devices, so that they are tested without GPUs."""

import os
import platform
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

from common.config import DeviceConfig
from common.distributed.communicator import Communicator
from common.errors import UserError

Device = TypeVar("Device")


def visible_gpus(gpus: Sequence[tuple[str, str, Device]], variable: str | None) -> list[Device]:
    """Return the GPUs that are visible to a process, in CUDA's order.

    Args:
        gpus: all GPUs of the host, as (index, UUID, device).
        variable: value of CUDA_VISIBLE_DEVICES, a list of indices or prefixes of UUIDs; None: not set, all are visible.

    Returns:
        The devices up to the first invalid entry, like CUDA.
    """
    if variable is None:
        return [device for _, _, device in gpus]
    visible: list[Device] = []
    for entry in filter(None, (part.strip() for part in variable.split(","))):
        found = [device for index, uuid, device in gpus if entry == index or uuid.startswith(entry)]
        if not found:
            break
        visible.append(found[0])
    return visible


def choose_gpu(gpus: Sequence[Device], *, config: DeviceConfig, local_rank: int, local_size: int) -> Device | None:
    """Return this rank's GPU: the only one that it sees, or the one at index `local_rank`; None for the CPU.

    With `config.share_gpu` ranks take the GPUs in turns.

    A batch system may show each rank its own GPU only; `check_own_gpu` finds ranks that were shown the same one.

    Args:
        gpus: those visible to this process.
        config: the device to use; mixed precision in float16, pinned memory and sharing need a GPU.

    Raises:
        UserError: fewer GPUs than ranks on the host, unless there is none and the CPU may be used.
    """
    if config.device == "cpu":
        return None
    if not gpus and config.mixed_precision == "float16":
        raise UserError("mixed precision in float16 needs a GPU. Received: --mixed-precision float16. Use bfloat16")
    if not gpus and config.pinned_memory:
        raise UserError("pinned memory is for copies to a GPU. Received: --pinned-memory and no GPU. Leave it out")
    if not gpus and config.share_gpu:
        raise UserError("there is no GPU to share. Received: --share-gpu and no GPU. Leave it out")
    if not gpus and config.device == "auto":
        return None
    if not gpus:
        raise UserError("no GPU was found. Received: --device gpu. Use --device cpu, or check nvidia-smi")
    if 1 < len(gpus) < local_size and not config.share_gpu:
        raise UserError(
            f"each rank of a host needs its own GPU. Received: {local_size} ranks, {len(gpus)} GPUs. "
            f"Start {len(gpus)} ranks per host, or use --device cpu, or --share-gpu (not for timings)"
        )
    return gpus[local_rank % len(gpus)]


def check_onednn(asked: str, *, is_on: bool) -> None:
    """Raise UserError if oneDNN computes against `--onednn`; a build without it computes without it."""
    if asked == "off" and is_on:
        raise UserError("oneDNN cannot be turned off in this build. Received: --onednn off. Give --onednn framework")


def report_missing_onednn(asked: str, *, is_on: bool) -> None:
    """Say in one line, beside the results of a program, that it computes without oneDNN although it was asked for."""
    if asked == "on" and not is_on:
        print("note: this build of the framework has no oneDNN (--onednn on), and computes without it", file=sys.stderr)


def check_own_gpu(number: int | None, *, config: DeviceConfig, comm: Communicator) -> None:
    """Raise UserError on all ranks if two ranks of a host have the same GPU and are not to share it.

    Args:
        number: of this rank's GPU among those visible to it; None: the CPU.
    """
    if config.share_gpu:
        return
    own = None if number is None else gpu_identity(number, os.environ.get("CUDA_VISIBLE_DEVICES"), gpu_uuids())
    found: dict[tuple[str, str], int] = {}
    for rank, (host, gpu) in enumerate(comm.allgather((platform.node(), own))):
        if gpu is None:
            continue
        first = found.setdefault((host, gpu), rank)
        if first != rank:
            raise UserError(
                f"each rank of a host needs its own GPU. Received: ranks {first} and {rank} of {host} on the same one "
                f"({gpu}). Start one rank per GPU, show each rank only one, or use --device cpu, or --share-gpu "
                "(not for timings)"
            )


def gpu_identity(number: int, variable: str | None, uuids: Sequence[str]) -> str:
    """Return what identifies a GPU on its host: its UUID, or what is known of it where NVML is missing.

    Args:
        number: of the GPU among those visible to a process.
        variable: the process's CUDA_VISIBLE_DEVICES.
        uuids: of the GPUs that NVML shows this process.
    """
    visible = visible_gpus([(str(index), uuid, uuid) for index, uuid in enumerate(uuids)], variable)
    return visible[number] if number < len(visible) else f"GPU {number} of CUDA_VISIBLE_DEVICES={variable or ''}"


def gpu_uuids(nvml: Any = None) -> list[str]:
    """Return the UUIDs of the GPUs that NVML shows this process; none where it cannot be asked."""
    if nvml is None:
        try:
            import pynvml  # here, because CPUs are pinned without it
        except ImportError:
            return []
        nvml = pynvml
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
    except nvml.NVMLError:
        return []
