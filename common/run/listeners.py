"""Who hears of a run: the watcher, a progress bar, Horovod's timeline. See also `checkpoints.py` and `elastic.py`."""

from collections.abc import Callable
from itertools import chain, count
from pathlib import Path
from typing import Any

from common.distributed.console import Console
from common.run.epoch import Epoch, Listener
from common.run_folder.records import TIMELINE_FILE
from common.watchdog.board import note_updates


class Watched(Listener):
    """Tells the watcher that this rank moves."""

    def updated(self, updates: int) -> None:
        """Count the updates."""
        note_updates(updates)


class ProgressBar(Listener):
    """Shows how far an epoch is, where bars are shown."""

    def __init__(self, console: Console, *, epochs: int) -> None:
        self._console = console
        self._epochs = epochs
        self._advance: Callable[[int], object] = lambda updates: None

    def epoch_starts(self, epoch: Epoch) -> None:
        """Start a bar."""
        title = f"epoch {epoch.number}/{self._epochs}"
        self._advance = self._console.steps(epoch.updates, title=title, done=epoch.done)

    def updated(self, updates: int) -> None:
        """Advance the bar."""
        self._advance(updates)


def free_timeline(folder: Path) -> Path:
    """Return the file for the timeline of this start of a run: Horovod empties one that is there."""
    first = folder / TIMELINE_FILE
    further = (first.with_stem(f"{first.stem}-{number}") for number in count(2))
    return next(file for file in chain([first], further) if not file.exists())


class Timeline(Listener):
    """Lets Horovod record what it does as trace events; rank 0 writes.

    Args:
        horovod: its module for the framework.
    """

    def __init__(self, horovod: Any, file: Path) -> None:
        self._horovod = horovod
        self._file = file

    def training_starts(self) -> None:
        """Start recording."""
        self._horovod.start_timeline(str(self._file))

    def training_ended(self) -> None:
        """Stop recording."""
        self._horovod.stop_timeline()
