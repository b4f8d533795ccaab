"""What a rank tells its watcher, in memory that both have. Watchers import this file: the standard library alone."""

import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

# What a rank does. While it loads data or writes a checkpoint it does not wait for other ranks.
_BEFORE_MEETING = ("imports", "joining the others", "preparing data")
_TOGETHER = ("startup", "training", "loading data", "validation", "test", "checkpoint", "other", "ending")
ACTIVITIES = (*_BEFORE_MEETING, *_TOGETHER, "serving")


class Board(ctypes.Structure):
    """One rank's board; `Board()` is one that nobody watches.

    Attributes:
        updates: of the model, so far.
        moved_at: time of the last progress, in seconds by the clock of this host.
        slowest_seconds: between two signs of progress in training.
        failure: why rank 0 must end the run; empty: it need not.
    """

    activity_number: int
    updates: int
    moved_at: float
    slowest_seconds: float
    failure: bytes
    _fields_ = (
        ("activity_number", ctypes.c_int64),
        ("updates", ctypes.c_int64),
        ("moved_at", ctypes.c_double),
        ("slowest_seconds", ctypes.c_double),
        ("failure", ctypes.c_char * 1000),
    )

    @property
    def activity(self) -> str:
        """What the rank does."""
        return ACTIVITIES[self.activity_number]


def board_in(descriptor: int) -> Board:
    """Return the board in a file without a name, which another process may have open, too."""
    os.ftruncate(descriptor, ctypes.sizeof(Board))
    return Board.from_buffer(mmap.mmap(descriptor, ctypes.sizeof(Board)))


_own = Board()  # of this process


def use_board(board: Board) -> None:
    """Make a board that of this process."""
    global _own
    _own = board


def announce_failure(reason: str) -> None:
    """Let rank 0 end the run as failed, through the watchers."""
    _own.failure = reason.encode()


def announce(activity: str) -> None:
    """Tell the watcher what this rank does from now on, which is progress."""
    _own.activity_number, _own.moved_at = ACTIVITIES.index(activity), time.monotonic()


def note_updates(updates: int) -> None:
    """Tell the watcher that this rank has made updates."""
    now = time.monotonic()
    _own.slowest_seconds = max(_own.slowest_seconds, now - _own.moved_at)
    _own.updates += updates
    _own.moved_at = now


@contextmanager
def doing(activity: str) -> Iterator[None]:
    """Tell the watcher what this rank does in the block."""
    before = _own.activity
    announce(activity)
    try:
        yield
    finally:
        if _own.activity == activity:  # batches are loaded in a thread, beside which others set the activity
            announce(before)
