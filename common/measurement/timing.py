"""Phases of a run and their times, measured in the same way in both frameworks.

with phases.phase("training", synchronize=lambda: synchronize(device)) as timer:
    ...
timer.seconds
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import psutil

Phase = Literal["startup", "training", "validation", "test", "other"]
Item = TypeVar("Item")


@dataclass
class Timer:
    """Adds up seconds of one rank."""

    seconds: float = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time of the block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started


class Phases:
    """Times the phases of one rank and notifies listeners when a phase starts.

    A run starts in "startup" and is in "other" between phases. A phase inside start-up, such as an evaluation, is timed
    but not announced: it belongs to start-up.

    Attributes:
        listeners: called with the phase that starts, on the training thread and outside of all times.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.listeners: list[Callable[[Phase], None]] = []
        self.current: Phase = "startup"
        self.startup_seconds = 0.0
        self._clock = clock

    def startup_ends(self) -> None:
        """End start-up, which started with the process: imports are part of it."""
        self.startup_seconds = process_age()
        self._begin("other")

    def begin(self, name: Phase, *, synchronize: Callable[[], None]) -> None:
        """Begin a phase that `end` ends, where no block can hold it.

        Args:
            synchronize: waits until the device has finished all its work.
        """
        synchronize()
        if self.current == "other":
            self._begin(name)
        self._began = self._clock()

    def end(self) -> float:
        """End a phase, once the device has finished all its work; return its seconds."""
        seconds = self._clock() - self._began
        if self.current != "startup":
            self._begin("other")
        return seconds

    def abandon(self) -> None:
        """End a phase that an error has left."""
        if self.current not in ("startup", "other"):
            self._begin("other")

    @contextmanager
    def phase(self, name: Phase, *, synchronize: Callable[[], None]) -> Iterator[Timer]:
        """Time a phase from `begin` to `end`; yield a timer that then holds its seconds."""
        timer = Timer()
        self.begin(name, synchronize=synchronize)
        try:
            yield timer
            synchronize()
        finally:
            timer.seconds = self.end()

    def _begin(self, name: Phase) -> None:
        self.current = name
        for listener in self.listeners:
            listener(name)


def process_age() -> float:
    """Return the seconds since this process was started.

    Measured by the clock that counts from the machine's boot: the time of day at boot, which psutil uses, is known only
    to a whole second.
    """
    try:
        began = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (OSError, AttributeError):  # not on Linux
        return time.time() - psutil.Process().create_time()


def process_start() -> float:
    """Return when this process was started, in seconds since 1970, to a tick of the kernel's clock.

    Two clocks are read one after the other. On a busy machine this process may have to wait in between, so the reading
    that took the shortest time counts.
    """

    def reading() -> tuple[float, float]:
        before = time.time()
        age = process_age()
        after = time.time()
        return after - before, after - age

    return min(reading() for _ in range(3))[1]


def timed(items: Iterator[Item], timer: Timer) -> Iterator[Item]:
    """Yield the items; add the seconds of waiting for each of them to the timer."""
    while True:
        asked = time.perf_counter()
        try:
            item = next(items)
        except StopIteration:
            return
        timer.seconds += time.perf_counter() - asked
        yield item
