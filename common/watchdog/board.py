"""What a rank tells its watcher, in memory that both of them have. It has no name: nothing is left when they end.

The watcher imports this file, so it needs the standard library alone.
"""

import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# What a rank does. While it loads data or writes a checkpoint it does not wait for other ranks.
_UNMET = ("imports", "joining the others", "preparing data")  # before the ranks have met
_MET = ("startup", "training", "loading data", "validation", "test", "checkpoint", "other", "ending")
ACTIVITIES = (*_UNMET, *_MET, "serving")
_ACTIVITY, _UPDATES, _MOVED, _SLOWEST = (struct.Struct(form) for form in "qqdd")
_SIZE = 8


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A board at one moment.

    Attributes:
        moved_at: by the clock of this host that counts from its boot.
        slowest_seconds: between two signs of progress in training.
    """

    activity: str
    updates: int
    moved_at: float
    slowest_seconds: float


class Board:
    """One rank's board.

    Args:
        descriptor: of the memory of another process; None: new memory.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = os.memfd_create("board") if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, 4 * _SIZE)
        self._memory = mmap.mmap(self.descriptor, 4 * _SIZE)
        if descriptor is None:
            self.set_activity("imports")

    def set_activity(self, activity: str) -> None:
        """Tell what this rank does from now on; an activity is progress."""
        _ACTIVITY.pack_into(self._memory, 0, ACTIVITIES.index(activity))
        _MOVED.pack_into(self._memory, 2 * _SIZE, time.monotonic())

    def moved(self, updates: int) -> None:
        """Tell that this rank has made updates."""
        seen, now = self.read(), time.monotonic()
        _SLOWEST.pack_into(self._memory, 3 * _SIZE, max(seen.slowest_seconds, now - seen.moved_at))
        _UPDATES.pack_into(self._memory, _SIZE, seen.updates + updates)
        _MOVED.pack_into(self._memory, 2 * _SIZE, now)

    def read(self) -> Seen:
        """Return what is on the board."""
        values = (
            form.unpack_from(self._memory, number * _SIZE)[0]
            for number, form in enumerate((_ACTIVITY, _UPDATES, _MOVED, _SLOWEST))
        )
        activity, updates, moved_at, slowest = values
        return Seen(activity=ACTIVITIES[activity], updates=updates, moved_at=moved_at, slowest_seconds=slowest)


# The board of this process; None: nobody watches it.
_own: Board | None = None


def use_board(board: Board | None) -> None:
    """Make a board that of this process, or none."""
    global _own
    _own = board


def announce(activity: str) -> None:
    """Tell the watcher, if there is one, what this rank does from now on."""
    if _own:
        _own.set_activity(activity)


def note_updates(updates: int) -> None:
    """Tell the watcher, if there is one, that this rank has made updates."""
    if _own:
        _own.moved(updates)


@contextmanager
def doing(activity: str) -> Iterator[None]:
    """Tell the watcher, if there is one, what this rank does in the block."""
    board = _own
    if board is None:
        yield
        return
    before = board.read().activity
    board.set_activity(activity)
    try:
        yield
    finally:
        if board.read().activity == activity:  # batches are loaded in a thread, beside which others tell what they do
            board.set_activity(before)
