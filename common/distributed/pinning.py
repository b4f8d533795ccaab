"""Which GPU a rank takes: pure functions of lists of devices, so that they are tested without GPUs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from common.errors import UserError

if TYPE_CHECKING:  # preflight's host probe must work where pydantic is missing
    from common.config import DeviceConfig

Device = TypeVar("Device")


def visible_gpus(gpus: Sequence[tuple[str, str, Device]], variable: str | None) -> list[Device]:
    """Return the GPUs that CUDA shows to a process, in the order in which it numbers them.

    Args:
        gpus: all GPUs of the host, as (index, UUID, device).
        variable: value of CUDA_VISIBLE_DEVICES, a list of indices or beginnings of UUIDs; None: not set, so all.

    Returns:
        The devices up to the first entry that names none, where CUDA stops, too.
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


def choose_gpu(gpus: Sequence[Device], *, config: "DeviceConfig", local_rank: int, local_size: int) -> Device | None:
    """Return this rank's GPU, the one whose number is the local rank; None for the CPU.

    Args:
        gpus: those that this process sees on its host.
        config: `device` is the device to use; mixed precision needs a GPU.
        local_rank: of this process on its host.
        local_size: number of processes on this host.

    Raises:
        UserError: there are GPUs, or GPUs are asked for, but not one for each rank of the host.
    """
    if config.device == "cpu":
        return None
    if not gpus and config.mixed_precision:
        raise UserError("mixed precision needs a GPU. Received: --mixed-precision. Leave it out on a CPU")
    if not gpus and config.device == "auto":
        return None
    if not gpus:
        raise UserError("no GPU was found. Received: --device gpu. Use --device cpu, or check nvidia-smi")
    if len(gpus) < local_size:
        raise UserError(
            f"each rank of a host takes a GPU of its own. Received: {local_size} ranks, {len(gpus)} GPUs. "
            f"Start {len(gpus)} ranks per host, or use --device cpu"
        )
    return gpus[local_rank]
