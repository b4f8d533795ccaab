"""Between Keras' variables and the weights file, which has PyTorch's names and layout."""

from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np

from common.model.specs import BatchNorm, Convolution, Dense, Flatten, LayerRow, ModelSpec
from common.model.weights import Weights

Permutation = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class WeightMap:
    """One variable of the model, and how its array is laid out anew for the file and back (slots of it, too)."""

    variable: keras.Variable
    to_file: Permutation
    from_file: Permutation


def weight_maps(model: keras.Model, spec: ModelSpec) -> dict[str, WeightMap]:
    """Return name in the weights file -> variable and layout, in the order of the layers."""
    maps: dict[str, WeightMap] = {}
    flattened: tuple[int, ...] | None = None
    for row in spec.rows:
        if isinstance(row.layer, Flatten):
            flattened = row.input_shape
        if not row.weights:
            continue
        layer = model.get_layer(row.layer.name)
        for weight, (variable, to_file, from_file) in zip(row.weights, _variables(row, layer, flattened), strict=True):
            maps[weight.name] = WeightMap(variable, to_file, from_file)
        if isinstance(row.layer, Dense):
            flattened = None  # only the first dense layer reads a flattened image
    return maps


def load_weights(model: keras.Model, weights: Weights, *, spec: ModelSpec) -> None:
    """Put arrays of the weights file into the model."""
    for name, weight in weight_maps(model, spec).items():
        weight.variable.assign(weight.from_file(weights[name]))


def get_weights(model: keras.Model, *, spec: ModelSpec) -> Weights:
    """Return the arrays of the model under the names of the weights file; copies, on the host."""
    return {
        name: np.ascontiguousarray(weight.to_file(weight.variable.numpy()))
        for name, weight in weight_maps(model, spec).items()
    }


def _variables(
    row: LayerRow, layer: keras.layers.Layer, flattened: tuple[int, ...] | None
) -> list[tuple[keras.Variable, Permutation, Permutation]]:
    if isinstance(row.layer, BatchNorm):
        variables = (layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance)
        return [(variable, _same, _same) for variable in variables]
    if isinstance(row.layer, Convolution):
        kernel = (layer.kernel, lambda hwio: hwio.transpose(3, 2, 0, 1), lambda oihw: oihw.transpose(2, 3, 1, 0))
    elif flattened is not None and len(flattened) == 3:
        kernel = (layer.kernel, *_dense_after_flatten(flattened))
    else:
        kernel = (layer.kernel, np.transpose, np.transpose)
    return [kernel, (layer.bias, _same, _same)] if len(row.weights) == 2 else [kernel]


def _dense_after_flatten(shape: tuple[int, ...]) -> tuple[Permutation, Permutation]:
    """Keras flattens (height, width, channels), the file (channels, height, width)."""
    channels, height, width = shape

    def to_file(kernel: np.ndarray) -> np.ndarray:
        return kernel.reshape(height, width, channels, -1).transpose(3, 2, 0, 1).reshape(kernel.shape[1], -1)

    def from_file(weight: np.ndarray) -> np.ndarray:
        return weight.reshape(-1, channels, height, width).transpose(2, 3, 1, 0).reshape(-1, weight.shape[0])

    return to_file, from_file


def _same(array: np.ndarray) -> np.ndarray:
    return array
