"""Gradients of a batch in several passes, one after the other, which need less memory."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Gradients = tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]  # outputs, losses, gradients


def accumulated(
    one_pass: Callable[[tf.Tensor, tf.Tensor], Gradients], images: tf.Tensor, labels: tf.Tensor, *, passes: int
) -> Gradients:
    """Return the outputs and losses of all passes and the sums of their gradients, in a graph."""
    parts = [tf.reshape(tensor, (passes, -1, *tensor.shape[1:])) for tensor in (images, labels)]
    first = one_pass(*(part[0] for part in parts))
    arrays = [tf.TensorArray(one.dtype, passes).write(0, one) for one in first[:2]]

    def add(number: Any, outputs: Any, losses: Any, sums: Any) -> Any:
        one = one_pass(*(part[number] for part in parts))
        added = [total + gradient for total, gradient in zip(sums, _dense(one[2]), strict=True)]
        return number + 1, outputs.write(number, one[0]), losses.write(number, one[1]), added

    _, outputs, losses, gradients = tf.while_loop(
        lambda number, *_: number < passes, add, (1, *arrays, _dense(first[2])), parallel_iterations=1
    )
    return outputs.concat(), losses.concat(), gradients


def _dense(gradients: Sequence[Any]) -> list[tf.Tensor]:
    """Return gradients that can be added up, of embeddings too."""
    return [tf.convert_to_tensor(gradient) for gradient in gradients]
