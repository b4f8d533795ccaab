"""Device pinning: pure functions of lists of devices, so that they are tested without GPUs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from common.errors import UserError

if TYPE_CHECKING:  # preflight's host probe must work where pydantic is missing
    from common.config import DeviceConfig

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


def choose_gpu(gpus: Sequence[Device], *, config: "DeviceConfig", local_rank: int, local_size: int) -> Device | None:
    """Return this rank's GPU, the one at index `local_rank`; None for the CPU.

    Args:
        gpus: those visible to this process.
        config: the device to use; mixed precision needs a GPU.

    Raises:
        UserError: fewer GPUs than ranks on the host, unless there is none and the CPU may be used.
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
            f"each rank of a host needs its own GPU. Received: {local_size} ranks, {len(gpus)} GPUs. "
            f"Start {len(gpus)} ranks per host, or use --device cpu"
        )
    return gpus[local_rank]
