"""Steps taken apart to see where their time goes (`--profile`); they compute what those of `loop.py` compute."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import keras
import tensorflow as tf

from common.config import Config
from common.distributed.communicator import Communicator
from common.measurement.step_profile import Profiler
from common.measurement.timing import Phases, Timer, timed
from common.model.weights import Weights
from keras_impl.distributed import average_gradients, synchronize, wait_for_all_ranks
from keras_impl.loop import Trainer


class ProfiledTrainer(Trainer):
    """Takes a plain optimizer and averages the gradients itself, all at once, after the last of them."""

    profiler: Profiler

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        *,
        config: Config,
        phases: Phases,
        comm: Communicator,
    ) -> None:
        super().__init__(model, optimizer, config=config, phases=phases, distributed=False)
        self.profiler = Profiler(synchronize=synchronize)
        self._exchanges = comm.size > 1
        self._loss, self._accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()

        def gradients_of(images: tf.Tensor, labels: tf.Tensor) -> tuple[Any, Any, list[Any], Any]:
            """Return the loss, the outputs, the gradients, and when the way forward had ended (seconds since 1970)."""
            with tf.GradientTape() as tape:
                outputs = model(images, training=True)
                loss = model.compute_loss(x=images, y=labels, y_pred=outputs)
            with tf.control_dependencies([_on_host(loss)]):
                forward_ended = tf.timestamp()
            with tf.control_dependencies([forward_ended]):
                first_gradient = tf.ones_like(loss)
            weights = [variable.value for variable in model.trainable_variables]
            return loss, outputs, tape.gradient(loss, weights, output_gradients=first_gradient), forward_ended

        def update_metrics(loss: tf.Tensor, labels: tf.Tensor, outputs: tf.Tensor) -> None:
            self._loss.update_state(loss)
            self._accuracy.update_state(labels, outputs)

        # Compiled one by one, each to be timed; but forward and back in one, for apart the way back takes far longer.
        self._gradients_of = tf.function(gradients_of, autograph=False)
        self._average = tf.function(
            lambda gradients: average_gradients(model, gradients, config=config.device), autograph=False
        )
        self._update = tf.function(
            lambda gradients: optimizer.apply(gradients, model.trainable_variables), autograph=False
        )
        self._update_metrics = tf.function(update_metrics, autograph=False)

    def warm_up(self, batches: tf.data.Dataset) -> None:
        """Train on one batch and take it back, as `Trainer.warm_up`, and count it for nothing."""
        super().warm_up(batches)
        self.profiler.restart()

    def _metric_variables(self) -> list[keras.Variable]:
        return [*self._loss.variables, *self._accuracy.variables]

    def _waiting_seconds(self) -> float:
        return self._waiting.seconds

    def _train(
        self,
        batches: tf.data.Dataset,
        *,
        epoch: int,
        advance: Callable[[int], object],
        parts: Iterable[int],
        state: Weights,
    ) -> tuple[float, float]:
        self._waiting = Timer()
        self._loss.reset_state()
        self._accuracy.reset_state()
        self._restore(state)
        drawn = timed(iter(batches), self._waiting)
        for steps in parts:
            for images, labels in self.profiler.steps(islice(drawn, steps)):
                self._step(images, labels)
                advance(1)
        return float(self._loss.result()), float(self._accuracy.result())

    def _step(self, images: Any, labels: Any) -> None:
        lap = self.profiler.lap
        loss, outputs, gradients, forward_ended = self._gradients_of(images, labels)
        lap("forward", ended_at=float(forward_ended))
        lap("backward")
        if self._exchanges:
            wait_for_all_ranks()
            lap("waiting")
            gradients = self._average(gradients)
            lap("allreduce")
        self._update(gradients)
        lap("optimizer")
        self._update_metrics(loss, labels, outputs)


def _on_host(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor in the host's memory, where it is only once the device has computed it."""
    with tf.device("CPU:0"):
        return tf.identity(tensor)
