"""Records what a Keras model computes: names, numbers, fingerprints, and what each operation takes.

Layers and functions of `keras.ops` are one event each, whatever TensorFlow operations they consist of. Where a model
calls TensorFlow itself, or has operators in a `call`, the event is TensorFlow's operation.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from common.twins.arrays import fingerprint
from common.twins.records import Event
from keras_impl.twins.kernels import path_of

# Operations that change neither numbers nor their order within a sample.
QUIET = ("Cast", "Identity", "Reshape", "Transpose", "ExpandDims", "Squeeze", "Shape", "ReadVariableOp", "EnsureShape")
# Numbers of a layer that are shown -> the value that goes without saying.
SHOWN: dict[str, Any] = {
    **dict.fromkeys(("epsilon", "momentum", "strides", "padding")),
    "dilation_rate": (1, 1),
    "groups": 1,
    "activation": "linear",
    **dict.fromkeys(("pool_size", "axis", "negative_slope", "max_value")),
    "threshold": 0.0,
    **dict.fromkeys(("rate", "scale", "offset", "num_heads", "key_dim", "approximate")),
    "use_bias": True,
    **dict.fromkeys(("target_shape", "dims", "size", "interpolation", "noise_shape", "keepdims", "alpha", "value")),
    **dict.fromkeys(("center", "rms_scaling", "function", "depth_multiplier", "output_padding", "cropping")),
    "use_causal_mask": None,
}


class Recorder:
    """Records events while its context is open.

    Args:
        active: whether anything is recorded.
    """

    def __init__(self, *, active: bool) -> None:
        self.active = active
        self.events: list[Event] = []  # the first is the model's input
        self.known: set[int] = set()  # numbers of those that PyTorch has by construction
        self.given: set[int] = set()  # numbers of those that only PyTorch computed
        self._producers: dict[int, int] = {}
        self._kept: list[Any] = []  # tensors whose ids are in use

    def producers(self, *tensors: Any) -> list[int]:
        """Return the numbers of the events that made tensors, of those that are recorded."""
        return [self._producers[id(tensor)] for tensor in tensors if id(tensor) in self._producers]

    def add(self, event: Event, tensor: Any, *, known: bool = False, given: bool = False) -> None:
        """Record that something made a tensor."""
        if not self.active:
            return
        number = self._producers[id(tensor)] = len(self.events)
        self._kept.append(tensor)
        self.events.append(replace(event, number=number, output=fingerprint(np.asarray(tensor))))
        self.known |= {number} if known or given else set()
        self.given |= {number} if given else set()

    def framed(self, event: Event, compute: Callable[[], Any], *, known: bool = False) -> Any:
        """Compute something, and record it as one event."""
        start = len(self.events)
        output = compute()
        inner = {source for step in self.events[start:] for source in step.sources if source < start}
        for tensor in tf.nest.flatten(output) if self.active else ():
            if _is_float(tensor) and self._producers.get(id(tensor), start) >= start:
                self.add(replace(event, sources=sorted(inner)), tensor, known=known)
        return output

    def _operation(
        self, op_type: Any, inputs: Any, attributes: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        if graph is not None:
            return
        name = op_type.decode() if isinstance(op_type, bytes) else op_type
        sources = self.producers(*inputs)
        for tensor in filter(_is_float, outputs):
            if name not in QUIET:
                self.add(Event(name=f"tf.{name}", sources=sources), tensor)
            elif sources:
                self._producers[id(tensor)] = sources[0]
                self._kept.append(tensor)

    @contextmanager
    def recording(self, samples: Any) -> Iterator[None]:
        """Record TensorFlow's operations, and functions of `keras.ops` and `keras.activations`."""
        with ExitStack() as stack:
            if self.active:
                self.add(Event(name="input"), samples, known=True)
                for module in (keras.ops, keras.src.ops, keras.activations, keras.src.activations):
                    for name, function in vars(module).copy().items():
                        is_public = not name.startswith("_") and name not in ("get", "deserialize")
                        if is_public and inspect.isfunction(function):
                            stack.enter_context(patch.object(module, name, self._function(name, function)))
                attention = keras.layers.MultiHeadAttention
                stack.enter_context(patch.object(attention, "_compute_attention", self._attention(attention)))
                op_callbacks.add_op_callback(self._operation)
                stack.callback(op_callbacks.remove_op_callback, self._operation)
            yield

    def _function(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = inspect.signature(function).bind(*args, **kwargs)
                bound.apply_defaults()
                named = bound.arguments
            except TypeError:
                named = {}
            numbers = _literals(named)
            if name == "dot_product_attention" and named:
                masked = bool(named["is_causal"]) or named["mask"] is not None
                numbers = {"heads": int(named["query"].shape[2]), "masked": masked}
            return self.framed(Event(name=name, numbers=numbers), partial(function, *args, **kwargs))

        return call

    def _attention(self, layer_class: Any) -> Callable[..., Any]:
        original = layer_class._compute_attention

        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            # (query, key, value, attention_mask)
            mask = kwargs.get("attention_mask", args[3] if len(args) > 3 else None)
            masked = mask is not None or bool(kwargs.get("use_causal_mask"))
            numbers = {"heads": layer._num_heads, "masked": masked}
            event = Event(name="attention", place=path_of(layer), numbers=numbers)
            return self.framed(event, partial(original, layer, *args, **kwargs))

        return call


def _is_float(tensor: Any) -> bool:
    return isinstance(tensor, tf.Tensor) and tensor.dtype.is_floating and tensor.shape.rank not in (None, 0)


def _literals(named: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that are numbers or words."""
    return {
        name: value
        for name, value in named.items()
        if name not in ("data_format", "name", "dtype")
        if isinstance(value, int | float | str)
        or (isinstance(value, tuple | list) and all(isinstance(n, int) for n in value))
    }


def described(layer: Any) -> Event:
    """Return a layer or operation with the numbers that define what it computes."""
    try:
        config = {**layer.get_config()} if isinstance(layer, keras.Layer) else dict(vars(layer))
    except Exception:  # a user's layer need not have a configuration
        config = {}
    numbers = {}
    for name, usual in SHOWN.items():
        value = config.get(name)
        if value is None or value == usual or isinstance(value, dict):
            continue
        if name == "function":
            value = getattr(value, "__name__", "...") if callable(value) else value
        numbers[name] = value if isinstance(value, int | float | str | list | tuple) else str(value)
    return Event(name=type(layer).__name__, place=path_of(layer), numbers=numbers)
