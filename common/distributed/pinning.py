"""Which GPU a rank takes. A pure function, so that it can be tested on made lists of devices."""

from collections.abc import Sequence
from typing import TypeVar

from common.config import DeviceConfig
from common.errors import UserError

Device = TypeVar("Device")


def choose_gpu(gpus: Sequence[Device], *, config: DeviceConfig, local_rank: int, local_size: int) -> Device | None:
    """Return this rank's GPU, the one numbered by its local rank; None for the CPU.

    Args:
        gpus: those that this process sees on its host.
        config: says which device is wanted, and whether precision is mixed, which takes a GPU.
        local_rank: of this process on its host.
        local_size: processes on this host.

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
        raise UserError("no GPU was found. Received: --device gpu. Use --device cpu, or look at nvidia-smi")
    if len(gpus) < local_size:
        raise UserError(
            f"each rank of a host takes a GPU of its own. Received: {local_size} ranks, {len(gpus)} GPUs. "
            f"Start {len(gpus)} ranks a host, or use --device cpu"
        )
    return gpus[local_rank]
