"""The ranks of `python -m launch parity` in Keras.

`torch_impl/parity_worker.py` is its twin.
"""

from collections.abc import Sequence

import keras_impl.quiet_tensorflow  # isort: skip  # noqa: F401 - before Keras: TensorFlow without its start-up lines
import keras
import numpy as np
import tensorflow as tf

from common.checks.parity_cases import LOSSES, Dtype, random_batch
from common.checks.parity_worker import Arrays, do_jobs, read_worker_settings
from common.config import DeviceConfig, ModelConfig
from common.distributed.communicator import Communicator
from common.model.specs import ModelSpec
from common.model.weights import Weights
from common.run.epoch import Trial
from common.run.program import exit_rank
from common.task.task import Task
from keras_impl import distributed
from keras_impl.models import build_model
from keras_impl.optimizers import loss_per_sample
from keras_impl.strategies import build_strategy, trial_of
from keras_impl.weights import get_weights, load_weights, weight_maps


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    settings = read_worker_settings(arguments)
    comm = distributed.init()
    distributed.pin_device(DeviceConfig(device="cpu", threads=1), comm, onednn=settings.onednn)
    return do_jobs(settings, comm=comm, build_trial=build_trial, outputs=outputs, leads=False)


def build_trial(task: Task, learning_rates: np.ndarray, comm: Communicator) -> Trial:
    """Return the training of a task from its first weights."""
    _forget_last_model(task.config.model.dtype)
    strategy = build_strategy(task, comm=comm, device="cpu")
    trial = trial_of(strategy, learning_rates=learning_rates)
    strategy.broadcast(from_checkpoint=False)
    return trial


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
    exit_rank(main())
