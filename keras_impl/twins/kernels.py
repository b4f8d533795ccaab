"""PyTorch's arrays in the layouts of Keras' variables, also of those that a model file names in WEIGHTS."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from common.errors import UserError
from common.twins.arrays import channels_last_order
from common.twins.contract import Pair
from common.twins.records import ArrayFolder, TorchTrace, base_name
from common.utils.printable import suggestion

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
_DEPTHWISE = layers.DepthwiseConv1D | layers.DepthwiseConv2D
_TRANSPOSED = layers.Conv1DTranspose | layers.Conv2DTranspose
_CONVOLUTION = layers.Conv1D | layers.Conv2D | layers.Conv3D
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
# Class of a Keras layer -> PyTorch's functions that have the same arrays.
FUNCTIONS: dict[Any, tuple[str, ...]] = {
    layers.Dense: ("linear", *_CONVOLUTIONS),
    layers.EinsumDense: ("linear",),
    _DEPTHWISE: _CONVOLUTIONS,
    _TRANSPOSED: ("conv_transpose",),
    _CONVOLUTION: (*_CONVOLUTIONS, "linear"),
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


def path_of(layer: Any) -> str:
    """Return the path of a layer, or its name if it has no arrays."""
    return str(getattr(layer, "path", None) or getattr(layer, "name", ""))


def is_seed(variable: Any) -> bool:
    """Return whether a variable is the state of random numbers."""
    return bool(variable.name == "seed_generator_state")


def own_arrays(layer: Any) -> list[Any]:
    """Return a layer's variables, without those of layers in it, numbers it was given, counts and states."""
    if not isinstance(layer, keras.Layer) or isinstance(layer, layers.Normalization):
        return []
    own = [*getattr(layer, "_trainable_variables", []), *getattr(layer, "_non_trainable_variables", [])]
    return [variable for variable in own if not is_seed(variable) and "float" in str(variable.dtype)]


def own_variables(layer: Any) -> dict[str, Any]:
    """Return a layer's own arrays by name."""
    return {variable.name: variable for variable in own_arrays(layer)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """Where the numbers of a Keras variable come from."""

    variable: Any
    layer: Any  # that owns the variable; None: WEIGHTS names it
    names: tuple[str, ...]  # of PyTorch's arrays, with rows; of several the sum
    part: tuple[int, int] = (0, 1)  # number and count of equal parts of a packed array
    flat: tuple[int, ...] | None = None  # shape of a sample before it was flattened, if entries are turned
    transposed: bool = False  # whether PyTorch's array is (inputs, outputs)
    bare: bool = False  # of a user's layer: as it is, but for axes of size 1 and, if `transposed`, turned

    @property
    def array(self) -> str:
        """The name of the first array, without rows."""
        return base_name(self.names[0])

    def load(self, arrays: ArrayFolder) -> None:
        """Put PyTorch's numbers, as they were before training, into the variable."""
        array = self.read(arrays, "weights")
        is_turned = array.ndim == 2 and array.flags.f_contiguous  # which NumPy would copy slowly
        self.variable.assign(tf.transpose(array.T) if is_turned else array)

    def read(self, arrays: ArrayFolder, kind: str) -> Any:
        """Return PyTorch's array of a kind (weights, gradients, ...) as the variable has it; None: it does not fit."""
        addends = [arrays[f"{kind}/{name}"] for name in self.names]
        array = addends[0] if len(addends) == 1 or kind == "gradients" else np.sum(addends, axis=0)
        number, count = self.part
        if count > 1:
            rows = len(array) // count
            array = array[number * rows : (number + 1) * rows]
        if self.transposed:
            array = array.T
        shape = tuple(self.variable.shape)
        if self.bare or self.variable.name not in MAIN:
            if self.flat and array.size == math.prod(self.flat):
                array = array[channels_last_order(self.flat)]
            return array.reshape(shape) if array.size == math.prod(shape) else None
        if self.flat and isinstance(self.layer, layers.Dense) and array.ndim == 2:
            array = array[:, channels_last_order(self.flat)]
        return _kernel(self.layer, array, shape)


def _kernel(layer: Any, weight: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    if isinstance(layer, layers.Dense | layers.EinsumDense):
        return _dense(weight, shape, einsum=isinstance(layer, layers.EinsumDense))
    if isinstance(layer, _DEPTHWISE):
        if weight.ndim != len(shape) or weight.shape[1] != 1 or weight.shape[0] != shape[-2] * shape[-1]:
            return None
        weight = weight.reshape(shape[-2], shape[-1], *weight.shape[2:])
        weight = np.moveaxis(weight, (0, 1), (-2, -1))
    elif not isinstance(layer, layers.Embedding):
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
    plain, wanted = ([size for size in sizes if size != 1] for sizes in (shape, other))
    if plain == wanted:
        return False
    return True if len(wanted) == 2 and plain[::-1] == wanted else None


def multiply_adds(layer: Any, value: Any, output: Any) -> int:
    """Return the multiplications of a layer's input with its kernel."""
    kernel = getattr(layer, "kernel", None)
    outputs = math.prod(output.shape)
    if isinstance(layer, layers.Embedding):  # a tied head multiplies with it
        return outputs * int(value.shape[-1]) if "float" in str(value.dtype) else 0
    if kernel is None:
        return 0
    if isinstance(layer, layers.EinsumDense):
        inputs, letters = layer.equation.replace("...", "").split("->")[0].split(",")
        summed = [size for letter, size in zip(letters, kernel.shape, strict=True) if letter in inputs]
        return outputs * math.prod(summed)
    if isinstance(layer, _TRANSPOSED):
        return math.prod(value.shape) * math.prod(kernel.shape[:-1])
    if isinstance(layer, layers.Dense | _DEPTHWISE | _CONVOLUTION):
        return outputs * math.prod(kernel.shape[: -2 if isinstance(layer, _DEPTHWISE) else -1])
    return 0


def name_weights(model: Any, trace: TorchTrace, pair: Pair) -> list[Source]:
    """Return where the numbers of Keras' variables come from that WEIGHTS names.

    A kernel is turned; "a + b" is the sum of two arrays, as of the two biases of a recurrent layer.

    Raises:
        UserError: a name is unknown, or shapes do not fit.
    """
    variables, sources = {variable.path: variable for variable in model.variables}, []
    for name, path in pair.weights.items():
        names = tuple(part.strip() for part in name.split("+"))
        for array in names:
            _check_name(array, trace.arrays, "array of PyTorch's model")
        _check_name(path, variables, "variable of Keras' model")
        variable, shape = variables[path], trace.arrays[names[0]]
        is_kernel = len(shape) == 2 and "kernel" in variable.name
        turned = fits_bare(shape, variable.shape)
        if is_kernel:
            turned = True if shape[::-1] == list(variable.shape) else None
        if turned is None:
            raise UserError(
                f"WEIGHTS pairs arrays that do not fit. Received: {name} {tuple(shape)} and {path} "
                f"{tuple(variable.shape)}. Correct it"
            )
        sources.append(Source(variable=variable, layer=None, names=names, transposed=turned, bare=True))
    return sources


def _check_name(name: str, names: Iterable[str], kind: str) -> None:
    if name not in names:
        raise UserError(f"WEIGHTS names no {kind}. Received: {name!r}. {suggestion(name, names)}Correct it")
