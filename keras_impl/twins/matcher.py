"""Decides which PyTorch call a Keras layer is: the one that was given the same numbers and whose arrays fit.

Where several fit (query, key and value; parallel branches), `Choices` says which is taken: `search.py` tries others.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from common.twins.arrays import EQUAL, MOST_COMPARED, Fit, alike, fingerprint, nearest, unlike
from common.twins.trace import ArrayFolder, Call, TorchTrace, rows_of
from keras_impl.twins.events import path_of
from keras_impl.twins.kernels import MAIN, NEUTRAL, ROLES, Place, fits_bare, functions_for

Key = tuple[int, int, int]  # a candidate: number of the call, number of the part and count of parts (1: all of it)
Group = tuple[Key, ...]  # candidates that were given the same numbers
UNSUPPORTED = {
    keras.layers.LSTMCell: "a recurrent layer",
    keras.layers.GRUCell: "a recurrent layer",
    keras.layers.SimpleRNNCell: "a recurrent layer",
    keras.layers.SeparableConv1D: "a separable convolution",
    keras.layers.SeparableConv2D: "a separable convolution",
}
UNSUPPORTED_FUNCTIONS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@dataclass
class Choices:
    """Which member of a group takes which candidate.

    Attributes:
        of: group -> order in which its layers take its candidates.
        preferred: size of a group -> the order that was right for another group.
    """

    of: dict[Group, tuple[int, ...]] = field(default_factory=dict)
    preferred: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def order(self, group: Group) -> tuple[int, ...]:
        """Return the order for a group."""
        return self.of.get(group) or self.preferred.get(len(group)) or tuple(range(len(group)))


@dataclass(frozen=True)
class Match:
    """A layer's call, with PyTorch's input as Keras has it; its array is None if the shapes differ."""

    call: Call
    key: Key
    fit: Fit


@dataclass
class Binding:
    """What a matching has found out: it is kept when the model is run again.

    Attributes:
        keys: id of a layer -> candidates of its calls, in order.
        places: id of a variable -> variable, layer, and where its numbers come from.
        guessed: arrays matched by shape alone.
        groups: candidates with equal inputs -> numbers of the rows of the layers that took them.
    """

    keys: dict[int, list[Key]] = field(default_factory=dict)
    places: dict[int, tuple[Any, Any, Place]] = field(default_factory=dict)
    guessed: list[str] = field(default_factory=list)
    groups: dict[Group, list[int]] = field(default_factory=dict)


def own_variables(layer: Any) -> dict[str, Any]:
    """Return a layer's own arrays by name, without those of layers in it and states of random numbers."""
    if not isinstance(layer, keras.Layer) or isinstance(layer, keras.layers.Normalization):
        return {}
    own = [*getattr(layer, "_trainable_variables", []), *getattr(layer, "_non_trainable_variables", [])]
    return {one.name: one for one in own if not is_seed(one) and "float" in str(one.dtype)}


def is_seed(variable: Any) -> bool:
    """Return whether a variable is the state of random numbers."""
    return bool(variable.name == "seed_generator_state")


class Matcher:
    """Matches the layers of one run.

    Args:
        binding: of a former run, which is repeated; None: it is found.
        mapped: ids of variables that WEIGHTS names.
    """

    def __init__(
        self,
        model: Any,
        trace: TorchTrace,
        arrays: ArrayFolder,
        *,
        mode: str,
        choices: Choices,
        binding: Binding | None,
        mapped: set[int],
    ) -> None:
        self.trace, self.arrays, self.mode, self.choices, self.mapped = trace, arrays, mode, choices, mapped
        self.calls = trace.calls[mode]
        self.prints = np.array([call.output for call in self.calls] or np.zeros((0, 6)))
        self.repeats = binding is not None
        self.binding = binding or Binding()
        self.unused = {(call.order, 0, 1) for call in self.calls if call.shapes}
        self._parts: set[Key] = set()  # that are taken
        self._times: Counter[int] = Counter()
        self._left = Counter(_signature(own_variables(one)) for one in _layers(model) if functions_for(one))
        self._numbers = _same_calls(trace.calls["inference"], self.calls)

    def call_of(self, key: Key) -> Call | None:
        """Return the call of a candidate, in this mode."""
        number = self._numbers.get(key[0])
        return None if number is None else self.calls[number]

    def weights(self, name: str) -> np.ndarray:
        """Return a PyTorch array, or rows of it."""
        base, rows = rows_of(name)
        return self.arrays[f"weights/{base}"][rows]

    def input_of(self, call: Call) -> np.ndarray:
        """Return what a call was given."""
        return self.arrays[f"{self.mode}/{call.order}/x"]

    def output_of(self, match: Match) -> np.ndarray:
        """Return what a call returned, or the part of it that the layer computes."""
        output = self.arrays[f"{self.mode}/{match.call.order}/y"]
        _, number, count = match.key
        columns = output.shape[-1] // count
        return output[..., number * columns : (number + 1) * columns] if count > 1 else output

    def find(self, layer: Any, value: np.ndarray, *, row: int) -> Match | None:
        """Return the call that this call of the layer is; put its arrays into the layer at the first."""
        own = own_variables(layer)
        times = self._times[id(layer)]
        self._times[id(layer)] += 1
        if self.repeats:
            keys = self.binding.keys.get(id(layer), [])
            known = times < len(keys) and self.call_of(keys[times]) is not None
            return self._match(keys[times], value) if known else None
        if times:
            match = self._next_use(layer, value)
        else:
            match = self._first_use(layer, own, value, row=row)
            self._left[_signature(own)] -= 1
        if match is None:
            return None
        self.binding.keys.setdefault(id(layer), []).append(match.key)
        self.unused.discard(match.key)
        if match.key[2] > 1:
            self._parts.add(match.key)
            self.unused.discard((match.call.order, 0, 1))
        if not times:
            self._assign(layer, own, match)
        return match

    def _match(self, key: Key, value: np.ndarray) -> Match:
        call = self.call_of(key)
        assert call is not None
        return Match(call, key, nearest(self.input_of(call), value, flat=call.flat, pad=True))

    def _candidates(self, layer: Any, own: dict[str, Any]) -> Iterator[Key]:
        """Yield calls of the layer's kind, and parts of packed ones, that no layer has taken."""
        functions, kernel = functions_for(layer), own.get("kernel")
        split = {key[0] for key in self._parts}
        for call in self.calls:
            if not call.shapes or not functions or not call.function.startswith(functions):
                continue
            is_free = (call.order, 0, 1) in self.unused
            if is_free:
                yield call.order, 0, 1
            if call.function != "linear" or kernel is None or not (is_free or call.order in split):
                continue
            count, rest = divmod(self._entries(call.weights.get("weight", "")), math.prod(kernel.shape))
            for number in range(count if count > 1 and not rest else 0):
                if (call.order, number, count) not in self._parts:
                    yield call.order, number, count

    def _entries(self, name: str) -> int:
        base, rows = rows_of(name)
        shape = self.trace.arrays.get(base, [0])
        return math.prod([len(range(*rows.indices(shape[0]))), *shape[1:]])

    def _places(self, layer: Any, own: dict[str, Any], key: Key) -> dict[str, Place | None] | None:
        """Return where each variable of a layer comes from (None: from nowhere); None: they do not fit."""
        order, number, count = key
        call, places = self.calls[order], dict[str, Place | None]()
        for name, variable in own.items():
            source = call.weights.get(ROLES.get(name, ""))
            if source is None:
                places[name] = None
                continue
            transposed = call.transposed and name in MAIN
            place = Place((source,), (number, count) if count > 1 else None, transposed=transposed)
            if place.to_keras(self.weights(source), layer, variable) is None:
                return None
            places[name] = place
        main = [name for name in own if name in MAIN]
        return None if all(place is None for place in places.values()) or any(not places[n] for n in main) else places

    def _first_use(self, layer: Any, own: dict[str, Any], value: np.ndarray, *, row: int) -> Match | None:
        keys, seen = list(self._candidates(layer, own)), fingerprint(value)
        prints = np.array([self.calls[key[0]].inputs[0] for key in keys]).reshape(-1, 6)
        likely = [key for key, same in zip(keys, alike(prints, seen, padded=True), strict=True) if same]
        likely = [key for key in likely if self._places(layer, own, key)]
        equal = [match for key in likely if (match := self._match(key, value)).fit.difference <= EQUAL]
        if equal:
            return self._chosen(equal, row)
        return self._most_alike(layer, own, [key for key in keys if self._places(layer, own, key)], value)

    def _chosen(self, equal: list[Match], row: int) -> Match:
        """Return one of those that were given the same numbers."""
        keys = {match.key: match for match in equal}
        group = next((one for one in self.binding.groups if keys.keys() <= set(one)), None)
        if group is None:
            if len(equal) == 1:
                return equal[0]
            group = tuple(sorted(keys))
            self.binding.groups[group] = []
        members = self.binding.groups[group]
        members.append(row)
        wanted = [group[number] for number in self.choices.order(group)][len(members) - 1 :]
        return next((keys[key] for key in wanted if key in keys), equal[0])

    def _most_alike(self, layer: Any, own: dict[str, Any], keys: list[Key], value: np.ndarray) -> Match | None:
        """Return the call whose input is most like the layer's; None where the layer is one too many."""
        matches = [self._match(key, value) for key in keys[:MOST_COMPARED]]
        same_shape = [match for match in matches if match.fit.array is not None]
        scores = [unlike(value, match.fit.array) for match in same_shape if match.fit.array is not None]
        best = min(range(len(scores)), key=lambda one: scores[one], default=None)
        if self._left[_signature(own)] > len(keys) and (best is None or scores[best] >= 1):
            return None
        if best is not None:
            return same_shape[best if scores[best] < 1.9 else 0]
        return matches[0] if matches else None

    def _next_use(self, layer: Any, value: np.ndarray) -> Match | None:
        """Return the next call with the same arrays: of a tied head, or of a layer that is called again."""
        done = self.binding.keys.get(id(layer))
        if not done:
            return None
        names = set(self.calls[done[0][0]].weights.values())
        later = [
            call
            for call in self.calls
            if call.order > done[-1][0]
            and call.shapes
            and names & set(call.weights.values())
            and (call.order, 0, 1) in self.unused
        ]
        matches = [self._match((call.order, 0, 1), value) for call in later]
        return min(matches, key=lambda one: one.fit.difference, default=None)

    def _assign(self, layer: Any, own: dict[str, Any], match: Match) -> None:
        """Put PyTorch's numbers into a layer."""
        places = self._places(layer, own, match.key)
        assert places is not None
        flat = tuple(match.call.flat) if match.fit.flattened and match.call.flat else None
        for name, variable in own.items():
            place = places[name]
            if place is None:
                variable.assign(np.full(variable.shape, NEUTRAL.get(name, 0.0)))
                continue
            place = Place(place.names, place.part, flat, place.transposed)
            variable.assign(place.to_keras(self.weights(place.names[0]), layer, variable))
            self.binding.places[id(variable)] = (variable, layer, place)

    def bare(self, layer: Any, value: np.ndarray | None) -> None:
        """Put numbers into a layer of the user's own: arrays that fit, best of a call with the same input."""
        if self.repeats or any(id(one) in self.binding.places for one in own_variables(layer).values()):
            return
        taken = {name for _, _, place in self.binding.places.values() for name in place.names}
        seen = fingerprint(value) if value is not None else None
        for variable in own_variables(layer).values():
            options = list[tuple[bool, str, bool]]()
            for call in self.calls:
                for role, name in call.weights.items():
                    turned = fits_bare(self.trace.arrays.get(name, []), variable.shape)
                    if turned is None or name in taken or not role.startswith("bare"):
                        continue
                    same = seen is not None and bool(call.inputs) and bool(alike(np.array(call.inputs), seen).any())
                    options.append((not same, name, turned))
            if not options:
                continue
            elsewhere, name, turned = min(options, key=lambda one: one[0])
            if elsewhere and len({name for _, name, _ in options}) > 1:
                self.binding.guessed.append(f"{name} / {variable.path}")
            taken.add(name)
            place = Place((name,), transposed=turned, bare=True)
            variable.assign(place.to_keras(self.weights(name), layer, variable))
            self.binding.places[id(variable)] = (variable, layer, place)


def _same_calls(calls: list[Call], others: list[Call]) -> dict[int, int]:
    """Return number of a call -> number of the call in another mode that has the same function and arrays."""
    times, found = Counter[tuple[Any, ...]](), dict[tuple[Any, ...], int]()
    for call in others:
        name = (call.function, *call.weights.values())
        times[name] += 1
        found[(*name, times[name])] = call.order
    times.clear()
    numbers = {}
    for call in calls:
        name = (call.function, *call.weights.values())
        times[name] += 1
        if (*name, times[name]) in found:
            numbers[call.order] = found[(*name, times[name])]
    return numbers


def _signature(own: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((name, tuple(one.shape)) for name, one in own.items())


def _layers(model: Any) -> Iterator[Any]:
    yield from model._flatten_layers()


def unsupported_layers(model: Any, trace: TorchTrace, mapped: set[int], names: set[str]) -> dict[str, str]:
    """Return layers whose arrays cannot be matched, and are not all in WEIGHTS: name -> what it is.

    Args:
        mapped: ids of Keras' variables that WEIGHTS names.
        names: of PyTorch's arrays that WEIGHTS names.
    """
    found = {}
    for layer in _layers(model):
        kind = next((text for one, text in UNSUPPORTED.items() if isinstance(layer, one)), None)
        if kind and not all(id(one) in mapped for one in own_variables(layer).values()):
            found[f"Keras {path_of(layer)}"] = kind
    for call in trace.calls["inference"]:
        if call.function.startswith(UNSUPPORTED_FUNCTIONS) and not names & set(call.weights.values()):
            found[f"PyTorch {call.module}"] = "a recurrent layer"
    return found
