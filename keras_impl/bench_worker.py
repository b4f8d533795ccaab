"""The ranks of `python -m launch bench` in tf.keras: bare loops, our trainer, and our loop on bare MPI.

`torch_impl/bench_worker.py` is its twin.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import keras_impl.quiet_tensorflow  # isort: skip  # noqa: F401 - before Keras: TensorFlow without its start-up lines
import keras
import tensorflow as tf

from common.checks.bench_turns import (
    MEMORY_BATCHES,
    BareAverage,
    ExchangeTimes,
    Train,
    constant_rates,
    measure,
    read_settings,
    trained_epochs,
    with_steps,
)
from common.config import DeviceConfig
from common.distributed.communicator import Communicator
from common.distributed.joining import join_mpi
from common.run.program import exit_rank
from common.task.task import Task
from keras_impl import distributed
from keras_impl.data import ShardedData
from keras_impl.exchange_meter import ExchangeMeter
from keras_impl.onednn import onednn_is_on
from keras_impl.strategies import build_strategy, trial_of
from keras_impl.strategies.allreduce import AllReduce
from keras_impl.strategies.strategy import Strategy


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    settings = read_settings(arguments)
    # Horovod's thread would take part in every message of MPI, and hold up a bare one.
    comm = join_mpi() if "np2_mpi" in settings.contestants else distributed.init()
    device, _ = distributed.pin_device(DeviceConfig(threads=settings.threads), comm, onednn=settings.onednn)
    measure(settings, comm=comm, build=partial(build_contestant, device=device), onednn=onednn_is_on())
    return 0


def build_contestant(name: str, task: Task, comm: Communicator, times: ExchangeTimes, *, device: str) -> Train:
    """Return what trains an epoch of so many steps on this rank."""
    if name == "np2_mpi":
        strategy: Strategy = _BareMpi(task, comm=comm, device=device, times=times)
    elif name == "np2":
        strategy = AllReduce(task, comm=comm, device=device, meter=_GraphTimes())
    else:  # the times of np2_each overlap
        strategy = build_strategy(task, comm=comm, device=device)
    batches = trial_of(strategy, learning_rates=constant_rates(task)).batches
    if name.startswith("bare"):
        return bare_loop(strategy, batches, with_sums=name != "bare", makes_batches=name == "bare_batches")
    if name != "np2_mpi":  # without Horovod
        strategy.broadcast(from_checkpoint=False)
    train = trained_epochs(strategy, batches)
    return strategy.meter.of_each_epoch(train, times) if isinstance(strategy.meter, _GraphTimes) else train


class _BareMpi(Strategy):
    """Gradients are averaged by bare MPI after the last of them."""

    def __init__(self, task: Task, *, comm: Communicator, device: str, times: ExchangeTimes) -> None:
        super().__init__(task, comm=comm, device=device)
        self._times = times

    def wrap(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        """Take model and optimizer, and make room for all gradients."""
        self._shapes = [weight.shape for weight in model.trainable_variables]
        self._average = BareAverage(self._shapes, times=self._times)
        super().wrap(model, optimizer)

    def before_update(self, gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the averages."""
        means = tf.numpy_function(self._average, gradients, [one.dtype for one in gradients])
        return [tf.ensure_shape(mean, shape) for mean, shape in zip(means, self._shapes, strict=True)]


class _GraphTimes(ExchangeMeter):
    """What `ExchangeTimes` notes, inside a graph."""

    def __init__(self) -> None:
        super().__init__()
        self._each = tf.Variable(tf.zeros([0, 2], tf.float64), shape=[None, 2], trainable=False)  # began, ended

    def note(self, started: Any, ended: Any) -> None:
        """Note when an exchange began and ended."""
        super().note(started, ended)
        self._each.assign(tf.concat([self._each, [[started, ended]]], axis=0))

    def of_each_epoch(self, train: Train, times: ExchangeTimes) -> Train:
        """Return `train` that also gives `times` what was noted in its epoch."""

        def train_and_note(epoch: int, steps: int) -> float:
            self._each.assign(tf.zeros([0, 2], tf.float64))
            with self.undone():
                seconds = train(epoch, steps)
                times.sent_bytes = self.read().sent_bytes
            times.began, times.ended = self._each.numpy().T.tolist()
            return seconds

        return train_and_note


def bare_loop(strategy: Strategy, data: Any, *, with_sums: bool, makes_batches: bool) -> Train:
    """Return a plain loop: calls of a compiled step of forward, loss, backward, apply, on batches that are in memory.

    Args:
        with_sums: whether it also sums losses and correct answers, as every trainer that reports them has to.
        makes_batches: whether it also makes each batch from the pixels of its samples, as every trainer has to.
    """

    def made(epoch: int, steps: int) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        task = with_steps(data.task, size=1, epoch=epoch, steps=steps)
        for images, labels in ShardedData(task, comm=data.comm, device=data.device).training(epoch, most=1):
            yield tf.constant(images[0]), tf.constant(labels[0])

    batches = list(made(1, min(MEMORY_BATCHES, data.task.steps_per_epoch)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model, optimizer = strategy.model, strategy.optimizer
    weights = model.trainable_variables
    loss_sum, correct = tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)

    @tf.function
    def step(images: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            outputs = model(images, training=True)
            loss_value = loss(labels, outputs)
        optimizer.apply(tape.gradient(loss_value, weights), weights)
        if with_sums:
            loss_sum.assign_add(loss_value * tf.cast(tf.size(labels), tf.float32))
            right = tf.argmax(outputs, axis=1, output_type=labels.dtype) == labels
            correct.assign_add(tf.math.count_nonzero(right))

    def train(epoch: int, steps: int) -> float:
        distributed.synchronize(data.device)
        started = time.perf_counter()
        in_memory = itertools.islice(itertools.cycle(batches), steps)
        for images, labels in made(epoch, steps) if makes_batches else in_memory:
            step(images, labels)
        distributed.synchronize(data.device)
        return time.perf_counter() - started

    return train


if __name__ == "__main__":
    exit_rank(main())
