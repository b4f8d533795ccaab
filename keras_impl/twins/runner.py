"""Runs a Keras model with PyTorch's numbers, and notes where the two part.

Each layer is judged by itself: where its input differs, it is given PyTorch's; where its output differs, PyTorch's goes
on. So every difference is found, and not only the first.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any
from unittest.mock import patch

import keras
import numpy as np
import tensorflow as tf

from common.twins.arrays import CONSTANTS, EQUAL, alike, fingerprint, nearest, pads_of
from common.twins.comparison import Parting, Row, Step
from common.twins.trace import Dropout
from keras_impl.twins.events import Events, described, path_of
from keras_impl.twins.explanation import GIVEN, Explanation, Open
from keras_impl.twins.kernels import functions_for
from keras_impl.twins.matcher import UNSUPPORTED, Match, Matcher, own_variables


class PartedError(Exception):
    """A trial has parted where it need not be continued."""


Rates = dict[int, tuple[float, bool]]  # id of a layer -> what it drops, and whether it is that of attention


class Runner:
    """One run of a model.

    Args:
        explain: record every operation, to say what differs between two layers.
        parts_at_most: end with PartedError when inputs have differed more often.
    """

    def __init__(
        self, model: Any, matcher: Matcher, *, rates: Rates, explain: bool = False, parts_at_most: int | None = None
    ) -> None:
        self.model, self.matcher, self.rates = model, matcher, rates
        self.parts_at_most = parts_at_most
        self.events = Events() if explain else None
        self.rows: list[Row] = []
        self.parted_at: list[int] = []  # numbers of the rows whose input differs
        self.dropouts: list[Dropout] = []
        self.stopped_after = ""  # the last layer that could be compared, if shapes did not allow more
        self._open: list[Open] = []
        self._replaced: dict[int, tuple[Any, Any]] = {}

    def run(self, samples: Any) -> None:
        """Run the model."""
        original = keras.Operation.__call__
        runner = self

        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            return runner._call(original, layer, args, kwargs)

        with ExitStack() as stack:
            if self.events:
                self.events.add(Step(name="input", place="", numbers={}), samples, known=True)
                stack.enter_context(self.events.recording())
            stack.enter_context(patch.object(keras.Operation, "__call__", call))
            try:
                output = self.model(samples, training=self.matcher.mode == "training")
            except PartedError:
                raise
            except Exception:  # the model works: it does not with PyTorch's shapes
                if not any("shapes" in one.parting.facts for one in self._open):
                    raise
                self.stopped_after = self.rows[-1].keras.place if self.rows and self.rows[-1].keras else "the input"
                return
        self._compare_output(output)

    @property
    def partings(self) -> list[Parting]:
        """Where the two part, explained if every operation was recorded."""
        return (
            Explanation(self.matcher, self.events.events).explain(self._open)
            if self.events
            else [one.parting for one in self._open]
        )

    def _call(self, original: Callable[..., Any], layer: Any, args: Any, kwargs: Any) -> Any:
        if self._replaced:
            args, kwargs = tf.nest.map_structure(lambda one: self._replaced.get(id(one), (one, one))[1], (args, kwargs))
        if id(layer) in self.rates:
            self._note_dropout(layer, args, kwargs)
        own = own_variables(layer)
        if not own or isinstance(layer, tuple(UNSUPPORTED)) or any(id(v) in self.matcher.mapped for v in own.values()):
            return self._without_arrays(original, layer, args, kwargs)
        value = np.asarray(args[0]) if args and hasattr(args[0], "shape") else None
        match = self.matcher.find(layer, value, row=len(self.rows)) if value is not None else None
        if match is None:
            if not functions_for(layer):
                self.matcher.bare(layer, value)
            return self._unmatched(original, layer, args, kwargs)
        return self._matched(original, layer, args, kwargs, match)

    def _note_dropout(self, layer: Any, args: Any, kwargs: Any) -> None:
        rate, attention = self.rates[id(layer)]
        value = args[0] if args else next(iter(kwargs.values()))
        # Layers that drop only in training are called with what the model is called with.
        always = kwargs.get("training") is True and self.matcher.mode == "inference"
        if attention or always or self.matcher.mode == "training":
            seen = fingerprint(np.asarray(value))
            self.dropouts.append(
                Dropout(layer=path_of(layer), rate=rate, input=seen, attention=attention, always=always)
            )

    def _frame(self, step: Step, *, known: bool = False) -> AbstractContextManager[list[Any]]:
        """Record what happens inside as one event; put its results into the list."""
        return self.events.frame(step, known=known) if self.events else nullcontext([])

    def _without_arrays(self, original: Callable[..., Any], layer: Any, args: Any, kwargs: Any) -> Any:
        kind = type(layer)
        opaque = kind.__module__.startswith("keras.") and kind is not keras.layers.Lambda
        is_composite = isinstance(layer, keras.Layer) and bool(list(layer._flatten_layers())[1:])
        if not self.events or not opaque or is_composite:
            return original(layer, *args, **kwargs)
        with self.events.frame(described(layer)) as results:
            output = original(layer, *args, **kwargs)
            results += [one for one in tf.nest.flatten(output) if hasattr(one, "shape")]
        return output

    def _unmatched(self, original: Callable[..., Any], layer: Any, args: Any, kwargs: Any) -> Any:
        if not self.matcher.repeats and type(layer).__module__.startswith("keras."):
            self.rows.append(Row(torch=None, keras=described(layer)))
        if not type(layer).__module__.startswith("keras."):
            return original(layer, *args, **kwargs)
        with self._frame(described(layer)) as results:
            output = original(layer, *args, **kwargs)
            results.append(output)
        return output

    def _matched(self, original: Callable[..., Any], layer: Any, args: Any, kwargs: Any, match: Match) -> Any:
        value, call, fit = np.asarray(args[0]), match.call, match.fit
        torch, keras_step = Step(name=call.function, place=call.layer, numbers=call.numbers), described(layer)
        if fit.difference > CONSTANTS:
            self.parted_at.append(len(self.rows))
            if self.parts_at_most is not None and len(self.parted_at) > self.parts_at_most:
                raise PartedError
        if fit.difference > EQUAL:
            shapes = call.shapes[0], list(value.shape)
            self._part("before", torch, keras_step, fit.difference, shapes)
            self._explain(args[0], call.sources, call.inputs[0])
            args = (self._given(layer, args[0], match), *args[1:])
        output, inside = self._computed(original, layer, args, kwargs, match, torch, keras_step)
        self.rows.append(Row(torch=torch, keras=keras_step, before=_finite(fit.difference), inside=_finite(inside)))
        return output

    def _given(self, layer: Any, tensor: Any, match: Match) -> Any:
        """Return PyTorch's input in place of a layer's, if its shape allows."""
        array = match.fit.array
        if array is None:
            array = _channels_last(self.matcher.input_of(match.call), tensor)
        if array is None:
            return tensor
        new = tf.constant(np.ascontiguousarray(array), tensor.dtype)
        # For all that read it; unless it is right elsewhere, and only this layer should be given another.
        is_right = alike(self.matcher.prints, fingerprint(np.asarray(tensor))).any()
        if not is_right or new.shape != tensor.shape:
            self._replaced[id(tensor)] = (tensor, new)
        if self.events:
            self.events.add(Step(name=GIVEN, place=path_of(layer), numbers={}), new, known=True)
        return new

    def _computed(
        self,
        original: Callable[..., Any],
        layer: Any,
        args: Any,
        kwargs: Any,
        match: Match,
        torch: Step,
        keras_step: Step,
    ) -> tuple[Any, float]:
        """Return a layer's output, or PyTorch's if it differs; and the difference before the layer's own activation."""
        activation = getattr(layer, "activation", None)
        fused = activation if "kernel" in own_variables(layer) and activation is not keras.activations.linear else None
        with ExitStack() as stack:
            results = stack.enter_context(self._frame(keras_step, known=True))
            if fused:
                stack.callback(setattr, layer, "activation", activation)
                layer.activation = keras.activations.linear
            output = original(layer, *args, **kwargs)
            reference, value = self.matcher.output_of(match), np.asarray(output)
            fit = nearest(reference, value, flat=match.call.flat)
            if fit.difference > EQUAL:
                facts = self._facts(layer, match)
                self._part(
                    "inside", torch, keras_step, fit.difference, (list(reference.shape), list(value.shape)), facts
                )
                array = fit.array if fit.array is not None else _channels_last(reference, value)
                if array is not None:
                    output = tf.constant(np.ascontiguousarray(array), output.dtype)
            results.append(output)
        if fused:
            name = getattr(fused, "__name__", type(fused).__name__)
            with self._frame(Step(name=name, place=path_of(layer), numbers={})) as results:
                output = fused(output)
                results.append(output)
        return output, fit.difference

    def _facts(self, layer: Any, match: Match) -> dict[str, Any]:
        """Return what else is known of a layer whose output differs: a bias on one side, zeros around its input."""
        facts: dict[str, Any] = {}
        keras_bias = getattr(layer, "bias", None) is not None or getattr(layer, "beta", None) is not None
        torch_bias = "bias" in match.call.weights
        if keras_bias != torch_bias:
            facts["lone"] = "PyTorch" if torch_bias else "Keras"
        array, shape = match.fit.array, match.call.shapes[0]
        if array is not None and array.ndim > 2 and array.size > int(np.prod(shape)):
            facts["pads"] = pads_of(array)
        return facts

    def _part(
        self,
        where: str,
        torch: Step | None,
        keras_step: Step | None,
        difference: float,
        shapes: tuple[list[int], list[int]],
        facts: dict[str, Any] | None = None,
    ) -> None:
        parting = Parting(
            where=where,
            mode=self.matcher.mode,
            torch=torch,
            keras=keras_step,
            difference=_finite(difference),
            facts={**(facts or {}), **({} if np.isfinite(difference) else {"shapes": shapes})},
        )
        self._open.append(Open(parting, [], None))

    def _explain(self, tensor: Any, sources: list[int], reference: list[float]) -> None:
        """Keep what explains the last parting."""
        last = self._open[-1]
        last.sources, last.reference, last.value = sources, reference, fingerprint(np.asarray(tensor))
        last.producer = self.events.producer(tensor) if self.events else None

    def _compare_output(self, output: Any) -> None:
        value = np.asarray(output)
        reference = self.matcher.arrays[f"{self.matcher.mode}/output"]
        difference = nearest(reference, value).difference
        if difference > EQUAL:
            self._part("after", None, None, difference, (list(reference.shape), list(value.shape)))
            self._explain(output, [self.matcher.trace.results[self.matcher.mode]], fingerprint(reference))


def _finite(difference: float) -> float | None:
    """Return a difference as JSON can have it."""
    return difference if np.isfinite(difference) else None


def _channels_last(array: np.ndarray, value: np.ndarray) -> np.ndarray | None:
    """Return PyTorch's array in place of a Keras tensor of another size."""
    if array.ndim != value.ndim:
        return None
    return np.moveaxis(array, 1, -1) if array.ndim > 3 else array
