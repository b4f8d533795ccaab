"""Decides which PyTorch call a Keras layer is: the one that was given the same numbers and whose arrays fit.

Where several fit (query, key and value; parallel branches), `Choices` says which is taken: `search.py` tries others.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from common.twins.arrays import EQUAL, Fit, alike, fingerprint, nearest, unlike
from common.twins.records import ArrayFolder, Event, TorchTrace
from keras_impl.twins.kernels import MAIN, NEUTRAL, ROLES, Source, fits_bare, functions_for, own_variables
from keras_impl.twins.model import Built

MOST_COMPARED = 12  # inputs that differ are compared with so many candidates


class Candidate(NamedTuple):
    """A PyTorch call that a layer may be, or one of equal parts of it."""

    event: int
    part: int = 0
    parts: int = 1


Group = tuple[Candidate, ...]  # that were given the same numbers


@dataclass
class Choices:
    """Which member of a group takes which candidate."""

    of: dict[Group, tuple[int, ...]] = field(default_factory=dict)  # order in which its layers take its candidates
    preferred: dict[int, tuple[int, ...]] = field(default_factory=dict)  # size -> order that was right for another

    def order(self, group: Group) -> tuple[int, ...]:
        """Return the order for a group."""
        return self.of.get(group) or self.preferred.get(len(group)) or tuple(range(len(group)))


@dataclass(frozen=True)
class Match:
    """A layer's call, with PyTorch's input as Keras has it; its array is None if the shapes differ."""

    event: Event
    candidate: Candidate
    fit: Fit


@dataclass
class Binding:
    """What a matching has found out: it is kept when the model is run again."""

    sources: dict[int, Source]  # id of a variable -> where its numbers come from
    candidates: dict[int, list[Candidate]] = field(default_factory=dict)  # id of a layer -> those of its calls
    guessed: list[str] = field(default_factory=list)  # arrays matched by shape alone
    groups: dict[Group, list[int]] = field(default_factory=dict)  # numbers of the rows whose layers took its candidates

    @property
    def names(self) -> set[str]:
        """PyTorch's arrays that are matched, with rows."""
        return {name for source in self.sources.values() for name in source.names}

    @property
    def events(self) -> set[int]:
        """PyTorch's calls in inference that are matched."""
        return {candidate.event for candidates in self.candidates.values() for candidate in candidates}


@dataclass(frozen=True)
class Case:
    """A Keras model, what PyTorch's process wrote down, and what WEIGHTS names."""

    built: Built
    trace: TorchTrace
    arrays: ArrayFolder
    named: list[Source]


class Matcher:
    """Matches the layers of one run.

    Args:
        binding: of a former run, which is repeated; None: it is found.
    """

    def __init__(
        self, case: Case, *, mode: str = "inference", choices: Choices | None = None, binding: Binding | None = None
    ) -> None:
        self.case, self.arrays, self.mode = case, case.arrays, mode
        self.choices = choices or Choices()
        self.events = case.trace.events[mode]
        self.prints = np.array([event.output for event in self.events[1:]]).reshape(-1, 6)
        self.repeats = binding is not None
        self.binding = binding or Binding({id(source.variable): source for source in case.named})
        self._unused = {Candidate(event.number) for event in self.events if event.shapes}
        self._parts: set[Candidate] = set()  # that are taken
        self._times: Counter[int] = Counter()
        layers = [layer for layer in case.built.model._flatten_layers() if functions_for(layer)]
        self._left = Counter(_signature(own_variables(layer)) for layer in layers)
        numbers = _occurrences(self.events)
        self._numbers = {
            number: numbers[call]
            for call, number in _occurrences(case.trace.events["inference"]).items()
            if call in numbers
        }

    def matched_events(self) -> set[int]:
        """Return numbers of the calls in this mode that are matched."""
        return {self._numbers[number] for number in self.binding.events if number in self._numbers}

    def input_of(self, event: Event) -> np.ndarray:
        """Return what a call was given."""
        return self.arrays[f"{self.mode}/{event.number}/x"]

    def output_of(self, match: Match) -> np.ndarray:
        """Return what a call returned, or the part of it that the layer computes."""
        output = self.arrays[f"{self.mode}/{match.event.number}/y"]
        _, part, parts = match.candidate
        columns = output.shape[-1] // parts
        return output[..., part * columns : (part + 1) * columns] if parts > 1 else output

    def find(self, layer: Any, value: np.ndarray, *, row: int) -> Match | None:
        """Return the call that this call of the layer is; put its arrays into the layer at the first."""
        own, candidates = own_variables(layer), self.binding.candidates.setdefault(id(layer), [])
        times = self._times[id(layer)]
        self._times[id(layer)] += 1
        if self.repeats:
            return self._match(candidates[times], value) if times < len(candidates) else None
        match = self._next_use(candidates, value) if times else self._first_use(layer, own, value, row=row)
        if not times:
            self._left[_signature(own)] -= 1
        if match is None:
            return None
        candidates.append(match.candidate)
        self._unused.discard(match.candidate)
        if match.candidate.parts > 1:
            self._parts.add(match.candidate)
            self._unused.discard(Candidate(match.event.number))
        if not times:
            self._assign(layer, own, match)
        return match

    def _match(self, candidate: Candidate, value: np.ndarray) -> Match | None:
        """Return the call of a candidate; None where this mode has none."""
        number = self._numbers.get(candidate.event)
        if number is None:
            return None
        event = self.events[number]
        return Match(event, candidate, nearest(self.input_of(event), value, flat=event.flat, pad=True))

    def _matches(self, candidates: Iterable[Candidate], value: np.ndarray) -> list[Match]:
        return [match for candidate in candidates if (match := self._match(candidate, value))]

    def is_named(self, own: dict[str, Any]) -> bool:
        """Return whether WEIGHTS names one of the variables."""
        sources = [self.binding.sources.get(id(variable)) for variable in own.values()]
        return any(source is not None and source.layer is None for source in sources)

    def _candidates(self, layer: Any, own: dict[str, Any]) -> Iterator[Candidate]:
        """Yield calls of the layer's kind, and parts of packed ones, that no layer has taken."""
        functions, kernel = functions_for(layer), own.get("kernel")
        split = {candidate.event for candidate in self._parts}
        for event in self.events:
            if not event.shapes or not functions or not event.name.startswith(functions):
                continue
            is_free = Candidate(event.number) in self._unused
            candidates = [Candidate(event.number)] if is_free else []
            if event.name == "linear" and kernel is not None and (is_free or event.number in split):
                entries = self.arrays[f"weights/{event.weights['weight']}"].size if "weight" in event.weights else 0
                parts, rest = divmod(entries, math.prod(kernel.shape))
                packed = [
                    Candidate(event.number, part, parts) for part in range(parts if parts > 1 and not rest else 0)
                ]
                candidates += [candidate for candidate in packed if candidate not in self._parts]
            yield from candidates

    def _sources(self, layer: Any, own: dict[str, Any], candidate: Candidate) -> list[Source]:
        """Return where the variables of a layer come from, those that come from somewhere; none: they do not fit."""
        event, sources = self.events[candidate.event], []
        for name, variable in own.items():
            array = event.weights.get(ROLES.get(name, ""))
            if array is None:
                if name in MAIN:
                    return []
                continue
            transposed, part = event.transposed and name in MAIN, (candidate.part, candidate.parts)
            source = Source(variable=variable, layer=layer, names=(array,), part=part, transposed=transposed)
            if source.read(self.arrays, "weights") is None:
                return []
            sources.append(source)
        return sources

    def _first_use(self, layer: Any, own: dict[str, Any], value: np.ndarray, *, row: int) -> Match | None:
        candidates = list(self._candidates(layer, own))
        prints = [self.events[candidate.event].inputs[0] for candidate in candidates]
        same = np.flatnonzero(alike(prints, fingerprint(value), padded=True))
        likely = [candidates[number] for number in same if self._sources(layer, own, candidates[number])]
        matches = self._matches(likely, value)
        equal = [match for match in matches if match.fit.difference <= EQUAL]
        if equal:
            return self._chosen(equal, row)
        fitting = [candidate for candidate in candidates if self._sources(layer, own, candidate)]
        return self._most_alike(own, fitting, value)

    def _chosen(self, equal: list[Match], row: int) -> Match:
        """Return one of those that were given the same numbers."""
        matches = {match.candidate: match for match in equal}
        group = next((group for group in self.binding.groups if matches.keys() <= set(group)), None)
        if group is None:
            if len(equal) == 1:
                return equal[0]
            group = tuple(sorted(matches))
        members = self.binding.groups.setdefault(group, [])
        members.append(row)
        wanted = [group[number] for number in self.choices.order(group)][len(members) - 1 :]
        return next((matches[candidate] for candidate in wanted if candidate in matches), equal[0])

    def _most_alike(self, own: dict[str, Any], candidates: list[Candidate], value: np.ndarray) -> Match | None:
        """Return the call whose input is most like the layer's; None where the layer is one too many."""
        matches = self._matches(candidates[:MOST_COMPARED], value)
        scores = {
            number: unlike(value, match.fit.array)
            for number, match in enumerate(matches)
            if match.fit.array is not None
        }
        best = min(scores, key=lambda number: scores[number], default=None)
        if self._left[_signature(own)] > len(candidates) and (best is None or scores[best] >= 1):
            return None
        if best is None:
            return matches[0] if matches else None
        return matches[best if scores[best] < 1.9 else min(scores)]

    def _next_use(self, done: list[Candidate], value: np.ndarray) -> Match | None:
        """Return the next call with the same arrays: of a tied head, or of a layer that is called again."""
        if not done:
            return None
        names = set(self.events[done[0].event].weights.values())
        later = [event for event in self.events[done[-1].event + 1 :] if names & set(event.weights.values())]
        free = [candidate for event in later if (candidate := Candidate(event.number)) in self._unused]
        return min(self._matches(free, value), key=lambda match: match.fit.difference, default=None)

    def _assign(self, layer: Any, own: dict[str, Any], match: Match) -> None:
        """Put PyTorch's numbers into a layer."""
        flat = tuple(match.event.flat) if match.fit.flattened and match.event.flat else None
        left = dict(own)
        for source in self._sources(layer, own, match.candidate):
            self._bind(replace(source, flat=flat))
            del left[source.variable.name]
        for name, variable in left.items():
            variable.assign(np.full(variable.shape, NEUTRAL.get(name, 0.0)))

    def _bind(self, source: Source) -> None:
        source.load(self.arrays)
        self.binding.sources[id(source.variable)] = source

    def bare(self, layer: Any, value: np.ndarray | None) -> None:
        """Put numbers into a layer of the user's own: arrays that fit, best of a call with the same input."""
        own = own_variables(layer).values()
        if self.repeats or any(id(variable) in self.binding.sources for variable in own):
            return
        taken, seen = self.binding.names, fingerprint(value) if value is not None else None
        for variable in own:
            options = list[tuple[bool, str, bool]]()  # whether the input is another, array, whether it is turned
            for event in self.events:
                same = seen is not None and bool(event.inputs) and bool(alike(event.inputs, seen).any())
                for role, name in event.weights.items():
                    turned = fits_bare(self.case.trace.arrays.get(name, []), variable.shape)
                    if turned is not None and name not in taken and role.startswith("bare"):
                        options.append((not same, name, turned))
            if not options:
                continue
            elsewhere, name, turned = min(options, key=lambda option: option[0])
            if elsewhere and len({name for _, name, _ in options}) > 1:
                self.binding.guessed.append(f"{name} / {variable.path}")
            taken.add(name)
            self._bind(Source(variable=variable, layer=layer, names=(name,), transposed=turned, bare=True))


def _occurrences(events: list[Event]) -> dict[tuple[Any, ...], int]:
    """Return function, arrays, and how many such calls were before -> number of the call."""
    times, numbers = Counter[tuple[str, ...]](), dict[tuple[Any, ...], int]()
    for event in events:
        call = (event.name, *event.weights.values())
        numbers[(*call, times[call])] = event.number
        times[call] += 1
    return numbers


def _signature(own: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((name, tuple(variable.shape)) for name, variable in own.items())
