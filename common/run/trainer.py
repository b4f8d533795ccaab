"""The interface of the trainers in both frameworks, as far as `common` uses it."""

from typing import Protocol

from common.measurement.step_profile import Profiler
from common.model.weights import Weights
from common.run.measured import Measured
from common.run_folder.checkpoints import PartialEpoch


class TrainingState(Protocol):
    """Model and optimizer of one rank."""

    def restore(self, weights: Weights, optimizer: Weights | None = None) -> None:
        """Load what `export_weights` and `export_optimizer` returned."""

    def export_weights(self) -> Weights:
        """Return the weights, with this rank's BatchNorm statistics."""

    def export_optimizer(self) -> Weights:
        """Return "<parameter>.<slot>" -> array."""


class Trainer(Protocol):
    """Trains epochs in segments on one rank."""

    epoch: int
    profiler: Profiler | None

    @property
    def state(self) -> TrainingState:
        """Model and optimizer."""

    @property
    def steps_left(self) -> int:
        """Updates of the epoch that remain."""

    @property
    def updates_done(self) -> int:
        """Updates of the epoch that are done, also while a segment is trained."""

    def rehearse(self, epoch: int) -> None:
        """Train on the first batch of an epoch and undo it."""

    def rehearse_evaluation(self) -> None:
        """Evaluate a batch."""

    def start_epoch(self, epoch: int, partial: PartialEpoch | None = None) -> None:
        """Prepare an epoch, of which some may be done."""

    def train_segment(self, steps: int) -> None:
        """Train on the next batches of the epoch."""

    def partial_epoch(self) -> PartialEpoch:
        """Return the progress of this rank in the current epoch."""

    def result(self) -> Measured:
        """Return what this rank measured in the epoch."""
