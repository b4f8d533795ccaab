"""When a run ends before its last epoch: the target accuracy is reached, or the validation loss stops improving."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from common.config import TrainingConfig
from common.distributed.console import counted
from common.run_folder.records import EpochRecord


@dataclass(frozen=True)
class StoppingRule:
    """`--target-accuracy` and `--early-stop`, judged by the record of the epochs."""

    config: TrainingConfig

    def reason_to_stop(self, epochs: Sequence[EpochRecord]) -> str | None:
        """Return in one line why the run ends after these epochs; None if it continues."""
        reached = self.epochs_to_target(epochs)
        if reached is not None:
            accuracy = epochs[reached - 1].validation_accuracy
            assert isinstance(accuracy, float), "it was compared with the target"
            return f"target reached: validation accuracy {100 * accuracy:.2f} % after {counted(reached, 'epoch')}"
        losses = [
            math.inf if math.isnan(epoch.validation_loss) else epoch.validation_loss
            for epoch in epochs
            if isinstance(epoch.validation_loss, float)
        ]
        patience = self.config.early_stop
        if patience is not None and len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience]):
            return "early stop: the validation loss has not improved"
        return None

    def epochs_to_target(self, epochs: Sequence[EpochRecord]) -> int | None:
        """Return the first epoch whose validation reached the target accuracy; None if there is none, or no target."""
        target = self.config.target_accuracy
        for epoch in epochs:
            accuracy = epoch.validation_accuracy
            if target is not None and isinstance(accuracy, float) and accuracy >= target:
                return epoch.epoch
        return None
