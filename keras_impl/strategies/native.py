"""TensorFlow's own strategies (`--strategy native`), by a custom loop: `fit` trains with none but the first of them.

MirroredStrategy is one process with several replicas, each of which takes the place of a rank; with
MultiWorkerMirroredStrategy each rank is one replica.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.distributed.addresses import addresses_of_ranks
from common.distributed.communicator import Communicator
from common.run_folder.checkpoints import PartialEpoch
from common.run_folder.sharing import SharingRecord
from common.run_folder.values import NotRecorded
from common.strategies.sharing import native_record
from common.task.task import Task
from keras_impl.batch_norm import BatchNormalization
from keras_impl.strategies.strategy import Strategy, seeded_layers

# The only strategy of this process: a second one would number its collectives from the start again.
_OF_PROCESS: list[tf.distribute.Strategy] = []


class Native(Strategy):
    """TensorFlow averages the gradients of all replicas of this rank, each of which has a part of its batch."""

    def __init__(self, task: Task, *, comm: Communicator, device: str) -> None:
        if not _OF_PROCESS:  # before the first operation of TensorFlow
            _OF_PROCESS.append(_build(str(task.config.strategy.native), comm))
        (self._strategy,) = _OF_PROCESS
        super().__init__(task, comm=comm, device=device)

    def scope(self) -> AbstractContextManager[Any]:
        """Return the scope in which TensorFlow makes a copy of every variable for each replica."""
        scope: AbstractContextManager[Any] = self._strategy.scope()
        return scope

    def update(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Update the weights on all replicas; return the outputs and losses of the batch."""
        outputs, losses = self._on_replicas(super().update, images, labels)
        return tf.concat(outputs, axis=0), tf.concat(losses, axis=0)

    def before_update(self, gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return this replica's part of the sum that TensorFlow makes of the gradients."""
        return [one / self._strategy.num_replicas_in_sync for one in gradients]

    def end_epoch(self) -> PartialEpoch:
        """Average BatchNorm's statistics, which are each replica's own."""
        for statistic in _statistics(self.model).values():
            statistic.assign(np.broadcast_to(statistic.numpy().mean(axis=0), statistic.shape))
        return super().end_epoch()

    def exchanged(self) -> SharingRecord | None:
        """Return what this rank did; TensorFlow does not tell what it exchanged."""
        reason = NotRecorded("TensorFlow exchanges gradients inside its strategy")
        return native_record(self.task, rank=self.comm.rank, updates=self.meter.updates, sent_bytes=reason)

    def _sums_of_batch(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        losses, correct = self._on_replicas(super()._sums_of_batch, images, labels)
        return tf.add_n(losses), tf.add_n(correct)

    def _on_replicas(
        self, function: Callable[[tf.Tensor, tf.Tensor], Any], images: tf.Tensor, labels: tf.Tensor
    ) -> list[Sequence[tf.Tensor]]:
        """Call a function of a batch on each replica with its part; return each of its results from all replicas."""
        replicas = self.comm.replicas
        size = images.shape[0] or tf.shape(images)[0]

        def on_replica() -> Any:
            replica = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
            number = int(replica) % replicas  # among those of this rank
            part = slice(size * number // replicas, size * (number + 1) // replicas)
            return function(images[part], labels[part])

        return [self._strategy.experimental_local_results(result) for result in self._strategy.run(on_replica)]

    def _seed_dropout(self) -> None:
        """Give every replica the masks of the rank whose place it takes."""
        replicas = self.comm.replicas
        for number, layer in seeded_layers(self.model):
            ranks = range(self.comm.rank * replicas, (self.comm.rank + 1) * replicas)
            _PerReplica(layer.seed_generator.state).assign([self._dropout_seeds(number, rank=rank) for rank in ranks])

    def _variables(self) -> dict[str, Any]:
        own = super()._variables()
        seeds = {layer.name: _PerReplica(layer.seed_generator.state) for _, layer in seeded_layers(self.model)}
        return own | seeds | _statistics(self.model)


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
