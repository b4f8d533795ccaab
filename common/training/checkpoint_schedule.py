"""When checkpoints inside an epoch are due (`--checkpoint-minutes`): an epoch is trained in parts, cut by the clock."""

import time
from collections.abc import Callable

# The first step of a run takes memory and builds graphs; it is not to decide alone how long the others take.
GROWTH = 8


class CheckpointSchedule:
    """Tells, after each part of an epoch, how long the next one is. One rank asks, all follow its answer.

    Args:
        minutes: from the end of a checkpoint to the next one.
        clock: seconds.
    """

    def __init__(self, minutes: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_seconds = 60 * minutes
        self._clock = clock
        self._written_at = clock()
        self._part: tuple[int, float] | None = None  # steps, and when they began
        self._seconds_per_step: float | None = None
        self._most_steps = 1

    def written(self) -> None:
        """Begin to count anew: a checkpoint has been written."""
        self._written_at = self._clock()

    def part_begins(self, steps: int) -> None:
        """Take the time of a part of so many steps."""
        self._part = steps, self._clock()

    def part_ended(self) -> bool:
        """Learn from the part that has ended; return whether a checkpoint is due."""
        assert self._part is not None, "a part has begun"
        steps, began_at = self._part
        self._seconds_per_step = (self._clock() - began_at) / steps
        self._most_steps = GROWTH * steps
        return self._seconds_left() <= self._seconds_per_step / 2

    def next_steps(self, left: int) -> int:
        """Return the steps until a checkpoint may be due, of those that are left of the epoch."""
        if self._seconds_per_step is None:
            return 1
        wanted = self._seconds_left() / max(self._seconds_per_step, 1e-9)
        return round(min(max(1.0, wanted), self._most_steps, left))

    def _seconds_left(self) -> float:
        return self._interval_seconds - (self._clock() - self._written_at)
