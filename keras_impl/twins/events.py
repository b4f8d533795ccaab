"""What a Keras model computes, operation by operation: names, numbers, fingerprints, and what each takes.

Layers and functions of `keras.ops` are one event each, whatever TensorFlow operations they consist of. Where a model
calls TensorFlow itself, or has operators in a `call`, the event is TensorFlow's operation.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any
from unittest.mock import patch

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from common.twins.arrays import fingerprint
from common.twins.comparison import Step

# Operations that change neither numbers nor their order within a sample.
QUIET = {"Cast", "Identity", "Reshape", "Transpose", "ExpandDims", "Squeeze", "Shape", "ReadVariableOp", "EnsureShape"}
SHOWN = (
    "epsilon",
    "momentum",
    "strides",
    "padding",
    "dilation_rate",
    "groups",
    "activation",
    "pool_size",
    "axis",
    "negative_slope",
    "max_value",
    "threshold",
    "rate",
    "scale",
    "offset",
    "num_heads",
    "key_dim",
    "approximate",
    "use_bias",
    "target_shape",
    "dims",
    "size",
    "interpolation",
    "noise_shape",
    "keepdims",
    "alpha",
    "value",
    "center",
    "rms_scaling",
    "function",
    "depth_multiplier",
    "output_padding",
    "cropping",
    "use_causal_mask",
)
_DEFAULTS: dict[str, Any] = {
    "activation": "linear",
    "groups": 1,
    "dilation_rate": (1, 1),
    "threshold": 0.0,
    "use_bias": True,
}


@dataclass(frozen=True)
class Event:
    """Something that a model computed.

    Attributes:
        sources: numbers of the events whose results it takes.
        known: whether PyTorch computes the same by construction: a layer that is matched, or the model's input.
    """

    step: Step
    sources: tuple[int, ...]
    output: list[float]
    known: bool = False
    hidden: bool = False


class Events:
    """Records events while its context is open."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._producers: dict[int, int] = {}
        self._kept: list[Any] = []  # tensors whose ids are in use
        self._frames: list[int] = []

    def producer(self, tensor: Any) -> int | None:
        """Return the number of the event that made a tensor."""
        return self._producers.get(id(tensor))

    def add(self, step: Step, tensor: Any, sources: tuple[int, ...] = (), *, known: bool = False) -> None:
        """Record that something made a tensor."""
        self._producers[id(tensor)] = len(self.events)
        self._kept.append(tensor)
        hidden = bool(self._frames)
        self.events.append(Event(step, sources, fingerprint(np.asarray(tensor)), known=known, hidden=hidden))

    @contextmanager
    def frame(self, step: Step, *, known: bool = False) -> Iterator[list[Any]]:
        """Make one event of all that happens inside; put its results into the list that this yields."""
        start, results = len(self.events), list[Any]()
        self._frames.append(start)
        try:
            yield results
        finally:
            self._frames.pop()
        sources = {one for event in self.events[start:] for one in event.sources if one < start}
        for one in results:
            made = self.producer(one)
            if _is_float(one) and (made is None or made >= start):
                self.add(step, one, tuple(sorted(sources)), known=known)

    def _operation(
        self, op_type: Any, inputs: Any, attributes: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        if graph is not None:
            return
        name = op_type.decode() if isinstance(op_type, bytes) else op_type
        sources = tuple(made for one in inputs if (made := self.producer(one)) is not None)
        for one in outputs:
            if not _is_float(one) or (not sources and name in QUIET):
                continue
            if name in QUIET:
                self._producers[id(one)] = sources[0]
                self._kept.append(one)
            else:
                self.add(Step(name=f"tf.{name}", place="", numbers={}), one, sources)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record TensorFlow's operations, and functions of `keras.ops` and `keras.activations`."""
        with ExitStack() as stack:
            for module in (keras.ops, keras.src.ops, keras.activations, keras.src.activations):
                for name, function in vars(module).copy().items():
                    if inspect.isfunction(function) and not name.startswith("_") and name not in ("get", "deserialize"):
                        stack.enter_context(patch.object(module, name, self._framed(name, function)))
            attention = keras.layers.MultiHeadAttention
            stack.enter_context(patch.object(attention, "_compute_attention", self._attention(attention)))
            op_callbacks.add_op_callback(self._operation)
            stack.callback(op_callbacks.remove_op_callback, self._operation)
            yield

    def _framed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            numbers = _literals(function, args, kwargs)
            if name == "dot_product_attention":
                given = inspect.signature(function).bind(*args, **kwargs).arguments
                masked = bool(given.get("is_causal")) or given.get("mask") is not None
                numbers = {"heads": int(given["query"].shape[2]), "masked": masked}
            with self.frame(Step(name=name, place="", numbers=numbers)) as results:
                out = function(*args, **kwargs)
                results += out if isinstance(out, tuple | list) else [out]
            return out

        return call

    def _attention(self, layer_class: Any) -> Callable[..., Any]:
        original = layer_class._compute_attention

        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            # (query, key, value, attention_mask)
            mask = kwargs.get("attention_mask", args[3] if len(args) > 3 else None)
            masked = mask is not None or bool(kwargs.get("use_causal_mask"))
            numbers = {"heads": layer._num_heads, "masked": masked}
            with self.frame(Step(name="attention", place=path_of(layer), numbers=numbers)) as results:
                out = original(layer, *args, **kwargs)
                results.append(out[0])
            return out

        return call


def _is_float(tensor: Any) -> bool:
    return isinstance(tensor, tf.Tensor) and tensor.dtype.is_floating and tensor.shape.rank not in (None, 0)


def _literals(function: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """Return arguments that are numbers or words, defaults included."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return {}
    bound.apply_defaults()
    named = {name: one for name, one in bound.arguments.items() if name not in ("data_format", "name", "dtype")}
    return {
        name: one
        for name, one in named.items()
        if isinstance(one, int | float | str)
        or (isinstance(one, tuple | list) and all(isinstance(n, int) for n in one))
    }


def path_of(layer: Any) -> str:
    """Return the path of a layer, or its name if it has no arrays."""
    return str(getattr(layer, "path", None) or getattr(layer, "name", ""))


def described(layer: Any) -> Step:
    """Return a layer or operation with the numbers that define what it computes."""
    try:
        config = {**layer.get_config()} if isinstance(layer, keras.Layer) else dict(vars(layer))
    except Exception:  # a user's layer need not have a configuration
        config = {}
    numbers = {
        name: config[name]
        for name in SHOWN
        if config.get(name) is not None and config[name] != _DEFAULTS.get(name) and not isinstance(config[name], dict)
    }
    if callable(function := numbers.get("function")):
        numbers["function"] = getattr(function, "__name__", "...")
    return Step(name=type(layer).__name__, place=path_of(layer), numbers=_plain(numbers))


def _plain(numbers: dict[str, Any]) -> dict[str, Any]:
    return {
        name: one if isinstance(one, int | float | str | list | tuple) else str(one) for name, one in numbers.items()
    }
