"""Who hears of a run while it goes on, and what most runs have of them."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.distributed.console import Console
from common.watchdog.board import note_updates

if TYPE_CHECKING:
    from common.run.epoch import Epoch


class Listener:
    """Hears of a run, on every rank. What exchanges messages is called on all ranks in the same order."""

    def training_starts(self) -> None:
        """Start-up is over."""

    def epoch_starts(self, epoch: "Epoch") -> None:
        """An epoch begins, or goes on."""

    def most_updates(self, epoch: "Epoch", left: int) -> int:
        """Return after how many more updates, at most `left`, the run is to stand still for this listener."""
        return left

    def updated(self, updates: int) -> None:
        """Updates were made. To be cheap: the clock runs."""

    def paused(self, epoch: "Epoch") -> None:
        """The run stands still inside an epoch, or at its end before anything is averaged or evaluated."""

    def epoch_recorded(self, epoch: "Epoch") -> None:
        """An epoch is over and in the record."""

    def training_ended(self) -> None:
        """The last epoch is over."""


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

    def epoch_starts(self, epoch: "Epoch") -> None:
        """Start a bar."""
        title = f"epoch {epoch.number}/{self._epochs}"
        self._advance = self._console.steps(epoch.updates, title=title, done=epoch.done)

    def updated(self, updates: int) -> None:
        """Advance the bar."""
        self._advance(updates)


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
