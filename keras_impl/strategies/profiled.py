"""Steps in separate parts, to see where their time goes (`--profile`, `--profile-layers`).

They compute what those of `Strategy` compute.
"""

from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.distributed.communicator import Communicator
from common.measurement.step_profile import Part, Profiler
from common.task.rank_batches import RankBatches
from common.task.task import Task
from keras_impl import distributed
from keras_impl.models import layer_parts
from keras_impl.strategies.strategy import Strategy


class Profiled(Strategy):
    """Has a plain optimizer and averages the gradients itself, all at once, after the last of them."""

    profiler: Profiler
    most_updates = 1  # a step waits for its own batch alone

    def __init__(self, task: Task, *, comm: Communicator, device: str) -> None:
        super().__init__(task, comm=comm, device=device)
        self.profiler = Profiler(synchronize=self.synchronize)

    def wrap(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        """Take model and optimizer as they are."""
        by_layer = self.task.config.record.profile_layers
        self._parts = layer_parts(model, self.spec) if by_layer else [("", model)]
        self._loss_name = "loss" if by_layer else ""
        super().wrap(model, optimizer)

    def _compile(self) -> None:
        # One function per part, each to be timed; but forward and backward in one, for alone the latter takes far
        # longer.
        self._gradients_of = tf.function(self._forward_and_backward, autograph=False)
        self._average = tf.function(
            partial(distributed.average_gradients, config=self.task.config.device), autograph=False
        )
        self._apply_gradients = tf.function(self.apply, autograph=False)
        self._add_sums = tf.function(self._sums.add, autograph=False)

    def rehearse(self, batches: RankBatches, epoch: int) -> None:
        """Train on the first batch of an epoch and undo it, as `Strategy.rehearse`; the profile does not count it."""
        with self.profiler.undone():
            super().rehearse(batches, epoch)

    def step(self, images: np.ndarray, labels: np.ndarray) -> None:
        """Make an update, part by part, of a stack of one."""
        lap = self.profiler.lap
        batch, batch_labels = tf.constant(images[0]), tf.constant(labels[0])
        outputs, losses, gradients, ends = self._gradients_of(batch, batch_labels)
        names = [*(name for name, _ in self._parts), self._loss_name]
        forward: list[tuple[Part, str]] = [("forward", name) for name in ("", *names)]
        backward: list[tuple[Part, str]] = [("backward", name) for name in reversed(names)]
        passes = [*forward, *backward]
        self.profiler.recorded_laps(
            (part, name, float(end)) for (part, name), end in zip(passes, ends.numpy(), strict=True)
        )
        lap("backward")
        if self.comm.size > 1:
            distributed.wait_for_all_ranks()
            lap("waiting")
            gradients = self._average(gradients)
            lap("allreduce")
        self._apply_gradients(gradients)
        lap("optimizer")
        self._add_sums(outputs, losses, batch_labels)
        self.meter.count_update()

    def _forward_and_backward(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[Any, Any, list[Any], tf.Tensor]:
        """Compute a batch part by part.

        Returns:
            Outputs, losses, gradients, and when the passes ended (seconds since 1970): of nothing, where it began; of
            each part forward and of the loss; of the loss and of each part backward, the last one first.
        """
        clock = _Clock(on_gpu=self.device != "cpu")
        passes = []
        hidden = clock.after(images)
        for _, part in self._parts:
            with tf.GradientTape() as tape:
                tape.watch(hidden)
                outputs = part(hidden, training=True)
            passes.append((tape, part, hidden, outputs))
            hidden = clock.after(outputs)
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            losses = self.losses(hidden, labels)
            loss = self._loss(losses)
        gradient = clock.after(tape.gradient(loss, hidden, output_gradients=clock.after(tf.ones_like(loss), loss)))
        gradients: dict[str, tf.Tensor] = {}
        for tape, part, inputs, outputs in reversed(passes):
            # Nothing is made of the images' gradient.
            sources = [variable.value for variable in part.trainable_variables]
            sources += [] if part is self._parts[0][1] else [inputs]
            found = tape.gradient(outputs, sources, output_gradients=gradient)
            gradient = clock.after(found[-1] if found else gradient, *found)
            gradients |= {
                variable.path: value for variable, value in zip(part.trainable_variables, found, strict=False)
            }
        in_order = [gradients[variable.path] for variable in self.model.trainable_variables]
        return hidden, losses, in_order, tf.stack(clock.times)


class _Clock:
    """Reads the time between operations of a graph, which would else run in any order that their inputs allow.

    Args:
        on_gpu: whether a GPU computes, of which the host knows what is done only by what it has received.
    """

    def __init__(self, *, on_gpu: bool) -> None:
        self.times: list[tf.Tensor] = []
        self._mark = _first_number_on_host if on_gpu else tf.identity

    def after(self, tensor: tf.Tensor, *others: tf.Tensor) -> tf.Tensor:
        """Read the time when these have been computed; return the first, with which nothing is computed before."""
        with tf.control_dependencies([*self.times[-1:], *map(self._mark, (tensor, *others))]):
            self.times.append(tf.timestamp())
        with tf.control_dependencies(self.times[-1:]):
            return tf.identity(tensor)


def _first_number_on_host(tensor: tf.Tensor) -> tf.Tensor:
    """Return a tensor's first number in the host's memory, where it is only once the GPU has computed the tensor.

    The whole tensor would take its time on the way, in the part that is timed.
    """
    first = tf.reshape(tensor, [-1])[:1]
    with tf.device("CPU:0"):
        return tf.identity(first)
