"""How the ranks share the work of a batch (`--strategy`): one class per strategy, all with the same methods."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import keras
import tensorflow as tf

from common.data.batches import Draw
from common.distributed.communicator import Communicator
from common.run.checkpointer import own_state
from common.run_folder.checkpoints import PartialEpoch
from common.run_folder.sharing import SharingRecord
from common.strategies.sharing import ring_record
from common.task.task import Task
from keras_impl import distributed
from keras_impl.exchange import GroupExchange
from keras_impl.exchange_meter import ExchangeMeter
from keras_impl.loop import Trainer
from keras_impl.model_parallel import Layers, Split
from keras_impl.native import Native
from keras_impl.server import Server
from keras_impl.state import TrainingState
from keras_impl.weights import weight_maps


class Strategy(Protocol):
    """What the trainer asks of every strategy."""

    trainer_class: Callable[..., Trainer] = Trainer
    draw: Draw | None = None  # what it computes of a segment of the run, where it does not take its part of each step
    exchange: GroupExchange | None = None  # of the ranks that hold pieces of the same layers

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context in which model and optimizer are built."""
        return nullcontext()

    def wrap_optimizer(
        self, optimizer: keras.optimizers.Optimizer, *, model: keras.Model
    ) -> keras.optimizers.Optimizer:
        """Return the optimizer with what ranks share before and after each update."""

    def broadcast_state(self, state: TrainingState) -> None:
        """Give all ranks the weights and the optimizer state of rank 0."""

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""

    def end_epoch(self, state: TrainingState, epoch: int) -> PartialEpoch:
        """Give all ranks the same weights, for evaluation and record.

        Returns:
            What this rank alone starts the next epoch with.
        """

    def sharing(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates; None: nothing that can be told."""


def build_strategy(task: Task, *, comm: Communicator, step: int, folder: Path | None = None) -> Strategy:
    """Return the strategy that the settings name.

    Args:
        step: updates of the run that were done before it was resumed.
        folder: of the run, on rank 0; None on the others.
    """
    config = task.config.strategy
    if config.strategy == "server":
        return Server(task, comm=comm, step=step, folder=folder)
    if task.config.parts.count > 1:
        return (Layers if task.config.parts.stages else Split)(task, comm=comm)
    if config.strategy == "averaging":
        return Averaging(task, comm=comm)
    if config.strategy == "native":
        return Native(task, comm=comm)
    return (Adasum if config.adasum else AllReduce)(task, comm=comm)


class AllReduce(Strategy):
    """Gradients are averaged before every update, so that all ranks hold the same weights at all times."""

    def __init__(self, task: Task, *, comm: Communicator) -> None:
        self.task = task
        self.comm = comm
        self.meter = ExchangeMeter(times=task.measured_config.device.gradient_groups == "one")  # else they overlap

    def wrap_optimizer(
        self, optimizer: keras.optimizers.Optimizer, *, model: keras.Model
    ) -> keras.optimizers.Optimizer:
        """Return our `DistributedOptimizer`."""
        config = self.task.measured_config
        return distributed.wrap_optimizer(optimizer, model=model, config=config, comm=self.comm, meter=self.meter)

    def broadcast_state(self, state: TrainingState) -> None:
        """Give all ranks the weights and the optimizer state of rank 0."""
        distributed.broadcast_state(state, comm=self.comm)

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        with self.meter.undone():
            yield

    def end_epoch(self, state: TrainingState, epoch: int) -> PartialEpoch:
        """Average BatchNorm's statistics, the only weights that are each rank's own."""
        distributed.average_batch_norm(state, comm=self.comm, weight=self.task.shares[self.comm.rank].weight)
        return PartialEpoch()

    def sharing(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates; None: nothing that can be told."""
        return ring_record(self.task, self.meter.read(), rank=self.comm.rank)


class Adasum(AllReduce):
    """Each rank updates its own weights, and what these updates are combined to gives all the same weights again."""

    def wrap_optimizer(
        self, optimizer: keras.optimizers.Optimizer, *, model: keras.Model
    ) -> keras.optimizers.Optimizer:
        """Return the optimizer, which exchanges each update."""
        optimizer.apply = self.meter.counting(partial(self._update, optimizer.apply))  # Keras has no hooks for this
        return optimizer

    def end_epoch(self, state: TrainingState, epoch: int) -> PartialEpoch:
        """Average BatchNorm's statistics; return this rank's own state of the optimizer, of its own gradients."""
        super().end_epoch(state, epoch)
        return own_state(self.task, state, step=self.task.steps_after(epoch))

    def _update(self, apply: Any, gradients: Sequence[tf.Tensor], weights: Sequence[Any]) -> None:
        before = [tf.convert_to_tensor(weight.value) for weight in weights]
        apply(gradients, weights)
        updates = [weight.value - old for weight, old in zip(weights, before, strict=True)]
        combined = distributed.combine_updates(updates, meter=self.meter)
        for weight, old, update in zip(weights, before, combined, strict=True):
            weight.assign(old + update)


class Averaging(Strategy):
    """Each rank updates its own weights, which are averaged at the end of every interval."""

    def __init__(self, task: Task, *, comm: Communicator) -> None:
        self.task = task
        self.comm = comm
        self.meter = ExchangeMeter()
        self._weight = task.shares[comm.rank].weight

    def wrap_optimizer(
        self, optimizer: keras.optimizers.Optimizer, *, model: keras.Model
    ) -> keras.optimizers.Optimizer:
        """Return the optimizer, which averages gradients before an update (in warm-up) or weights after it."""
        self._weights = [weight.variable for weight in weight_maps(model, self.task.spec).values()]
        self._iterations = optimizer.iterations
        if self.comm.size > 1:
            # Keras has no hooks for this.
            optimizer.apply = self.meter.counting(partial(self._update, optimizer, optimizer.apply))
        return optimizer

    def broadcast_state(self, state: TrainingState) -> None:
        """Give all ranks the weights and the optimizer state of rank 0."""
        distributed.broadcast_state(state, comm=self.comm)

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        with self.meter.undone():
            for step in self.task.averaging.rehearsed:
                self._iterations.assign(step)  # the trainer undoes what it changes of the optimizer
                yield

    def end_epoch(self, state: TrainingState, epoch: int) -> PartialEpoch:
        """Keep this rank's own weights, where they differ, and load their average.

        In the warm-up only BatchNorm's statistics differ, and their average stays, as with all-reduce.
        """
        step = self.task.steps_after(epoch)
        own = own_state(self.task, state, step=step)
        if own.weights:
            distributed.average_in_place(self._weights, name="copy", config=self.task.config, weight=self._weight)
        elif self.task.averaging.is_warm_up(step):
            distributed.average_batch_norm(state, comm=self.comm, weight=self._weight)
        return own

    def sharing(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates; None: nothing that can be told."""
        return ring_record(self.task, self.meter.read(), rank=self.comm.rank)

    def _update(
        self, optimizer: keras.optimizers.Optimizer, apply: Any, gradients: Sequence[tf.Tensor], weights: Sequence[Any]
    ) -> None:
        """Update the weights in a graph, in which every rank takes the same branches: they count the same updates."""
        config = self.task.config
        if config.strategy.warmup_allreduce:
            gradients = tf.cond(
                optimizer.iterations.value < config.strategy.warmup_allreduce,
                lambda: distributed.average_gradients(
                    [one * self._weight for one in gradients], config=config, meter=self.meter
                ),
                lambda: list(gradients),
            )
        apply(gradients, weights)
        averaged = list(self._weights)
        if config.strategy.average_state:
            averaged += [one for one in optimizer.variables if one.dtype in ("float32", "float64")]  # not its count
        tf.cond(
            self.task.averaging.averages_after(tf.convert_to_tensor(optimizer.iterations.value)),
            lambda: distributed.average_in_place(
                averaged, name="weights", config=config, weight=self._weight, meter=self.meter
            ),
            lambda: None,
        )
