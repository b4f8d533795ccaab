"""The NVIDIA GPUs of this host that a process sees, and the parts of GPUs (MIG)."""

import os
import re
from dataclasses import dataclass

from common.distributed import pinning

GPUS_SEEN = "CUDA_VISIBLE_DEVICES"
# A line of `nvidia-smi --list-gpus`: "GPU 0: NVIDIA A100 (UUID: GPU-...)"; below it those of its parts,
# "  MIG 1g.5gb     Device  0: (UUID: MIG-...)".
_GPU_LINE = re.compile(r"^(GPU (\d+): (.+?)|  (MIG \S+) .*?) \(UUID: (\S+)\)$", re.MULTILINE)


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a part of one."""

    name: str
    uuid: str


def visible_gpus(listed: str) -> list[Gpu]:
    """Return the GPUs that this process may use. Parts of a GPU count where CUDA_VISIBLE_DEVICES names them.

    Args:
        listed: what `nvidia-smi --list-gpus` prints.
    """
    variable = os.environ.get(GPUS_SEEN)
    gpus = [
        (number, uuid, Gpu(name or part, uuid))
        for _, number, name, part, uuid in _GPU_LINE.findall(listed)
        if name or variable is not None
    ]
    return pinning.visible_gpus(gpus, variable)
