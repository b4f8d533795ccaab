"""The ranks of `python -m launch parity` in Keras.

`torch_impl/parity_worker.py` is its twin.
"""

import sys
from collections.abc import Sequence

import keras_impl.quiet_tensorflow  # isort: skip  # noqa: F401 - before Keras: TensorFlow without its start-up lines
import keras
import numpy as np
import tensorflow as tf

from common.checks.parity_cases import LOSSES, Dtype, random_batch
from common.checks.parity_worker import Arrays, do_jobs, read_worker_settings
from common.config import DeviceConfig, ModelConfig
from common.distributed.communicator import Communicator
from common.measurement.metrics import Sums
from common.measurement.timing import Phases
from common.model.specs import ModelSpec
from common.model.weights import Weights
from common.run.program import exit_rank
from common.run_folder.checkpoints import PartialEpoch
from common.task.task import Task
from keras_impl import distributed
from keras_impl.data import ShardedData
from keras_impl.loop import Trainer
from keras_impl.models import build_model
from keras_impl.optimizers import build_optimizer, loss_per_sample
from keras_impl.state import TrainingState
from keras_impl.strategies import build_strategy
from keras_impl.weights import get_weights, load_weights, weight_maps


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    settings = read_worker_settings(arguments)
    comm = distributed.init()
    distributed.pin_device(DeviceConfig(device="cpu", threads=1), comm, onednn=settings.onednn)
    return do_jobs(settings, comm=comm, build_twin=Twin, outputs=outputs, leads=False)


class Twin:
    """Keras' training, update by update."""

    def __init__(self, task: Task, learning_rates: np.ndarray, comm: Communicator) -> None:
        self.strategy = build_strategy(task, comm=comm, step=0)
        self._own = PartialEpoch()  # what this rank alone starts the next update with
        _forget_last_model(task.config.model.dtype)
        model = build_model(task.spec, task.config.model)
        optimizer = build_optimizer(model, task.config, learning_rates=learning_rates)
        optimizer = self.strategy.wrap_optimizer(optimizer, model=model)
        self.state = TrainingState(model, optimizer, spec=task.spec, config=task.config)
        self.state.restore(task.first_weights)
        distributed.broadcast_state(self.state, comm=comm)
        self.trainer = Trainer(self.state, ShardedData(task, comm=comm, device="cpu"), phases=Phases())

    def update(self, number: int) -> Sums:
        """Make an update, counted from 1; return this rank's sums over its batch, as the weights were before."""
        self.trainer.start_epoch(number, self._own)
        self.trainer.train_segment(1)
        self._own = self.strategy.end_epoch(self.state, number)
        return self.trainer.result().sums


def outputs(spec: ModelSpec, weights: Weights, dtype: Dtype, training: bool) -> Arrays:
    """Return outputs, every loss, the gradients of their sum, and the running statistics afterwards.

    Args:
        training: training mode, without dropout.
    """
    _forget_last_model(dtype)
    model = build_model(spec, ModelConfig(model=spec.name, dtype=dtype, dropout=False))
    load_weights(model, weights, spec=spec)
    images, labels = random_batch(spec)
    with tf.GradientTape() as tape:
        logits = model(images.astype(dtype), training=training)
        losses = [
            tf.reduce_mean(loss_per_sample(logits, labels, config=optimizer, model_config=end))
            for optimizer, end in LOSSES.values()
        ]
        total = tf.add_n(losses)
    arrays = {"outputs": logits.numpy()}
    arrays |= {f"loss/{name}": np.array([float(loss)]) for name, loss in zip(LOSSES, losses, strict=True)}
    maps = weight_maps(model, spec)
    names = [weight.name for weight in spec.weights if weight.trainable]
    gradients = tape.gradient(total, [maps[name].variable.value for name in names])
    for name, gradient in zip(names, gradients, strict=True):
        arrays[f"gradient/{name}"] = maps[name].to_file(gradient.numpy())
    after = get_weights(model, spec=spec)
    return arrays | {f"statistics/{one.name}": after[one.name] for one in spec.weights if not one.trainable}


def _forget_last_model(dtype: str) -> None:
    """Make room for a model of another dtype, with names of layers counted from the start."""
    keras.utils.clear_session(free_memory=False)  # each job ends with that
    keras.config.set_floatx(dtype)


if __name__ == "__main__":
    code = main()
    exit_rank(code)
    sys.exit(code)
