"""The ranks of `python -m launch bench` in tf.keras: a bare loop and our trainer.

`torch_impl/bench_worker.py` is its twin.
"""

import itertools
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up lines, read when it is imported

import keras
import numpy as np
import tensorflow as tf

from common.checks.bench_turns import MEMORY_BATCHES, Train, measure, read_settings, with_steps
from common.config import DeviceConfig
from common.distributed.ranks import Ranks
from common.measurement.timing import Phases
from common.training.entry_point import leave
from common.training.run_setup import Experiment
from keras_impl import distributed
from keras_impl.data import training_data
from keras_impl.loop import Trainer
from keras_impl.models import build_model
from keras_impl.optimizers import build_loss, build_optimizer
from keras_impl.weights import load_weights


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    settings = read_settings(arguments)
    ranks = distributed.init()
    distributed.pin_device(DeviceConfig(threads=settings.threads), ranks)
    measure(settings, ranks=ranks, build=build_contestant)
    return 0


def build_contestant(name: str, experiment: Experiment, ranks: Ranks) -> Train:
    """Return what trains an epoch of so many steps on this rank.

    Args:
        name: of `common.checks.bench_turns.CONTESTANTS`.
        experiment: data, model and settings.
        ranks: those that train.
    """
    if name == "np2_each":
        config = experiment.config
        config = replace(config, device=replace(config.device, gradient_groups="each"))
        experiment = replace(experiment, config=config)
    config, spec = experiment.config, experiment.spec
    model = build_model(spec, config.model)
    load_weights(model, experiment.first_weights, spec=spec)
    optimizer = build_optimizer(
        model,
        config.optimizer,
        learning_rates=np.array([config.optimizer.learning_rate]),
        device=config.device,
    )
    if name == "bare":
        return bare_loop(model, optimizer, experiment=experiment, ranks=ranks)
    optimizer = distributed.wrap_optimizer(optimizer, model=model, config=config.device, ranks=ranks)
    distributed.broadcast_state(model, optimizer, spec=spec, ranks=ranks)
    return trainer_epochs(model, optimizer, experiment=experiment, ranks=ranks)


def bare_loop(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, *, experiment: Experiment, ranks: Ranks
) -> Train:
    """Return the least that trains: a compiled step of forward, loss, backward, apply on batches that lie in memory."""
    some = with_steps(experiment, size=1, steps=min(MEMORY_BATCHES, experiment.steps_per_epoch))
    batches = list(training_data(some, epoch=1, ranks=ranks))
    loss = build_loss(experiment.config.optimizer, experiment.config.model)

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
    model: keras.Model, optimizer: keras.optimizers.Optimizer, *, experiment: Experiment, ranks: Ranks
) -> Train:
    """Return the epochs of our trainer, fed by its own data path."""
    trainer = Trainer(model, optimizer, config=experiment.config, phases=Phases(), distributed=ranks.size > 1)

    def train(epoch: int, steps: int) -> float:
        some = with_steps(experiment, size=ranks.size, steps=steps)
        _, seconds, _ = trainer.train_epoch(
            training_data(some, epoch=epoch, ranks=ranks), epoch=epoch, advance=lambda _: None
        )
        return seconds

    return train


if __name__ == "__main__":
    code = main()
    leave(code)
    sys.exit(code)
