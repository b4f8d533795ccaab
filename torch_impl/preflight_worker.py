"""The ranks of `python -m launch preflight` in PyTorch.

`keras_impl/preflight_worker.py` is its twin.
"""

import time
from collections.abc import Sequence

import torch_impl  # isort: skip  # noqa: F401 - before PyTorch: switches to the environment that has it
import horovod.torch as hvd
import numpy as np
import torch

from common.checks.preflight_worker import check_exchange, run_worker
from common.config import DeviceConfig
from common.run.program import exit_rank
from common.utils.command_line import program_name
from torch_impl import distributed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    return run_worker(arguments, program=program_name(__file__), check=check)


def check(config: DeviceConfig) -> int:
    """Sum over all ranks, where and how gradients are summed; return the exit code."""
    ranks = distributed.init()
    device, _ = distributed.pin_device(config, ranks)

    def exchange(values: np.ndarray) -> tuple[np.ndarray, float]:
        tensor = torch.from_numpy(values).to(device)
        distributed.synchronize(device)
        began = time.perf_counter()
        # Horovod has not been started in a process that is alone.
        total = hvd.allreduce(tensor, op=hvd.Sum, name="preflight") if ranks.size > 1 else tensor
        distributed.synchronize(device)
        seconds = time.perf_counter() - began
        return total.cpu().numpy(), seconds

    return check_exchange(ranks, device=str(device), exchange=exchange)


if __name__ == "__main__":
    exit_rank(main())
