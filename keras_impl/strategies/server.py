"""`--strategy server`: gradients go to ranks that hold the weights, and updated weights come back."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from common.data.batches import Draw
from common.distributed.communicator import Communicator
from common.model.weights import Weights
from common.run_folder.sharing import SharingRecord
from common.strategies.served_run import ServedRun
from common.task.task import Task
from keras_impl.strategies.strategy import Strategy
from keras_impl.weights import state_from_file, state_to_file, trainable_maps


class Server(Strategy):
    """The worker's side. Its optimizer never steps: the servers have the rule and its state.

    Args:
        step: updates of the run that were done before it was resumed.
        folder: of the run, on rank 0; None on the others.
    """

    def __init__(self, task: Task, *, comm: Communicator, device: str, step: int, folder: Path | None) -> None:
        super().__init__(task, comm=comm, device=device)
        self._rehearses = False
        self._served = ServedRun(task, comm=comm, first_step=step, folder=folder, load=self._load)
        self.draw: Draw | None = self._served.items if self._served.draws else None

    def wrap(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        """Take the model, and the optimizer for its first state alone."""
        super().wrap(model, optimizer)
        self._maps = trainable_maps(model, self.spec)

    def broadcast(self, *, from_checkpoint: bool) -> None:
        """Give the servers rank 0's weights and optimizer state, and all workers the weights."""
        super().broadcast(from_checkpoint=from_checkpoint)
        optimizer = state_from_file(super().optimizer_state(), self._maps)
        variables = {name: one.variable for name, one in self._maps.items()}
        weights = np.concatenate([variable.numpy().ravel() for variable in variables.values()])
        shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
        self._served.open(weights, optimizer, shapes=shapes)

    def optimizer_state(self) -> Weights:
        """Return "<parameter>.<slot>" -> array, and "step", as the servers have them."""
        return state_to_file(self._served.optimizer_state(), self._maps)

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        self._rehearses = True
        yield from super().rehearsals()
        self._rehearses = False

    def exchanged(self) -> SharingRecord | None:
        """Return what this worker exchanged in its updates."""
        return self._served.sharing()

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Exchange the gradients for weights, in a graph."""
        gradient = tf.concat([tf.reshape(one, [-1]) for one in gradients], axis=0)
        self._assign(tf.numpy_function(self._exchange, [gradient], gradient.dtype))
        self.optimizer.iterations.assign_add(1)

    def _exchange(self, gradient: np.ndarray) -> np.ndarray:
        if self._rehearses:
            return gradient  # in place of weights, which are about to be restored
        return self._served.client.exchange(gradient).copy()  # TensorFlow may use the array itself

    def _load(self, weights: np.ndarray) -> None:
        self._assign(tf.constant(weights))

    def _assign(self, vector: tf.Tensor) -> None:
        variables = [one.variable for one in self._maps.values()]
        sizes = [int(np.prod(variable.shape)) for variable in variables]
        for variable, part in zip(variables, tf.split(vector, sizes), strict=True):
            variable.assign(tf.reshape(part, variable.shape))
