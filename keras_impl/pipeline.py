"""The messages of a stage (`common/pipeline`) as operations of a graph, which run in the order of their calls."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from common.pipeline.links import Links
from common.pipeline.schedule import Operation


class GraphLinks:
    """Messages in one function: an update, or the evaluation of a batch.

    Args:
        dtype: of activations and gradients.
    """

    def __init__(self, links: Links, *, dtype: str) -> None:
        self._links = links
        self._dtype = tf.as_dtype(dtype)
        self._last: list[Any] = []  # what comes next waits for it

    def start(self, images: tf.Tensor) -> None:
        """Start an update when its images are there."""
        self._last = [images]
        self._call(self._links.start)

    def now(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the tensor, with which nothing is computed before the message of the last call has been sent."""
        with tf.control_dependencies(self._last):
            return tf.identity(tensor)

    def receive_activations(self, samples: Any, shape: Sequence[int]) -> tf.Tensor:
        """Return what the stage before computed of the next microbatch: (samples, *shape).

        Args:
            samples: an int, or a tensor of one.
        """
        return self._receive(self._links.receive_activations, samples, shape)

    def receive_gradient(self, of: tf.Tensor) -> tf.Tensor:
        """Return the gradient of this stage's outputs for the next microbatch."""
        return self._receive(self._links.receive_gradient, of.shape[0], of.shape[1:])

    def computed(self, operation: Operation, result: tf.Tensor | None, *, after: Sequence[tf.Tensor]) -> None:
        """Note that a pass has ended, with these tensors, and send its result to the neighbor that goes on with it."""
        self.wait_for(after)
        if result is None:
            self._call(lambda: self._links.computed(operation))
        else:
            self._call(lambda array: self._links.computed(operation, array), result)

    def wait_for(self, tensors: Sequence[tf.Tensor]) -> None:
        """Let what comes next wait for these tensors, too."""
        self._last = [*self._last, *tensors]

    def send_activations(self, tensor: tf.Tensor) -> None:
        """Send activations to the next stage, outside of an update."""
        self._call(lambda array: self._links.send(array, forward=True), tensor)

    def finish(self, *results: tf.Tensor) -> list[tf.Tensor]:
        """Wait until all messages have left; return the tensors, which are not there before."""
        self._call(self._links.finish)
        return [self.now(result) for result in results]

    def _receive(self, receive: Callable[[Sequence[int]], np.ndarray], samples: Any, shape: Sequence[int]) -> tf.Tensor:
        with tf.control_dependencies(self._last):
            received = tf.numpy_function(lambda count: receive((int(count), *shape)), [samples], self._dtype)
        received.set_shape((samples if isinstance(samples, int) else None, *shape))
        self._last = [received]
        return received

    def _call(self, function: Callable[..., None], *tensors: tf.Tensor) -> None:
        with tf.control_dependencies(self._last):
            self._last = [tf.numpy_function(function, tensors, [])]
