"""The trial of a new Horovod in tf.keras, for set-up.

`torch_impl/horovod_trial.py` is its twin.
"""

import sys
from collections.abc import Sequence

import keras_impl.quiet_tensorflow  # isort: skip  # noqa: F401 - before Keras: TensorFlow without its start-up lines
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from common.checks.horovod_trial import FACTOR, Answer, run_trial
from common.training.entry_point import exit_rank, program_name


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    return run_trial(arguments, program=program_name(__file__), ask=ask)


def ask(arrays: Sequence[np.ndarray]) -> Answer:
    """Average the arrays as one group, broadcast the first; on a GPU if there is one."""
    hvd.init()
    device = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
    with tf.device(device):
        tensors = [tf.constant(array) for array in arrays]
        averaged = hvd.grouped_allreduce(tensors, op=hvd.Average, prescale_factor=FACTOR)
        broadcast = hvd.broadcast(tensors[0], root_rank=0)
    features = {"mpi": hvd.mpi_built(), "gloo": hvd.gloo_built(), "nccl": hvd.nccl_built()}
    return Answer(
        device=device,
        averaged=[tensor.numpy() for tensor in averaged],
        broadcast=broadcast.numpy(),
        built=[name for name, is_built in features.items() if is_built],
    )


if __name__ == "__main__":
    code = main()
    exit_rank(code)
    sys.exit(code)
