"""Between Keras' variables and the weights file, which has PyTorch's names and layout."""

from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np

from common.model.layers import Dense, Flatten, Shape
from common.model.specs import ModelSpec
from common.model.weights import Weights
from keras_impl import update_rules


@dataclass(frozen=True)
class WeightMap:
    """One variable of the model, and how its array is laid out anew for the file and back (slots of it, too).

    Attributes:
        flattened: (channels, height, width) of the images that the dense layer of this kernel reads; (): no images.
    """

    variable: keras.Variable
    flattened: Shape = ()

    def to_file(self, array: np.ndarray) -> np.ndarray:
        """Return (out, in, height, width) of a convolution, (out, in) of a dense layer; others stay."""
        if array.ndim == 4:
            return array.transpose(3, 2, 0, 1)
        if array.ndim == 2 and self.flattened:  # Keras flattens (height, width, channels)
            channels, height, width = self.flattened
            return array.reshape(height, width, channels, -1).transpose(3, 2, 0, 1).reshape(array.shape[1], -1)
        return array.transpose()

    def from_file(self, array: np.ndarray) -> np.ndarray:
        """Return the array in Keras' layout, the inverse of `to_file`."""
        if array.ndim == 4:
            return array.transpose(2, 3, 1, 0)
        if array.ndim == 2 and self.flattened:
            return array.reshape(-1, *self.flattened).transpose(2, 3, 1, 0).reshape(-1, array.shape[0])
        return array.transpose()


def weight_maps(model: keras.Model, spec: ModelSpec) -> dict[str, WeightMap]:
    """Return name in the weights file -> variable and layout, in the order of the layers."""
    maps: dict[str, WeightMap] = {}
    flattened: Shape = ()
    for row in spec.rows:
        if isinstance(row.layer, Flatten) and len(row.input_shape) == 3:
            flattened = row.input_shape
        if row.weights:
            variables = model.get_layer(row.layer.name).weights
            for weight, variable in zip(row.weights, variables, strict=True):
                maps[weight.name] = WeightMap(variable, flattened)
        if isinstance(row.layer, Dense):
            flattened = ()  # only the first dense layer reads a flattened image
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


def trainable_maps(model: keras.Model, spec: ModelSpec) -> dict[str, WeightMap]:
    """Return those of the trainable variables, in the model's order."""
    names = {id(weight.variable): (name, weight) for name, weight in weight_maps(model, spec).items()}
    return dict(names[id(variable)] for variable in model.trainable_variables)


def load_optimizer_state(
    optimizer: keras.optimizers.Optimizer, arrays: Weights, *, model: keras.Model, spec: ModelSpec
) -> None:
    """Put what `get_optimizer_state` returned into the optimizer."""
    maps = trainable_maps(model, spec)
    update_rules.import_state(optimizer, state_from_file(arrays, maps), names=list(maps))


def get_optimizer_state(optimizer: keras.optimizers.Optimizer, *, model: keras.Model, spec: ModelSpec) -> Weights:
    """Return "<parameter>.<slot>" -> array in the layout of the weights file, and what the optimizer counts."""
    maps = trainable_maps(model, spec)
    return state_to_file(update_rules.export_state(optimizer, names=list(maps)), maps)


def state_to_file(state: Weights, maps: dict[str, WeightMap]) -> Weights:
    """Return the state of an optimizer with its slots in the layout of the weights file."""
    return _relaid(state, {name: weight.to_file for name, weight in maps.items()})


def state_from_file(state: Weights, maps: dict[str, WeightMap]) -> Weights:
    """Return the state of an optimizer with its slots in Keras' layout, the inverse of `state_to_file`."""
    return _relaid(state, {name: weight.from_file for name, weight in maps.items()})


def _relaid(state: Weights, layouts: dict[str, Callable[[np.ndarray], np.ndarray]]) -> Weights:
    names = {key: key.rpartition(".")[0] for key in state}  # of a count: none
    return {
        key: np.ascontiguousarray(layouts[names[key]](array)) if names[key] else array for key, array in state.items()
    }
