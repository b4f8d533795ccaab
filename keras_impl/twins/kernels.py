"""PyTorch's arrays in the layouts of Keras' variables."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import layers

from common.twins.arrays import channels_last_order

# Name of a Keras variable -> role of PyTorch's array.
ROLES = {
    "kernel": "weight",
    "embeddings": "weight",
    "gamma": "weight",
    "scale": "weight",
    "alpha": "weight",
    "beta": "bias",
    "bias": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
MAIN = ("kernel", "embeddings")
NEUTRAL = {"gamma": 1.0, "scale": 1.0, "moving_variance": 1.0}  # others: 0
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
# Class of a Keras layer -> PyTorch's functions that have the same arrays.
FUNCTIONS: dict[type, tuple[str, ...]] = {
    layers.Dense: ("linear", *_CONVOLUTIONS),
    layers.EinsumDense: ("linear",),
    layers.DepthwiseConv1D: _CONVOLUTIONS,
    layers.DepthwiseConv2D: _CONVOLUTIONS,
    layers.Conv1DTranspose: ("conv_transpose",),
    layers.Conv2DTranspose: ("conv_transpose",),
    layers.Conv1D: (*_CONVOLUTIONS, "linear"),
    layers.Conv2D: (*_CONVOLUTIONS, "linear"),
    layers.Conv3D: (*_CONVOLUTIONS, "linear"),
    layers.Embedding: ("embedding",),
    layers.BatchNormalization: ("batch_norm",),
    layers.LayerNormalization: ("layer_norm",),
    layers.GroupNormalization: ("group_norm",),
    layers.RMSNormalization: ("rms_norm",),
    layers.PReLU: ("prelu",),
}


def functions_for(layer: Any) -> tuple[str, ...]:
    """Return the PyTorch functions that a layer may be; empty: of no kind that is known."""
    return next((functions for kind, functions in FUNCTIONS.items() if isinstance(layer, kind)), ())


@dataclass(frozen=True)
class Place:
    """Where a Keras variable comes from.

    Attributes:
        names: of PyTorch's arrays, with rows; of several the sum.
        part: number and count of equal parts of a packed array.
        flat: shape of a sample before it was flattened, if entries are turned.
        transposed: whether PyTorch's array is (inputs, outputs).
        bare: an array of a user's layer: as it is, but for axes of size 1 and, if `transposed`, turned.
    """

    names: tuple[str, ...]
    part: tuple[int, int] | None = None
    flat: tuple[int, ...] | None = None
    transposed: bool = False
    bare: bool = False

    def to_keras(self, array: np.ndarray, layer: Any, variable: Any) -> np.ndarray | None:
        """Return PyTorch's array, or its gradient, as the variable has it; None if it does not fit."""
        shape = tuple(variable.shape)
        if self.bare:
            turned = array.T if self.transposed else array
            return turned.reshape(shape) if turned.size == math.prod(shape) else None
        if self.part:
            number, count = self.part
            rows = len(array) // count
            array = array[number * rows : (number + 1) * rows]
        if variable.name not in MAIN:
            order = channels_last_order(self.flat) if self.flat and array.size == math.prod(self.flat) else None
            if array.size != math.prod(shape):
                return None
            return (array if order is None else array[order]).reshape(shape)
        kernel = _kernel(layer, array.T if self.transposed else array, shape)
        if kernel is not None and self.flat and isinstance(layer, layers.Dense):
            kernel = kernel[channels_last_order(self.flat)]
        return kernel


def _kernel(layer: Any, weight: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    if isinstance(layer, layers.Dense | layers.EinsumDense):
        return _dense(weight, shape, einsum=isinstance(layer, layers.EinsumDense))
    if isinstance(layer, layers.Embedding):
        return weight if weight.shape == shape else None
    if isinstance(layer, layers.DepthwiseConv1D | layers.DepthwiseConv2D):
        if weight.ndim != len(shape) or weight.shape[1] != 1 or weight.shape[0] != shape[-2] * shape[-1]:
            return None
        weight = weight.reshape(shape[-2], shape[-1], *weight.shape[2:])
        weight = np.moveaxis(weight, (0, 1), (-2, -1))
    else:
        if weight.ndim == 2:  # a product of every pixel, as a convolution of 1 x 1
            weight = weight.reshape(*weight.shape, *[1] * (len(shape) - 2))
        # (out, in, ...) -> (..., in, out); transposed convolutions: (in, out, ...) -> (..., out, in)
        weight = np.moveaxis(weight, (1, 0), (-2, -1))
    return weight if weight.shape == shape else None


def _dense(weight: np.ndarray, shape: tuple[int, ...], *, einsum: bool) -> np.ndarray | None:
    if weight.ndim > 2 and set(weight.shape[2:]) == {1}:
        weight = weight.reshape(weight.shape[:2])
    if weight.ndim != 2 or weight.size != math.prod(shape):
        return None
    kernel = weight.T
    if kernel.shape == shape:
        return kernel
    return kernel.reshape(shape) if einsum and (shape[0] == len(kernel) or shape[-1] == kernel.shape[1]) else None


def fits_bare(shape: Sequence[int], other: Sequence[int]) -> bool | None:
    """Return whether an array has to be turned to fit a variable of a user's layer; None: it does not fit."""
    plain, wanted = ([one for one in sizes if one != 1] for sizes in (shape, other))
    if plain == wanted:
        return False
    return True if len(wanted) == 2 and plain[::-1] == wanted else None
