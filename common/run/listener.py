"""Who hears of a run while it goes on."""

from typing import TYPE_CHECKING

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
