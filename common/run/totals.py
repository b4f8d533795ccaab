"""The totals of a run, from the records of its epochs."""

import os
from collections.abc import Iterable, Sequence

from common.measurement.metrics import images_per_second
from common.measurement.timing import process_start
from common.run.measured import Measured
from common.run.stopping import StoppingRule
from common.run_folder.records import EpochRecord, NotRecorded, Totals
from common.run_folder.start_times import launch_seconds, queue_seconds
from common.task.task import Task

Figure = float | NotRecorded


def run_totals(task: Task, epochs: Sequence[EpochRecord], *, test: Measured, startup_seconds: float) -> Totals:
    """Return the totals.

    Args:
        task: of the run.
        epochs: all of the run, resumed parts included.
        test: over all ranks.
        startup_seconds: of the slowest rank.
    """
    reached = StoppingRule(task.config.training).epochs_to_target(epochs)
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
