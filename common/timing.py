"""Phases of a run: the one way, in both frameworks, to take the time of a part of it.

with phases.phase("training", synchronize=lambda: synchronize(device)) as timer:
    ...
timer.seconds
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

import psutil

Phase = Literal["startup", "training", "validation", "test", "other"]
Item = TypeVar("Item")


@dataclass
class Timer:
    """Seconds of one rank; 0 until they have been taken."""

    seconds: float = 0.0


class Phases:
    """Takes the times of one rank's phases and tells listeners when one begins.

    A run begins in "startup" and is in "other" between phases. A phase inside another one, such as an evaluation in
    start-up, is timed but not told: it belongs to the outer one.

    Attributes:
        listeners: called with the phase that begins, on the thread that trains and outside of all times.
        current: the phase that lasts.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.listeners: list[Callable[[Phase], None]] = []
        self.current: Phase = "startup"
        self.startup_seconds = 0.0
        self._clock = clock

    def startup_ends(self) -> None:
        """End start-up, which has lasted since the process was made: imports are part of it."""
        self.startup_seconds = time.time() - psutil.Process().create_time()
        self._begin("other")

    @contextmanager
    def phase(self, name: Phase, *, synchronize: Callable[[], None]) -> Iterator[Timer]:
        """Time a phase.

        Args:
            name: of the phase.
            synchronize: waits until the device has done all its work; called at both edges, before the clock is read.

        Yields:
            A timer that holds the seconds once the phase has ended.
        """
        timer = Timer()
        told = self.current == "other"
        synchronize()
        if told:
            self._begin(name)
        started = self._clock()
        try:
            yield timer
            synchronize()
        finally:
            timer.seconds = self._clock() - started
            if told:
                self._begin("other")

    def _begin(self, name: Phase) -> None:
        self.current = name
        for listener in self.listeners:
            listener(name)


def timed(items: Iterator[Item], timer: Timer) -> Iterator[Item]:
    """Yield the items; the seconds from asking for each until it is there are added to the timer."""
    while True:
        asked = time.perf_counter()
        try:
            item = next(items)
        except StopIteration:
            return
        timer.seconds += time.perf_counter() - asked
        yield item
