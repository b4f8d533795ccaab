"""The ranks of `python -m launch bench` in tf.keras: a bare loop and our trainer.

`torch_impl/bench_worker.py` is its twin.
"""

import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras_impl.quiet_tensorflow  # isort: skip  # noqa: F401 - before Keras: TensorFlow without its start-up lines
import keras
import numpy as np
import tensorflow as tf

from common.checks.bench_turns import MEMORY_BATCHES, Train, measure, read_settings, with_steps
from common.config import DeviceConfig
from common.distributed.communicator import Communicator
from common.measurement.timing import Phases
from common.training.entry_point import exit_rank
from common.training.run_setup import RunSetup
from keras_impl import distributed
from keras_impl.data import training_data
from keras_impl.loop import Trainer
from keras_impl.models import build_model
from keras_impl.optimizers import build_loss, build_optimizer
from keras_impl.weights import load_weights


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    settings = read_settings(arguments)
    comm = distributed.init()
    distributed.pin_device(DeviceConfig(threads=settings.threads), comm)
    measure(settings, comm=comm, build=build_contestant)
    return 0


def build_contestant(name: str, setup: RunSetup, comm: Communicator) -> Train:
    """Return what trains an epoch of so many steps on this rank.

    Args:
        name: of `common.checks.bench_turns.CONTESTANTS`.
        setup: data, model and settings.
        comm: the ranks that train.
    """
    if name == "np2_each":
        config = setup.config
        config = replace(config, device=replace(config.device, gradient_groups="each"))
        setup = replace(setup, config=config)
    config, spec = setup.config, setup.spec
    model = build_model(spec, config.model)
    load_weights(model, setup.first_weights, spec=spec)
    optimizer = build_optimizer(
        model,
        config.optimizer,
        learning_rates=np.array([config.optimizer.learning_rate]),
        device=config.device,
    )
    if name == "bare":
        return bare_loop(model, optimizer, setup=setup, comm=comm)
    optimizer = distributed.wrap_optimizer(optimizer, model=model, config=config.device, comm=comm)
    distributed.broadcast_state(model, optimizer, spec=spec, comm=comm)
    return trainer_epochs(model, optimizer, setup=setup, comm=comm)


def bare_loop(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, *, setup: RunSetup, comm: Communicator
) -> Train:
    """Return the least that trains: a compiled step of forward, loss, backward, apply on batches that lie in memory."""
    some = with_steps(setup, size=1, steps=min(MEMORY_BATCHES, setup.steps_per_epoch))
    batches = list(training_data(some, epoch=1, comm=comm))
    loss = build_loss(setup.config.optimizer, setup.config.model)

    @tf.function
    def step(images: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss_value = loss(labels, model(images, training=True))
        optimizer.apply(tape.gradient(loss_value, model.trainable_variables), model.trainable_variables)

    def train(epoch: int, steps: int) -> float:
        distributed.synchronize()
        started = time.perf_counter()
        for images, labels in itertools.islice(itertools.cycle(batches), steps):
            step(images, labels)
        distributed.synchronize()
        return time.perf_counter() - started

    return train


def trainer_epochs(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, *, setup: RunSetup, comm: Communicator
) -> Train:
    """Return the epochs of our trainer, fed by its own data path."""
    trainer = Trainer(model, optimizer, config=setup.config, phases=Phases(), distributed=comm.size > 1)

    def train(epoch: int, steps: int) -> float:
        some = with_steps(setup, size=comm.size, steps=steps)
        _, seconds, _ = trainer.train_epoch(
            training_data(some, epoch=epoch, comm=comm), epoch=epoch, advance=lambda _: None
        )
        return seconds

    return train


if __name__ == "__main__":
    code = main()
    exit_rank(code)
    sys.exit(code)
