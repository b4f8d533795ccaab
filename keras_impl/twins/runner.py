"""Runs a Keras model with PyTorch's numbers, and notes where the two part.

Each layer is judged by itself: where its input differs, it is given PyTorch's; where its output differs, PyTorch's goes
on. So every difference is found, and not only the first.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import keras
import numpy as np
import tensorflow as tf

from common.twins.arrays import CONSTANTS, EQUAL, Fit, alike, fingerprint, nearest, pads_of
from common.twins.causes import cause_between, causes_inside
from common.twins.explanation import Computed
from common.twins.records import Cause, Dropout, Event, Parting, Row
from keras_impl.twins.events import Recorder, described
from keras_impl.twins.kernels import functions_for, own_variables, path_of
from keras_impl.twins.matcher import Match, Matcher

GIVEN = "PyTorch's numbers"  # in place of a layer's input that differs
UNSUPPORTED = {
    keras.layers.LSTMCell: "a recurrent layer",
    keras.layers.GRUCell: "a recurrent layer",
    keras.layers.SimpleRNNCell: "a recurrent layer",
    keras.layers.SeparableConv1D: "a separable convolution",
    keras.layers.SeparableConv2D: "a separable convolution",
}


class PartedError(Exception):
    """A trial has parted where it need not be continued."""


class Origin(NamedTuple):
    """What goes into a layer at a parting."""

    torch_sources: list[int]  # numbers of the events that made it
    keras_sources: list[int]
    reordered: bool  # whether only the order differs


class Runner:
    """One run of a model.

    Args:
        explain: record every operation, to say what differs between two layers.
        parts_at_most: end with PartedError when inputs have differed more often.
    """

    def __init__(self, matcher: Matcher, *, explain: bool = False, parts_at_most: int | None = None) -> None:
        self.matcher, self.built = matcher, matcher.case.built
        self.parts_at_most = parts_at_most
        self.recorder = Recorder(active=explain)
        self.rows: list[Row] = []
        self.parted_at: list[int] = []  # numbers of the rows whose input differs
        self.dropouts: list[Dropout] = []
        self.stopped_after = ""  # the last layer that could be compared, if shapes did not allow more
        self._partings: list[tuple[Parting, Origin | None]] = []
        self._replaced: dict[int, tuple[Any, Any]] = {}  # id of a tensor -> tensor, the one in its place

    def run(self) -> None:
        """Run the model with its first batch."""
        original, samples = keras.Operation.__call__, self.built.batch(0)

        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            return self._call(partial(original, layer), layer, args, kwargs)

        with self.recorder.recording(samples), patch.object(keras.Operation, "__call__", call):
            try:
                output = self.built.model(samples, training=self.matcher.mode == "training")
            except PartedError:
                raise
            except Exception:  # the model works: it does not with PyTorch's shapes
                if not any(parting.shapes for parting, _ in self._partings):
                    raise
                last = self.rows[-1].keras if self.rows else None
                self.stopped_after = last.place if last else "the input"
                return
        reference = self.matcher.arrays[f"{self.matcher.mode}/output"]
        fit = nearest(reference, np.asarray(output))
        if fit.difference > EQUAL:
            result = self.matcher.events[self.matcher.case.trace.results[self.matcher.mode]]
            origin = self._origin(output, [result.number], fingerprint(reference), fit.difference)
            after = Row(torch=None, keras=None)
            self._part(after, "after", fit.difference, reference.shape, output.shape, because=origin)

    @property
    def partings(self) -> list[Parting]:
        """Where the two part, explained if every operation was recorded."""
        if not self.recorder.active:
            return [parting for parting, _ in self._partings]
        torch = Computed(
            self.matcher.events, known={0, *self.matcher.matched_events()}, given={0}, untracked="the model's input"
        )
        keras_ = Computed(self.recorder.events, known=self.recorder.known, given=self.recorder.given)
        partings = []
        for parting, origin in self._partings:
            causes = parting.causes
            if origin:
                of_torch, of_keras, reordered = origin
                leads = torch.lead(of_torch, keras_), keras_.lead(of_keras, torch)
                causes = [cause_between(*leads, reordered=reordered)]
            partings.append(replace(parting, causes=causes))
        return partings

    def _call(self, original: Callable[..., Any], layer: Any, args: Any, kwargs: Any) -> Any:
        if self._replaced:
            args, kwargs = tf.nest.map_structure(self._in_its_place, (args, kwargs))
        if id(layer) in self.built.rates:
            self._note_dropout(layer, args, kwargs)
        own, compute = own_variables(layer), partial(original, *args, **kwargs)
        if not own or isinstance(layer, tuple(UNSUPPORTED)) or self.matcher.is_named(own):
            return self._unmatched(layer, compute)
        value = np.asarray(args[0]) if args and hasattr(args[0], "shape") else None
        match = self.matcher.find(layer, value, row=len(self.rows)) if value is not None else None
        if value is not None and match is not None:
            return self._matched(original, layer, args, kwargs, match, value)
        if not functions_for(layer):
            self.matcher.bare(layer, value)
        if not self.matcher.repeats and _is_of_keras(layer):
            self.rows.append(Row(torch=None, keras=described(layer)))
        return self._unmatched(layer, compute)

    def _in_its_place(self, value: Any) -> Any:
        return self._replaced[id(value)][1] if id(value) in self._replaced else value

    def _note_dropout(self, layer: Any, args: Any, kwargs: Any) -> None:
        rate, attention = self.built.rates[id(layer)], hasattr(layer, "_dropout")
        value = args[0] if args else next(iter(kwargs.values()))
        # Layers that drop only in training are called with what the model is called with.
        always = kwargs.get("training") is True and self.matcher.mode == "inference"
        if attention or always or self.matcher.mode == "training":
            seen = fingerprint(np.asarray(value))
            dropout = Dropout(layer=path_of(layer), rate=rate, input=seen, attention=attention, always=always)
            self.dropouts.append(dropout)

    def _unmatched(self, layer: Any, compute: Callable[[], Any]) -> Any:
        """Return the output of a layer or operation; one of Keras is recorded as one event."""
        is_composite = isinstance(layer, keras.Layer) and bool(list(layer._flatten_layers())[1:])
        if not self.recorder.active or not _is_of_keras(layer) or is_composite:
            return compute()
        return self.recorder.framed(described(layer), compute)

    def _matched(
        self, original: Callable[..., Any], layer: Any, args: Any, kwargs: Any, match: Match, value: np.ndarray
    ) -> Any:
        """Return the output of a layer for PyTorch's input, or PyTorch's output if it differs."""
        torch, keras_, before = match.event, described(layer), match.fit.difference
        row = Row(torch=torch, keras=keras_, before=before)
        if before > CONSTANTS:
            self.parted_at.append(len(self.rows))
            if self.parts_at_most is not None and len(self.parted_at) > self.parts_at_most:
                raise PartedError
        if before > EQUAL:
            origin = self._origin(args[0], torch.sources, torch.inputs[0], before)
            self._part(row, "before", before, torch.shapes[0], value.shape, because=origin)
            args = (self._given(layer, args[0], match), *args[1:])
        activation = getattr(layer, "activation", None)
        fused = activation if "kernel" in own_variables(layer) and activation is not keras.activations.linear else None

        def compute() -> Any:
            with ExitStack() as stack:
                if fused:
                    stack.callback(setattr, layer, "activation", activation)
                    layer.activation = keras.activations.linear
                return self._corrected(original(*args, **kwargs), layer, match, row)

        output = self.recorder.framed(keras_, compute, known=True)
        if fused:
            name = getattr(fused, "__name__", type(fused).__name__)
            output = self.recorder.framed(Event(name=name, place=path_of(layer)), partial(fused, output))
        return output

    def _given(self, layer: Any, tensor: Any, match: Match) -> Any:
        """Return PyTorch's input in place of a layer's, if its shape allows."""
        new = _in_place_of(tensor, match.fit, self.matcher.input_of(match.event))
        if new is tensor:
            return tensor
        # For all that read it; unless it is right elsewhere, and only this layer should be given another.
        is_right = alike(self.matcher.prints, fingerprint(np.asarray(tensor))).any()
        if not is_right or new.shape != tensor.shape:
            self._replaced[id(tensor)] = (tensor, new)
        self.recorder.add(Event(name=GIVEN, place=path_of(layer)), new, given=True)
        return new

    def _corrected(self, output: Any, layer: Any, match: Match, row: Row) -> Any:
        """Return a layer's output before its own activation, or PyTorch's if it differs."""
        reference, value = self.matcher.output_of(match), np.asarray(output)
        fit = nearest(reference, value, flat=match.event.flat)
        self.rows.append(replace(row, inside=fit.difference))
        if fit.difference <= EQUAL:
            return output
        keras_bias = getattr(layer, "bias", None) is not None or getattr(layer, "beta", None) is not None
        given = match.fit.array
        is_padded = given is not None and given.ndim > 2 and given.size > int(np.prod(match.event.shapes[0]))
        assert row.torch and row.keras
        causes = causes_inside(
            row.torch,
            row.keras,
            lone_bias="bias" in match.event.weights and not keras_bias,
            pads=pads_of(given) if is_padded and given is not None else (),
            same_shape=bool(np.isfinite(fit.difference)),
        )
        self._part(row, "inside", fit.difference, reference.shape, value.shape, because=causes)
        return _in_place_of(output, fit, reference)

    def _origin(self, tensor: Any, torch_sources: list[int], reference: list[float], difference: float) -> Origin:
        seen = fingerprint(np.asarray(tensor))
        reordered = difference > CONSTANTS and bool(alike([reference], seen, padded=True).any())
        return Origin(torch_sources, self.recorder.producers(tensor), reordered)

    def _part(self, row: Row, where: str, difference: float, *shapes: Any, because: Origin | list[Cause]) -> None:
        """Note a place where the two part; their shapes, if that is why."""
        text = f"shapes {tuple(shapes[0])} in PyTorch, {tuple(shapes[1])} in Keras"
        parting = Parting(
            where=where,
            mode=self.matcher.mode,
            torch=row.torch,
            keras=row.keras,
            difference=difference,
            shapes="" if np.isfinite(difference) else text,
            causes=[] if isinstance(because, Origin) else because,
        )
        self._partings.append((parting, because if isinstance(because, Origin) else None))


def _is_of_keras(layer: Any) -> bool:
    return type(layer).__module__.startswith("keras.") and not isinstance(layer, keras.layers.Lambda)


def _in_place_of(tensor: Any, fit: Fit, reference: np.ndarray) -> Any:
    """Return PyTorch's array in place of a tensor, which may be of another size; the tensor if it has other axes."""
    array = fit.array
    if array is None and reference.ndim == len(tensor.shape):
        array = np.moveaxis(reference, 1, -1) if reference.ndim > 3 else reference
    return tensor if array is None else tf.constant(np.ascontiguousarray(array), tensor.dtype)
