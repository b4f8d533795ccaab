"""The Keras process of `python -m common twins`.

Builds its model while PyTorch's runs; then matches, compares and writes down what it finds.
`torch_impl/twins/worker.py` goes before.
"""

import sys
from collections.abc import Sequence

import keras_impl.quiet_tensorflow  # isort: skip  # noqa: F401 - before Keras: TensorFlow without its start-up lines
import keras
import tensorflow as tf

from common.twins.contract import load_pair
from common.twins.processes import Task, run_worker
from keras_impl.twins.compared import compare
from keras_impl.twins.model import Built, use_fast_grouped_convolutions


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    return run_worker(work, side="keras", arguments=arguments)


def work(task: Task) -> None:
    """Build the model, wait for PyTorch's process, compare."""
    tf.config.threading.set_intra_op_parallelism_threads(task.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    use_fast_grouped_convolutions()
    built = Built(load_pair(task.source))
    task.write_result("keras", compare(built, task))


if __name__ == "__main__":
    sys.exit(main())
