"""What a trainer has besides that draws its batches, as workers that do not wait for each other do: it counts them."""

from dataclasses import replace
from typing import Any

from common.data.batches import Draw
from common.run_folder.checkpoints import PartialEpoch


class DrawnWork:
    """To be put before a framework's `Trainer` among the bases of a class.

    Args:
        draw: yields the items that this rank draws of a segment of the run, given as its first and its end.
    """

    _drawn = 0  # of the epoch

    def __init__(self, *arguments: Any, draw: Draw, **named: Any) -> None:
        self._draw = draw
        super().__init__(*arguments, **named)

    @property
    def batches_done(self) -> int:
        """Batches of the epoch that this rank has drawn and computed."""
        return self._drawn

    def start_epoch(self, epoch: int, partial: PartialEpoch | None = None) -> None:
        """Prepare an epoch; what was drawn of it before is in `partial`."""
        self._drawn = partial.own_steps or 0 if partial else 0
        super().start_epoch(epoch, partial)  # type: ignore[misc]  # the trainer's

    def partial_epoch(self) -> PartialEpoch:
        """Return what this rank has of the epoch so far, but for weights and optimizer state."""
        return replace(super().partial_epoch(), own_steps=self._drawn)  # type: ignore[misc]
