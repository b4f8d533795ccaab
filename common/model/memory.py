"""The memory that training a model, or one rank's part of it, takes: a forecast from the numbers of its layers."""

import math

from common.model.specs import ModelSpec

FRAMEWORK_BYTES = 5 * 10**8  # roughly, on the host, of a rank that has not built its model


def training_bytes(part: ModelSpec, *, images: int, slots: int, value_bytes: int) -> int:
    """Return the bytes of weights, gradients and the optimizer's state, and of what the backward pass needs.

    That is the output of every layer. Not here: the framework itself, data, buffers of messages and of single layers.

    Args:
        images: whose outputs are held at once: of a batch, or of the microbatches that a stage of a pipeline holds.
        slots: arrays of the optimizer for each weight.
        value_bytes: of a weight or an output.
    """
    weights = sum(math.prod(weight.shape) * (2 + slots if weight.trainable else 1) for weight in part.weights)
    outputs = sum(math.prod(row.output_shape) for row in part.rows)
    return (weights + outputs * images) * value_bytes
