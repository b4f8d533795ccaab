"""When checkpoints inside an epoch are due (`--checkpoint-minutes`): the clock cuts an epoch into segments."""

import time
from collections.abc import Callable

# The first step of a run takes memory and builds graphs; it alone must not decide how long the others are.
GROWTH = 8


class CheckpointSchedule:
    """Decides, after each segment of an epoch, how long the next one is. Rank 0 asks, all ranks follow.

    Args:
        minutes: from the end of a checkpoint to the next one.
    """

    def __init__(self, minutes: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_seconds = 60 * minutes
        self._clock = clock
        self._written_at = clock()
        self._segment: tuple[int, float] | None = None  # steps, and when they started
        self._seconds_per_step: float | None = None
        self._most_steps = 1

    def written(self) -> None:
        """Restart the interval: a checkpoint has been written."""
        self._written_at = self._clock()

    def segment_starts(self, steps: int) -> None:
        """Start timing a segment of `steps` updates."""
        self._segment = steps, self._clock()

    def segment_ended(self) -> bool:
        """Learn from the segment that has ended; return whether a checkpoint is due."""
        assert self._segment is not None, "a segment has started"
        steps, started_at = self._segment
        self._seconds_per_step = (self._clock() - started_at) / steps
        self._most_steps = GROWTH * steps
        return self._seconds_left() <= self._seconds_per_step / 2

    def next_steps(self, left: int) -> int:
        """Return the steps until a checkpoint may be due, of those left in the epoch."""
        if self._seconds_per_step is None:
            return 1
        wanted = self._seconds_left() / max(self._seconds_per_step, 1e-9)
        return round(min(max(1.0, wanted), self._most_steps, left))

    def _seconds_left(self) -> float:
        return self._interval_seconds - (self._clock() - self._written_at)
