"""What two models compute differently between two layers: the first steps of each side that the other has not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from common.twins.arrays import CONSTANTS, alike
from common.twins.comparison import Parting, Step
from common.twins.trace import Call
from keras_impl.twins.events import Event
from keras_impl.twins.matcher import Matcher

GIVEN = "PyTorch's numbers"  # in place of a layer's input that differs


@dataclass
class Open:
    """A parting whose explanation needs all that the model computed.

    Attributes:
        sources: numbers of the PyTorch calls whose results go in.
        producer: number of the Keras event whose result goes in.
        value, reference: fingerprints of what goes in, in Keras and PyTorch.
    """

    parting: Parting
    sources: list[int]
    producer: int | None
    value: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)


class Explanation:
    """Compares what both sides have computed, by fingerprints."""

    def __init__(self, matcher: Matcher, events: list[Event]) -> None:
        self._calls, self._events = matcher.calls, events
        self._torch_prints = matcher.prints
        self._keras_prints = np.array([one.output for one in events if one.step.name != GIVEN]).reshape(-1, 6)
        keys = [key for keys in matcher.binding.keys.values() for key in keys]
        self._matched = {call.order for key in keys if (call := matcher.call_of(key))}

    def explain(self, found: list[Open]) -> list[Parting]:
        """Return the partings with their steps."""
        return [one.parting if one.parting.where == "inside" else self._explained(one) for one in found]

    def _explained(self, found: Open) -> Parting:
        torch, torch_later = _new(found.sources, lambda one: self._calls[one].sources, self._known_to_keras)
        producer = [found.producer] if found.producer is not None else []
        keras, keras_later = _new(producer, lambda one: self._events[one].sources, self._known_to_torch)
        parting = replace(
            found.parting,
            torch_steps=[_step(self._calls[one]) for one in torch],
            torch_later=[_step(self._calls[one]) for one in torch_later],
            keras_steps=[self._events[one].step for one in keras],
            keras_later=[self._events[one].step for one in keras_later],
            torch_source=self._torch_names(found.sources[:1])[0],
            keras_source=next(iter(self._keras_names(producer)), ""),
            reordered=self._is_reordered(found),
        )
        if not torch or not keras:
            return parting
        sources = self._calls[torch[0]].sources, self._events[keras[0]].sources
        return replace(
            parting,
            torch_inputs=self._torch_names(sources[0]),
            keras_inputs=self._keras_names(sources[1]),
            same_inputs=self._are_same(*sources),
        )

    def _is_reordered(self, found: Open) -> bool:
        """Return whether the same numbers go in, in another order."""
        if found.parting.difference is not None and found.parting.difference <= CONSTANTS:
            return False
        return bool(found.value) and bool(alike(np.array([found.reference]), found.value, padded=True).any())

    def _are_same(self, calls: Sequence[int], events: Sequence[int]) -> bool:
        """Return whether calls and events have the same results, in any order."""
        prints = [self._calls[one].output for one in calls if one >= 0]
        others = np.array([self._events[one].output for one in events]).reshape(-1, 6)
        return len(prints) == len(others) and all(bool(alike(others, one).any()) for one in prints)

    def _known_to_keras(self, number: int) -> bool:
        """Return whether Keras has the result of a call: of a layer that is matched, it has been given it."""
        return (
            number < 0 or number in self._matched or bool(alike(self._keras_prints, self._calls[number].output).any())
        )

    def _known_to_torch(self, number: int) -> bool:
        event = self._events[number]
        return event.known or bool(alike(self._torch_prints, event.output).any())

    def _torch_names(self, sources: Sequence[int]) -> list[str]:
        return [
            f"the result of {self._calls[one].function} ({self._calls[one].layer})" if one >= 0 else "the model's input"
            for one in sources
        ] or ["the model's input"]

    def _keras_names(self, sources: Sequence[int]) -> list[str]:
        steps = [self._events[one].step for one in sources]
        return [
            "the model's input" if step.name == "input" else f"the result of {step.name} ({step.place or 'call'})"
            for step in steps
        ]


def _new(
    sources: Sequence[int], sources_of: Callable[[int], Sequence[int]], is_known: Callable[[int], bool]
) -> tuple[list[int], list[int]]:
    """Go back from some steps through all that the other side has not; return the first of it, and what follows."""
    first, later, seen, left = list[int](), list[int](), set[int](), list(sources)
    while left:
        number = left.pop()
        if number in seen or is_known(number):
            continue
        seen.add(number)
        (first if all(map(is_known, sources_of(number))) else later).append(number)
        left += sources_of(number)
    return sorted(first), sorted(later)


def _step(call: Call) -> Step:
    return Step(name=call.function, place=call.layer if call.weights else call.module, numbers=call.numbers)
