"""What two models compute differently between two layers: the first events of each side that the other has not."""

from collections.abc import Sequence

import numpy as np

from common.twins.arrays import alike
from common.twins.causes import Lead
from common.twins.records import Event


class Computed:
    """What one side has computed.

    Args:
        known: numbers of the events whose results the other side has by construction: the model's input, and layers
            that are matched.
        given: numbers of the events whose results the side itself has only from the other.
        untracked: what hands on a result of no event, in words.
    """

    def __init__(self, events: list[Event], *, known: set[int], given: set[int], untracked: str = "") -> None:
        self.events, self.known, self._untracked = events, known, untracked
        own = [event.output for event in events if event.number not in given]
        self._prints = np.array(own).reshape(-1, 6)

    def has(self, fingerprint: list[float]) -> bool:
        """Return whether a result is among those of the side."""
        return bool(alike(self._prints, fingerprint).any())

    def lead(self, sources: Sequence[int], other: "Computed") -> Lead:
        """Go back from some events through all that the other side has not."""
        first, later, seen, left = list[int](), list[int](), set[int](), list(sources)
        while left:
            number = left.pop()
            if number in seen or self._is_known(number, other):
                continue
            seen.add(number)
            before = self.events[number].sources
            (first if all(self._is_known(source, other) for source in before) else later).append(number)
            left += before
        events = [self.events[number] for number in sorted(first)]
        return Lead(
            first=events,
            later=[self.events[number] for number in sorted(later)],
            source=next(iter(self._words(sources)), ""),
            inputs=self._words(events[0].sources) if events else [],
            prints=[self.events[number].output for number in events[0].sources] if events else [],
        )

    def _is_known(self, number: int, other: "Computed") -> bool:
        return number in self.known or other.has(self.events[number].output)

    def _words(self, numbers: Sequence[int]) -> list[str]:
        """Return what events hand on."""
        untracked = [self._untracked] if self._untracked else []
        return [self.events[number].result for number in numbers] or untracked
