"""TensorFlow's own strategies (`--strategy native`), by a custom loop: `fit` trains with none but the first of them.

MirroredStrategy is one process with several replicas, each of which takes the place of a rank; with
MultiWorkerMirroredStrategy each rank is one replica.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.config import Config
from common.data.batches import Draw
from common.distributed.communicator import Communicator
from common.distributed.rendezvous import addresses_of_ranks
from common.run_folder.checkpoints import PartialEpoch
from common.run_folder.sharing import SharingRecord
from common.run_folder.values import NotRecorded
from common.strategies.sharing import native_record
from common.task.task import Task
from keras_impl import distributed
from keras_impl.batch_norm import BatchNormalization
from keras_impl.exchange import GroupExchange
from keras_impl.exchange_meter import ExchangeMeter
from keras_impl.loop import Trainer, seeded_layers
from keras_impl.state import TrainingState

# The only strategy of this process: a second one would number its collectives from the start again.
_OF_PROCESS: list[tf.distribute.Strategy] = []


class NativeTrainer(Trainer):
    """Does every step on all replicas of this rank, on each with its part of the batch."""

    def _update(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        outputs, losses = self._on_replicas(super()._update, images, labels)
        return tf.concat(outputs, axis=0), tf.concat(losses, axis=0)

    def _sums_of_batch(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        losses, correct = self._on_replicas(super()._sums_of_batch, images, labels)
        return tf.add_n(losses), tf.add_n(correct)

    def _on_replicas(
        self, function: Callable[[tf.Tensor, tf.Tensor], Any], images: tf.Tensor, labels: tf.Tensor
    ) -> list[Sequence[tf.Tensor]]:
        """Call a function of a batch on each replica with its part; return each of its results from all replicas."""
        strategy, replicas = self.state.model.distribute_strategy, self.data.comm.replicas
        size = images.shape[0] or tf.shape(images)[0]

        def on_replica() -> Any:
            number = _local_replica(self.state.config)
            part = slice(size * number // replicas, size * (number + 1) // replicas)
            return function(images[part], labels[part])

        return [strategy.experimental_local_results(result) for result in strategy.run(on_replica)]

    def _seed_dropout(self) -> None:
        """Give every replica the masks of the rank whose place it takes."""
        replicas = self.data.comm.replicas
        for number, layer in seeded_layers(self.state.model):
            ranks = range(self.data.comm.rank * replicas, (self.data.comm.rank + 1) * replicas)
            _PerReplica(layer.seed_generator.state).assign([self._dropout_seeds(number, rank=rank) for rank in ranks])

    def _variables(self) -> dict[str, Any]:
        own = super()._variables()
        seeds = {layer.name: _PerReplica(layer.seed_generator.state) for _, layer in seeded_layers(self.state.model)}
        return own | seeds | _statistics(self.state.model)


class Native:
    """TensorFlow averages the gradients of all replicas; it has to know of them before its first operation."""

    exchange: GroupExchange | None = None
    trainer_class: Callable[..., Trainer] = NativeTrainer
    draw: Draw | None = None

    def __init__(self, task: Task, *, comm: Communicator) -> None:
        self.task = task
        self.comm = comm
        if not _OF_PROCESS:
            _OF_PROCESS.append(_build(str(task.config.strategy.native), comm))
        (self._strategy,) = _OF_PROCESS
        self.meter = ExchangeMeter()

    def scope(self) -> AbstractContextManager[Any]:
        """Return the scope in which TensorFlow makes a copy of every variable for each replica."""
        scope: AbstractContextManager[Any] = self._strategy.scope()
        return scope

    def wrap_optimizer(
        self, optimizer: keras.optimizers.Optimizer, *, model: keras.Model
    ) -> keras.optimizers.Optimizer:
        """Return the optimizer, which adds up the gradients of the replicas: each of them counts for its share."""
        apply, count, replicas = optimizer.apply, self.meter.counting, self._strategy.num_replicas_in_sync

        def average_and_apply(gradients: Sequence[tf.Tensor], weights: Sequence[Any]) -> None:
            is_first = _local_replica(self.task.config) == 0
            (count(apply) if is_first else apply)([one / replicas for one in gradients], weights)

        optimizer.apply = average_and_apply  # Keras has no hooks for this
        return optimizer

    def broadcast_state(self, state: TrainingState) -> None:
        """Give all ranks the weights and the optimizer state of rank 0."""
        distributed.broadcast_state(state, comm=self.comm)

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        with self.meter.undone():
            yield

    def end_epoch(self, state: TrainingState, epoch: int) -> PartialEpoch:
        """Average BatchNorm's statistics, which are each replica's own."""
        for statistic in _statistics(state.model).values():
            statistic.assign(np.broadcast_to(statistic.numpy().mean(axis=0), statistic.shape))
        distributed.average_batch_norm(state, comm=self.comm)
        return PartialEpoch()

    def sharing(self) -> SharingRecord | None:
        """Return what this rank did; TensorFlow does not tell what it exchanged."""
        reason = NotRecorded("TensorFlow exchanges gradients inside its strategy")
        return native_record(self.task, rank=self.comm.rank, updates=self.meter.read().updates, sent_bytes=reason)


def _local_replica(config: Config) -> int:
    """Return the number, among those of this rank, of the replica that calls this."""
    number = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
    return int(number) % (config.strategy.replicas or 1)


def _build(native: str, comm: Communicator) -> tf.distribute.Strategy:
    """Return the strategy of that name over the devices of this process or the ranks of the run."""
    if native == "mirrored":
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy(devices)
    cluster = tf.train.ClusterSpec({"worker": addresses_of_ranks(comm)})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="worker", task_id=comm.rank, rpc_layer="grpc"
    )
    return tf.distribute.MultiWorkerMirroredStrategy(resolver)


class _PerReplica:
    """A variable of which each replica has a value of its own, in the form of an array: (replicas, ...)."""

    def __init__(self, variable: keras.Variable) -> None:
        value = variable.value
        self._variables = value.distribute_strategy.experimental_local_results(value)

    def numpy(self) -> np.ndarray:
        """Return the values of all replicas of this rank."""
        return np.stack([variable.numpy() for variable in self._variables])

    @property
    def shape(self) -> tuple[int, ...]:
        """That of `numpy()`."""
        return self.numpy().shape

    def assign(self, values: Sequence[np.ndarray] | np.ndarray) -> None:
        """Give each replica its value."""
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)


def _statistics(model: keras.Model) -> dict[str, _PerReplica]:
    """Return BatchNorm's running statistics, which each replica has of its own batches."""
    layers = [layer for layer in model.layers if isinstance(layer, BatchNormalization)]
    return {
        f"{layer.name}.{name}": _PerReplica(getattr(layer, name))
        for layer in layers
        for name in ("moving_mean", "moving_variance")
    }
