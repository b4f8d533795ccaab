"""The trial of a new Horovod in PyTorch, for set-up.

`keras_impl/horovod_trial.py` is its twin.
"""

import sys
from collections.abc import Sequence

import torch_impl  # isort: skip  # noqa: F401 - before PyTorch: switches to the environment that has it
import horovod.torch as hvd
import numpy as np
import torch

from common.checks.horovod_trial import FACTOR, Answer, run_trial
from common.training.entry_point import exit_rank, program_name


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    return run_trial(arguments, program=program_name(__file__), ask=ask)


def ask(arrays: Sequence[np.ndarray]) -> Answer:
    """Average the arrays as one group, broadcast the first; on a GPU if there is one."""
    hvd.init()
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    tensors = [torch.from_numpy(array).to(device) for array in arrays]
    averaged = hvd.grouped_allreduce(tensors, op=hvd.Average, prescale_factor=FACTOR)
    broadcast = hvd.broadcast(tensors[0], root_rank=0)
    features = {"mpi": hvd.mpi_built(), "gloo": hvd.gloo_built(), "nccl": hvd.nccl_built()}
    return Answer(
        device=device,
        averaged=[tensor.cpu().numpy() for tensor in averaged],
        broadcast=broadcast.cpu().numpy(),
        built=[name for name, is_built in features.items() if is_built],
    )


if __name__ == "__main__":
    code = main()
    exit_rank(code)
    sys.exit(code)
