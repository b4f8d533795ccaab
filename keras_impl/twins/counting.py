"""Counts the multiplications of a Keras model's layers with arrays."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import keras
import numpy as np


@contextmanager
def counted() -> Iterator[list[int]]:
    """Put the multiply-adds of each layer that is called into the list."""
    counts: list[int] = []
    original = keras.Operation.__call__

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(layer, *args, **kwargs)
        if args and hasattr(args[0], "shape") and hasattr(output, "shape"):
            counts.append(_multiply_adds(layer, args[0], output))
        return output

    with patch.object(keras.Operation, "__call__", call):
        yield counts


def _multiply_adds(layer: Any, value: Any, output: Any) -> int:
    kernel = getattr(layer, "kernel", None)
    entries, outputs = int(np.prod(value.shape)), int(np.prod(output.shape))
    if isinstance(layer, keras.layers.Embedding):  # a tied head multiplies with it
        return outputs * int(value.shape[-1]) if "float" in str(value.dtype) else 0
    if kernel is None:
        return 0
    if isinstance(layer, keras.layers.Dense):
        return outputs * int(kernel.shape[0])
    if isinstance(layer, keras.layers.EinsumDense):
        inputs, letters = layer.equation.replace("...", "").split("->")[0].split(",")
        summed = [size for letter, size in zip(letters, kernel.shape, strict=True) if letter in inputs]
        return outputs * int(np.prod(summed))
    if isinstance(layer, keras.layers.Conv1DTranspose | keras.layers.Conv2DTranspose):
        return entries * int(np.prod(kernel.shape[:-1]))
    depthwise = isinstance(layer, keras.layers.DepthwiseConv1D | keras.layers.DepthwiseConv2D)
    if depthwise or isinstance(layer, keras.layers.Conv1D | keras.layers.Conv2D | keras.layers.Conv3D):
        return outputs * int(np.prod(kernel.shape[: -2 if depthwise else -1]))
    return 0
