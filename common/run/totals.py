"""What follows from the records of the epochs: when a run ends before its last one, and its totals."""

import math
import os
from collections.abc import Iterable, Sequence

from common.config import TrainingConfig
from common.distributed.console import counted
from common.measurement.metrics import images_per_second
from common.measurement.timing import process_start
from common.run.measured import Measured
from common.run_folder.records import EpochRecord, NotRecorded, Totals
from common.run_folder.start_times import launch_seconds, queue_seconds
from common.task.task import Task

Figure = float | NotRecorded


def reason_to_stop(training: TrainingConfig, epochs: Sequence[EpochRecord]) -> str | None:
    """Return in one line why a stopping rule ends the run after these epochs; None if it continues."""
    reached = epochs_to_target(training, epochs)
    if reached is not None:
        accuracy = epochs[reached - 1].validation_accuracy
        assert isinstance(accuracy, float), "it was compared with the target"
        return f"target reached: validation accuracy {100 * accuracy:.2f} % after {counted(reached, 'epoch')}"
    losses = [
        math.inf if math.isnan(epoch.validation_loss) else epoch.validation_loss
        for epoch in epochs
        if isinstance(epoch.validation_loss, float)
    ]
    patience = training.early_stop
    if patience is not None and len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience]):
        return "early stop: the validation loss has not improved"
    return None


def epochs_to_target(training: TrainingConfig, epochs: Sequence[EpochRecord]) -> int | None:
    """Return the first epoch whose validation reached the target accuracy; None if there is none, or no target."""
    target = training.target_accuracy
    for epoch in epochs:
        accuracy = epoch.validation_accuracy
        if target is not None and isinstance(accuracy, float) and accuracy >= target:
            return epoch.epoch
    return None


def run_totals(task: Task, epochs: Sequence[EpochRecord], *, test: Measured, startup_seconds: float) -> Totals:
    """Return the totals.

    Args:
        task: of the run.
        epochs: all of the run, resumed parts included.
        test: over all ranks.
        startup_seconds: of the slowest rank.
    """
    reached = epochs_to_target(task.config.training, epochs)
    to_target = [figure for epoch in epochs[:reached] for figure in (epoch.training_seconds, epoch.validation_seconds)]
    return Totals(
        epochs=len(epochs),
        steps=sum(epoch.steps for epoch in epochs),
        startup_seconds=startup_seconds,
        training_seconds=recorded_sum(epoch.training_seconds for epoch in epochs),
        validation_seconds=recorded_sum(epoch.validation_seconds for epoch in epochs),
        test_seconds=test.seconds,
        images_per_second=_throughput(task, epochs),
        test_loss=test.sums.mean_loss,
        test_accuracy=test.sums.accuracy,
        epochs_to_target=reached,
        seconds_to_target=None if reached is None else recorded_sum(to_target),
        data_wait_seconds=recorded_sum(epoch.data_wait_seconds for epoch in epochs),
        first_epoch_seconds=epochs[0].training_seconds if epochs else None,
        steady_images_per_second=_throughput(task, epochs[1:]),
        queue_seconds=queue_seconds(os.environ),
        launch_seconds=launch_seconds(os.environ, process_began=process_start()),
    )


def recorded_sum(figures: Iterable[Figure]) -> Figure:
    """Return the sum; if one of the figures is not recorded, neither is the sum: an unknown time is not 0."""
    total = 0.0
    for figure in figures:
        if isinstance(figure, NotRecorded):
            return figure
        total += figure
    return total


def _throughput(task: Task, epochs: Sequence[EpochRecord]) -> Figure | None:
    seconds = recorded_sum(epoch.training_seconds for epoch in epochs)
    if isinstance(seconds, NotRecorded):
        return seconds
    return images_per_second(sum(epoch.steps for epoch in epochs) * task.samples_per_update, seconds)
