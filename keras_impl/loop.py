"""`compile`, `fit` and `evaluate` of Keras: train an epoch, evaluate."""

import math
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.config import Config
from common.metrics import Sums
from keras_impl.distributed_optimizer import check_compiled_model
from keras_impl.optimizers import build_loss

STEPS_PER_EXECUTION = 16  # updates that Keras runs in one call of TensorFlow


class Trainer:
    """A compiled model."""

    def __init__(
        self, model: keras.Model, optimizer: keras.optimizers.Optimizer, *, config: Config, distributed: bool
    ) -> None:
        self.model = model
        model.compile(
            optimizer=optimizer,
            loss=build_loss(config.optimizer, config.model),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            steps_per_execution=STEPS_PER_EXECUTION,
            jit_compile=False,  # Horovod's operations are no XLA operations
            auto_scale_loss=False,  # the optimizer scales the loss itself where precision is mixed
        )
        if distributed:
            check_compiled_model(model)

    def warm_up(self, batches: tf.data.Dataset) -> None:
        """Train on one batch and take it back: the first call builds the graph, which is no training time."""
        variables = [*self.model.variables, *self.model.optimizer.variables]
        before = [variable.numpy() for variable in variables]
        self.model.fit(batches.take(1), verbose=0, shuffle=False)
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)

    def train_epoch(
        self, batches: tf.data.Dataset, *, epoch: int, advance: Callable[[int], object]
    ) -> tuple[Sums, float, float]:
        """Train on the batches of one epoch.

        Args:
            batches: images (batch, height, width, channels), labels (batch,) int64.
            epoch: its number, from 1.
            advance: told of every step, for a bar.

        Returns:
            Sums of this rank over the epoch (as the weights were at each step), seconds of training, and NaN for the
            part of them spent waiting for data: tf.data is read inside the compiled steps.
        """
        counter = _Counter(advance)
        started = time.perf_counter()
        logs = self.model.fit(batches, initial_epoch=epoch - 1, epochs=epoch, verbose=0, shuffle=False,
                              callbacks=[counter]).history  # fmt: skip
        seconds = time.perf_counter() - started
        samples = int(batches.cardinality()) * batches.element_spec[1].shape[0]
        return _sums(logs["loss"][0], logs["accuracy"][0], samples), seconds, math.nan

    def evaluate(self, batches: tf.data.Dataset, *, samples: int) -> tuple[Sums, float]:
        """Return the sums of this rank over the batches of `samples` samples, in inference mode, and the seconds."""
        if samples == 0:
            return Sums(), 0.0
        started = time.perf_counter()
        logs = self.model.evaluate(batches, verbose=0, return_dict=True)
        return _sums(logs["loss"], logs["accuracy"], samples), time.perf_counter() - started


class _Counter(keras.callbacks.Callback):
    """Tells a bar how far an epoch is."""

    def __init__(self, advance: Callable[[int], object]) -> None:
        super().__init__()
        self._advance = advance
        self._done = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """`batch` is the number of the last step done, from 0."""
        self._advance(batch + 1 - self._done)
        self._done = batch + 1


def _sums(mean_loss: float, accuracy: float, samples: int) -> Sums:
    # Keras gives means over samples; right answers are whole numbers.
    return Sums(float(mean_loss) * samples, round(float(accuracy) * samples), samples)


def seed_dropout(model: keras.Model, *, seed: int, epoch: int, rank: int) -> None:
    """Give every epoch and rank dropout masks of their own that do not depend on what ran before."""
    for number, layer in enumerate(model.layers):
        generator = getattr(layer, "seed_generator", None)
        if generator is not None:
            generator.state.assign(np.random.SeedSequence([seed, epoch, rank, number]).generate_state(2, np.uint32))
