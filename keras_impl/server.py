"""`--strategy server`: gradients go to ranks that hold the weights, and updated weights come back."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.data.batches import Draw
from common.distributed.communicator import Communicator
from common.model.weights import Weights
from common.run_folder.checkpoints import PartialEpoch
from common.run_folder.sharing import SharingRecord
from common.strategies.served_run import ServedRun
from common.task.task import Task
from keras_impl import distributed
from keras_impl.exchange import GroupExchange
from keras_impl.loop import Trainer
from keras_impl.state import TrainingState


class Server:
    """The worker's side. Its optimizer never steps: the servers have the rule and its state.

    Args:
        step: updates of the run that were done before it was resumed.
        folder: of the run, on rank 0; None on the others.
    """

    exchange: GroupExchange | None = None
    trainer_class: Callable[..., Trainer] = Trainer

    def __init__(self, task: Task, *, comm: Communicator, step: int, folder: Path | None) -> None:
        self.task = task
        self.comm = comm
        self._rehearses = False
        self._served = ServedRun(task, comm=comm, first_step=step, folder=folder, load=self._load)
        self.draw: Draw | None = self._served.items if self._served.draws else None

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context in which model and optimizer are built."""
        return nullcontext()

    def wrap_optimizer(
        self, optimizer: keras.optimizers.Optimizer, *, model: keras.Model
    ) -> keras.optimizers.Optimizer:
        """Return the optimizer, whose step is an exchange."""
        self._variables = model.trainable_variables
        optimizer.apply = partial(self._update, optimizer)  # Keras has no hooks for this
        return optimizer

    def broadcast_state(self, state: TrainingState) -> None:
        """Give the servers rank 0's weights and optimizer state, and all workers the weights."""
        distributed.broadcast_state(state, comm=self.comm)
        names, maps = state.trainable()
        layouts = {name: maps[name].from_file for name in names}
        optimizer = _relaid(state.export_optimizer(), layouts)
        weights = np.concatenate([variable.numpy().ravel() for variable in self._variables])
        shapes = {name: tuple(variable.shape) for name, variable in zip(names, self._variables, strict=True)}
        self._served.open(weights, optimizer, shapes=shapes)
        to_file = {name: maps[name].to_file for name in names}
        state.held_elsewhere = lambda: _relaid(self._served.optimizer_state(), to_file)

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        self._rehearses = True
        yield
        self._rehearses = False

    def end_epoch(self, state: TrainingState, epoch: int) -> PartialEpoch:
        """Average BatchNorm's statistics, the only weights that are each worker's own."""
        distributed.average_batch_norm(state, comm=self.comm, weight=self.task.shares[self.comm.rank].weight)
        return PartialEpoch()

    def sharing(self) -> SharingRecord | None:
        """Return what this worker exchanged in its updates."""
        return self._served.sharing()

    def _update(
        self, optimizer: keras.optimizers.Optimizer, gradients: Sequence[tf.Tensor], weights: Sequence[Any]
    ) -> None:
        """Exchange the gradients for weights, in a graph."""
        gradient = tf.concat([tf.reshape(one, [-1]) for one in gradients], axis=0)
        self._assign(tf.numpy_function(self._exchange, [gradient], gradient.dtype))
        optimizer.iterations.assign_add(1)

    def _exchange(self, gradient: np.ndarray) -> np.ndarray:
        if self._rehearses:
            return gradient  # in place of weights, which are about to be restored
        return self._served.client.exchange(gradient).copy()  # TensorFlow may use the array itself

    def _load(self, weights: np.ndarray) -> None:
        self._assign(tf.constant(weights))

    def _assign(self, vector: tf.Tensor) -> None:
        sizes = [int(np.prod(variable.shape)) for variable in self._variables]
        for variable, part in zip(self._variables, tf.split(vector, sizes), strict=True):
            variable.assign(tf.reshape(part, variable.shape))


def _relaid(optimizer: Weights, layouts: dict[str, Any]) -> Weights:
    """Return the optimizer's state with the arrays of each parameter laid out anew."""
    names = {key: key.rpartition(".")[0] for key in optimizer}
    return {
        key: np.ascontiguousarray(layouts[names[key]](array)) if names[key] else array
        for key, array in optimizer.items()
    }
