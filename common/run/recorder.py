"""The record of a run: rank 0 has a `RunRecorder`, the other ranks a `NullRecorder` with the same methods."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from common.distributed.console import Console
from common.errors import user_errors
from common.measurement.energy import describe_energy
from common.measurement.interference import Interference
from common.measurement.metering import Metered
from common.measurement.metrics import images_per_second
from common.measurement.step_profile import StepProfile, profile_table
from common.model.weights import ArrayStream, save_weights
from common.run.checkpoints import SavedEpoch
from common.run.console_report import change_line, describe_sums, end_lines, epoch_line, next_lines
from common.run.measured import Measured
from common.run.totals import reason_to_stop, run_totals
from common.run_folder.power_file import POWER_FILE, write_power
from common.run_folder.records import WEIGHTS_FILE, EpochRecord, Evaluation, Hashes, RunState
from common.run_folder.run_writer import RunWriter
from common.run_folder.sharing import SharingRecord
from common.run_folder.tensorboard_events import write_scalars
from common.run_folder.world_changes import ElasticRecord, WorldChange
from common.task.task import Task


class NullRecorder:
    """The recorder of every rank but the first, and of the first until its run folder is open: records nothing."""

    folder: Path | None = None

    def add_initial_test(self, test: Measured) -> None:
        """Record the test before training."""

    def add_epoch(self, epoch: int, training: Measured, validation: Measured, *, saved: SavedEpoch) -> None:
        """Record an epoch."""

    def should_stop(self, step: int) -> bool:
        """Return whether the run ends after update `step`; rank 0 decides."""
        return False

    def finish(self, test: Measured, *, weights: ArrayStream, startup_seconds: float, isolation: Interference,
               metered: Metered | None, profile: StepProfile | None,
               sharing: SharingRecord | None, elastic: ElasticRecord | None) -> None:  # fmt: skip
        """Record the end of the run."""

    def add_change(self, change: WorldChange) -> None:
        """Record a change of the ranks."""

    def release(self) -> None:
        """Leave the record to another rank."""

    def end(self, state: RunState, *, message: str) -> None:
        """Record that the run ended early."""


class RunRecorder(NullRecorder):
    """Writes and prints what was measured over all ranks."""

    def __init__(self, writer: RunWriter, *, task: Task, console: Console) -> None:
        self.folder = writer.folder
        self._writer = writer
        self._task = task
        self._console = console

    def add_initial_test(self, test: Measured) -> None:
        """Record the test before training, over all ranks."""
        self._writer.update(initial_test=Evaluation(loss=test.sums.mean_loss, accuracy=test.sums.accuracy))
        self._console.line(f"before training: test {describe_sums(test.sums)}")

    def add_epoch(self, epoch: int, training: Measured, validation: Measured, *, saved: SavedEpoch) -> None:
        """Record an epoch and print its line.

        Args:
            epoch: its number, from 1.
            training: over all ranks.
            validation: over all ranks; `NOT_MEASURED` if there was none.
            saved: its checkpoint.
        """
        record = EpochRecord(
            epoch=epoch,
            steps=self._task.steps_of_epoch(epoch),
            learning_rate=float(self._task.scaled_learning_rates()[self._task.steps_after(epoch) - 1]),
            training_loss=training.sums.mean_loss,
            training_accuracy=training.sums.accuracy,
            validation_loss=validation.sums.mean_loss,
            validation_accuracy=validation.sums.accuracy,
            training_seconds=training.seconds,
            data_wait_seconds=training.data_wait_seconds,
            validation_seconds=validation.seconds,
            checkpoint_seconds=saved.seconds,
            images_per_second=images_per_second(training.sums.samples, training.seconds),
            weights_hash=saved.weights_hash,
        )
        self._writer.add_epoch(record)
        if self._task.config.record.tensorboard:
            with user_errors("writing TensorBoard events"):
                write_scalars(self._writer.folder, record)
        self._console.line(epoch_line(self._task, self._writer.epochs))
        reason = self._reason_to_stop()
        if reason and self._task.steps_after(epoch) < self._task.total_steps:
            self._console.line(reason)

    def _reason_to_stop(self) -> str | None:
        return reason_to_stop(self._task.config.training, self._writer.epochs)

    def should_stop(self, step: int) -> bool:
        """Return whether the run ends after update `step`: it was the last, or a stopping rule says so."""
        return step >= self._task.total_steps or self._reason_to_stop() is not None

    def finish(self, test: Measured, *, weights: ArrayStream, startup_seconds: float, isolation: Interference,
               metered: Metered | None, profile: StepProfile | None,
               sharing: SharingRecord | None, elastic: ElasticRecord | None) -> None:  # fmt: skip
        """Write final weights, totals and status; print the end.

        Args:
            test: over all ranks.
            weights: the final ones.
            startup_seconds: of the slowest rank.
            isolation: what the ranks saw of other programs.
            metered: power and energy, where asked for.
            profile: where a step spends its time, where asked for.
            sharing: what the ranks exchanged; None if nothing.
            elastic: the commits of an elastic run.

        Raises:
            OSError: full disk, missing permission.
        """
        final = save_weights(self._writer.folder / WEIGHTS_FILE, weights)
        totals = run_totals(self._task, self._writer.epochs, test=test, startup_seconds=startup_seconds)
        assert isinstance(self._writer.record.hashes, Hashes)
        hashes = replace(self._writer.record.hashes, final_weights=final)
        if metered:
            write_power(self._writer.folder / POWER_FILE, metered.traces)
        energy = metered.record if metered else None
        self._writer.end(
            "finished",
            totals=totals,
            hashes=hashes,
            isolation=isolation,
            energy=energy,
            profile=profile,
            sharing=sharing,
            elastic=replace(elastic, changes=self._changes()) if elastic else None,
        )
        if profile:
            self._console.line(profile_table(profile))
        self._console.line("\n".join(end_lines(totals, test.sums, folder=self._writer.folder)))
        if energy:
            self._console.line(describe_energy(energy))
        self._console.line("\n".join(next_lines(self._writer.record)))

    def add_change(self, change: WorldChange) -> None:
        """Record a change of the ranks, and print it."""
        self._writer.update(elastic=ElasticRecord(changes=[*self._changes(), change]))
        self._console.line(change_line(change))

    def _changes(self) -> list[WorldChange]:
        record = self._writer.record.elastic
        return record.changes if record else []

    def release(self) -> None:
        """Leave the record to another rank."""
        self._writer.release()

    def end(self, state: RunState, *, message: str) -> None:
        """Write the status of a run that did not finish, if it can be written."""
        # On a full disk the reason must still reach the terminal; readers then derive the state `killed`.
        with suppress(OSError):
            self._writer.end(state, message=message)
