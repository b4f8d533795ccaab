"""Steps in separate parts, to see where their time goes (`--profile`); they compute what those of `loop.py` compute."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import tensorflow as tf

from common.measurement.step_profile import Profiler
from common.measurement.timing import Phases, Timer, timed
from keras_impl.data import ShardedData
from keras_impl.distributed import average_gradients, wait_for_all_ranks
from keras_impl.loop import Trainer
from keras_impl.state import TrainingState


class ProfiledTrainer(Trainer):
    """Has a plain optimizer and averages the gradients itself, all at once, after the last of them."""

    profiler: Profiler

    def __init__(self, state: TrainingState, data: ShardedData, *, phases: Phases) -> None:
        super().__init__(state, data, phases=phases)
        self.profiler = Profiler(synchronize=self._synchronize)

    def _compile(self) -> None:
        # One function per part, each to be timed; but forward and backward in one, for alone the latter takes far
        # longer.
        self._gradients_of = tf.function(self._forward_and_backward, autograph=False)
        self._average = tf.function(self._averages_of, autograph=False)
        self._apply_gradients = tf.function(self._apply, autograph=False)
        self._add_sums = tf.function(self._add, autograph=False)

    def warm_up(self, epoch: int) -> None:
        """Train on a batch of an epoch and undo it, as `Trainer.warm_up`; the profile does not count it."""
        super().warm_up(epoch)
        self.profiler.restart()

    def _train(self, batches: Any, steps: int, *, advance: Callable[[int], object]) -> None:
        timer = Timer()
        for images, labels in self.profiler.steps(islice(timed(batches, timer), steps)):
            self._timed_step(images, labels)
            advance(1)
        self._waiting_seconds.assign_add(timer.seconds)

    def _timed_step(self, images: tf.Tensor, labels: tf.Tensor) -> None:
        lap = self.profiler.lap
        outputs, losses, gradients, forward_ended = self._gradients_of(images, labels)
        lap("forward", ended_at=float(forward_ended))
        lap("backward")
        if self.data.comm.size > 1:
            wait_for_all_ranks()
            lap("waiting")
            gradients = self._average(gradients)
            lap("allreduce")
        self._apply_gradients(gradients)
        lap("optimizer")
        self._add_sums(outputs, losses, labels)

    def _forward_and_backward(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[Any, Any, list[Any], Any]:
        """Return outputs, losses, gradients, and when the forward pass ended (seconds since 1970)."""
        with tf.GradientTape() as tape:
            outputs, losses = self._forward(images, labels, training=True)
            loss = self._loss(losses)
        with tf.control_dependencies([_on_host(loss)]):
            forward_ended = tf.timestamp()
        with tf.control_dependencies([forward_ended]):
            first_gradient = tf.ones_like(loss)
        weights = [variable.value for variable in self.state.model.trainable_variables]
        return outputs, losses, tape.gradient(loss, weights, output_gradients=first_gradient), forward_ended

    def _averages_of(self, gradients: list[Any]) -> list[Any]:
        return average_gradients(gradients, config=self.state.config)

    def _apply(self, gradients: list[Any]) -> None:
        self.state.optimizer.apply(gradients, self.state.model.trainable_variables)


def _on_host(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor in the host's memory, where it is only once the device has computed it."""
    with tf.device("CPU:0"):
        return tf.identity(tensor)
