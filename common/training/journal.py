"""What happens around the epochs, the same in both frameworks: print, agree, check, record, decide to go on."""

import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np
import psutil

from common.config import Config
from common.distributed.communicator import Communicator, launcher_of
from common.distributed.console import Console, counted, readable_seconds
from common.errors import user_errors
from common.measurement.energy import describe_energy
from common.measurement.interference import HostBefore, look_at_host, look_at_rank, spent_so_far, summarize, take_sample
from common.measurement.metering import Meter
from common.measurement.metrics import Sums, images_per_second
from common.measurement.step_profile import Profiler, average_over_ranks, profile_table
from common.measurement.timing import Phases, process_age
from common.model.specs import layer_table
from common.model.weights import Weights, save_weights, weights_hash
from common.run_folder.checkpoints import Checkpoint, EpochProgress, remove_old_checkpoints, save_checkpoint
from common.run_folder.environment import describe_environment
from common.run_folder.power_file import POWER_FILE, write_power
from common.run_folder.records import (
    SCHEMA_VERSION,
    TIMELINE_FILE,
    WEIGHTS_FILE,
    DataRecord,
    EpochRecord,
    Evaluation,
    Hashes,
    ModelRecord,
    NotRecorded,
    RunRecord,
    RunWriter,
    State,
    Status,
    Totals,
    World,
    now,
    slurm_job,
)
from common.run_folder.set_aside import set_aside
from common.run_folder.start_times import launch_seconds, queue_seconds
from common.run_folder.tensorboard_events import write_scalars
from common.training.checkpoint_schedule import CheckpointSchedule
from common.training.resume import AlreadyFinished, Standing, look_at_run, read_resumable_run
from common.training.run_setup import RunSetup
from common.utils.cores import usable_cores


@dataclass(frozen=True, kw_only=True)
class EpochResult:
    """What one rank measured in an epoch."""

    training: Sums
    training_seconds: float
    data_wait_seconds: float
    validation: Sums = Sums()  # noqa: RUF009 - frozen
    validation_seconds: float = 0.0


class Journal:
    """Keeps the record of a run. Every rank calls every method; rank 0 prints and writes."""

    def __init__(self, *, framework: str, comm: Communicator, console: Console) -> None:
        self.framework = framework
        self.comm = comm
        self.console = console
        self._writer: RunWriter | None = None
        self.phases = Phases()
        self._sample = take_sample() if comm.local_rank == 0 else None
        self._host_before: HostBefore | None = None
        self._spent_before = spent_so_far()
        self._meter: Meter | None = None
        self._schedule: CheckpointSchedule | None = None
        self._inside_seconds = 0.0  # of the epoch that lasts: pauses for checkpoints inside it

    def start(self, setup: RunSetup, *, device: str, threads: int) -> Checkpoint | None:
        """Print table and settings, open the run folder; return the checkpoint to go on from, if the run is resumed.

        Raises:
            UserError: the run folder exists, cannot be written or cannot be resumed; on all ranks.
            AlreadyFinished: it was to be begun or resumed, and it is finished; on all ranks.
        """
        self.setup = setup
        config = setup.config
        standing = self._look_at_run(config) if config.record.resume_or_start else None
        # Every rank asks; only rank 0's answer is used.
        hosts, devices = zip(*self.comm.allgather((platform.node(), device)), strict=True)
        cores = usable_cores()
        world = World(
            size=self.comm.size,
            local_size=self.comm.local_size,
            hosts=sorted(set(hosts)),
            controller=self.comm.controller,
            threads_per_rank=threads,
            cores=cores,
            oversubscribed=threads * self.comm.local_size > cores,
            devices=list(devices),
            launcher=launcher_of(os.environ),
        )
        self._print_start(world)
        checkpoint = None
        with self.comm.propagate_errors("opening the run folder"):
            if self.comm.rank == 0:
                checkpoint = self._open_folder(config, world, standing)
        if config.energy.energy:
            self._meter = Meter(config.energy, comm=self.comm, device=device, phases=self.phases)
        checkpoint = self.comm.broadcast(checkpoint)
        self._inside_seconds = checkpoint.checkpoint_seconds if checkpoint else 0.0
        return checkpoint

    def _look_at_run(self, config: Config) -> Standing:
        """Return how the run stands that is to be begun or resumed, before anything is printed or changed."""
        standing: Standing = "none"
        with self.comm.propagate_errors("looking at the run folder"):
            if self.comm.rank == 0:
                standing = look_at_run(config, framework=self.framework, tell=self.console.line)
        standing = self.comm.broadcast(standing)
        if standing == "finished":
            raise AlreadyFinished(config)
        return standing

    def training_starts(self) -> None:
        """End of start-up: what came before is not training time."""
        self.phases.startup_ends()
        minutes = self.setup.config.record.checkpoint_minutes
        self._schedule = None if minutes is None else CheckpointSchedule(minutes)

    def timeline_file(self) -> Path | None:
        """Return where Horovod is to write its timeline, on all ranks; None if it was not asked for."""
        wanted = self._writer and self.setup.config.record.horovod_timeline
        return self.comm.broadcast(self._writer.folder / TIMELINE_FILE if self._writer and wanted else None)

    def check_weights(self, weights: Weights, *, when: str) -> None:
        """Stop the run if the ranks do not hold the same weights."""
        self.comm.check_same_weights(weights, when=when)

    def evaluated_first(self, sums: Sums) -> None:
        """Take the sums of this rank over the test samples before training."""
        sums = Sums.from_array(self.comm.sum(sums.as_array()))
        with self.comm.propagate_errors("writing the run folder"):
            if self._writer:
                self._writer.update(initial_test=Evaluation(loss=sums.mean_loss, accuracy=sums.accuracy))
                self.console.line(f"before training: test {_describe(sums)}")

    def goes_on(self, *, step: int) -> bool:
        """Return whether updates are left to do after `step` of them, for a run that is resumed too.

        Looks at the host before all ranks meet here, so that none waits for it in its training time.
        """
        if self._sample:
            self._host_before = look_at_host(self._sample)
            if self._host_before.other_processes:
                self.console.line(
                    f"note: other programs work on this machine: {'; '.join(self._host_before.other_processes)}. "
                    "Times may be longer for it"
                )
        self._spent_before = spent_so_far()
        first = self._writer is not None and step < self.setup.total_steps and not self._reason_to_stop()
        return bool(self.comm.broadcast(first))

    def parts(
        self,
        epoch: int,
        *,
        begun: EpochProgress,
        weights: Callable[[], Weights],
        optimizer_state: Callable[[], Weights],
        progress: Callable[[], EpochProgress],
    ) -> Iterator[int]:
        """Yield the steps of each part of an epoch; between two parts write a checkpoint if one is due.

        Whoever trains asks for the next part when one is done, in the phase of training, which pauses meanwhile.
        Without `--checkpoint-minutes` an epoch is one part.

        Args:
            epoch: its number, from 1.
            begun: what was done of it before.
            weights: called for those of this rank, with its own BatchNorm statistics.
            optimizer_state: called on rank 0 only, for "<parameter>.<slot>" -> array.
            progress: called for what this rank has of the epoch so far.

        Raises:
            UserError: the weights differ between ranks, or the checkpoint cannot be written; on all ranks.
        """
        done, steps = begun.steps, self.setup.steps_of_epoch(epoch)
        if self._schedule is None:
            yield steps - done
            return
        with self._pause():
            part = self.comm.broadcast(self._schedule.next_steps(steps - done))
        while True:
            self._schedule.part_begins(part)
            yield part
            done += part
            with self._pause():
                is_due = self._schedule.part_ended()
                if done == steps:
                    return
                if self.comm.broadcast(is_due):
                    own = replace(progress(), steps=done)
                    self._save_inside(epoch, own, weights=weights(), optimizer_state=optimizer_state)
                    self._schedule.written()
                part = self.comm.broadcast(self._schedule.next_steps(steps - done))

    @contextmanager
    def _pause(self) -> Iterator[None]:
        """Pause the training; its time counts as that of checkpoints."""
        with self.phases.pause():
            started = time.perf_counter()
            yield
            self._inside_seconds += time.perf_counter() - started

    def _save_inside(
        self, epoch: int, own: EpochProgress, *, weights: Weights, optimizer_state: Callable[[], Weights]
    ) -> None:
        """Write a checkpoint inside an epoch, with what each rank has of its own."""
        trained = {weight.name: weights[weight.name] for weight in self.setup.spec.weights if weight.trainable}
        self.comm.check_same_weights(trained, when=f"after step {own.steps} of epoch {epoch}")
        statistics = {name: array for name, array in weights.items() if name not in trained}
        everyone = self.comm.allgather(replace(own, statistics=statistics))
        step = (epoch - 1) * self.setup.steps_per_epoch + own.steps
        with self.comm.propagate_errors("writing the checkpoint"):
            if self._writer:
                checkpoint = Checkpoint(epoch - 1, step, weights, optimizer_state(), everyone, self._inside_seconds)
                save_checkpoint(self._writer.folder, checkpoint)

    def epoch_ended(
        self, epoch: int, result: EpochResult, *, weights: Weights, optimizer_state: Callable[[], Weights]
    ) -> bool:
        """Reduce, check, save and print an epoch; return whether the run goes on.

        Args:
            epoch: its number, from 1.
            result: of this rank.
            weights: of this rank, BatchNorm statistics averaged already.
            optimizer_state: called on rank 0 only, for "<parameter>.<slot>" -> array.

        Raises:
            UserError: the weights differ between ranks, or the checkpoint cannot be written; on all ranks.
        """
        started = time.perf_counter()
        self.comm.check_same_weights(weights, when=f"after epoch {epoch}")
        sums = self.comm.sum(np.stack([result.training.as_array(), result.validation.as_array()]))
        training, validation = Sums.from_array(sums[0]), Sums.from_array(sums[1])
        times = (result.training_seconds, result.data_wait_seconds, result.validation_seconds)
        training_seconds, data_wait, validation_seconds = (float(t) for t in self.comm.maximum(np.array(times)))
        step = min(epoch * self.setup.steps_per_epoch, self.setup.total_steps)
        goes_on = step < self.setup.total_steps
        with self.comm.propagate_errors("writing the checkpoint"):
            if self._writer:
                checkpoint = Checkpoint(epoch, step, weights, optimizer_state())
                save_checkpoint(self._writer.folder, checkpoint)
                record = EpochRecord(
                    epoch=epoch,
                    steps=self.setup.steps_of_epoch(epoch),
                    learning_rate=float(self.setup.learning_rates[step - 1]),
                    training_loss=training.mean_loss,
                    training_accuracy=training.accuracy,
                    validation_loss=validation.mean_loss,
                    validation_accuracy=validation.accuracy,
                    training_seconds=training_seconds,
                    data_wait_seconds=data_wait,
                    validation_seconds=validation_seconds,
                    checkpoint_seconds=self._inside_seconds + time.perf_counter() - started,
                    images_per_second=images_per_second(training.samples, training_seconds),
                    weights_hash=weights_hash(weights),
                )
                self._writer.add_epoch(record)
                # Not before: a run that is ended between checkpoint and record goes on from the checkpoint before.
                remove_old_checkpoints(self._writer.folder, keep=self.setup.config.record.keep)
                self._write_events(record)
                self.console.line(self._epoch_line(record))
                reason = self._reason_to_stop()
                if goes_on and reason:
                    self.console.line(reason)
                    goes_on = False
        self._inside_seconds = 0.0
        if self._schedule:
            self._schedule.written()
        return self.comm.broadcast(goes_on)

    def finish(
        self,
        test: Sums,
        *,
        test_seconds: float,
        weights: Weights,
        peak_device_memory_bytes: int | None = None,
        profiler: Profiler | None = None,
    ) -> None:
        """Reduce the test, write final weights, totals and status, print the end.

        Args:
            test: sums of this rank.
            test_seconds: of this rank.
            weights: of this rank.
            peak_device_memory_bytes: as the framework counts it; None on a CPU.
            profiler: of this rank, where the run was profiled.

        Raises:
            UserError: the weights cannot be written; on all ranks.
        """
        test = Sums.from_array(self.comm.sum(test.as_array()))
        slowest_test, slowest_startup = self.comm.maximum(np.array([test_seconds, self.phases.startup_seconds]))
        seen = look_at_rank(
            self._host_before, since=self._spent_before, peak_device_memory_bytes=peak_device_memory_bytes
        )
        isolation = summarize(self.comm.allgather(seen))
        metered = self._meter.finish() if self._meter else None
        profile = average_over_ranks(self.comm.allgather(profiler.measured())) if profiler else None
        with self.comm.propagate_errors("writing the final weights"):
            if self._writer:
                save_weights(self._writer.folder / WEIGHTS_FILE, weights)
                totals = self._totals(test, test_seconds=float(slowest_test), startup_seconds=float(slowest_startup))
                assert isinstance(self._writer.record.hashes, Hashes)
                hashes = replace(self._writer.record.hashes, final_weights=weights_hash(weights))
                if metered:
                    write_power(self._writer.folder / POWER_FILE, metered.traces)
                energy = metered.record if metered else None
                self._writer.end(
                    "finished", totals=totals, hashes=hashes, isolation=isolation, energy=energy, profile=profile
                )
                if profile:
                    self.console.line(profile_table(profile))
                self.console.line(self._end_lines(totals, test))
                if energy:
                    self.console.line(describe_energy(energy))

    def end(self, state: State, *, message: str) -> None:
        """Write the status of a run that did not finish, if it has begun and if that can be written."""
        if self._writer:
            # On a full disk the reason for the end must reach the terminal; a reader will call the run killed.
            with suppress(OSError):
                self._writer.end(state, message=message)

    def _print_start(self, world: World) -> None:
        setup, config = self.setup, self.setup.config
        assert isinstance(world.threads_per_rank, int), "a measured run knows its threads"
        line = self.console.line
        line(layer_table(setup.spec))
        for subject, values in config.as_dict().items():
            line(f"{subject}: " + ", ".join(f"{name} {value}" for name, value in values.items()))
        samples = len(setup.training_indices)
        line(
            f"data: {setup.dataset.name}, {samples:,} training, {len(setup.validation_indices):,} "
            f"validation, {len(setup.dataset.test.labels):,} test samples"
        )
        line(
            f"batch: {config.training.batch_size} x {counted(world.size, 'rank')} = {setup.global_batch_size} "
            f"images an update, {setup.steps_per_epoch} updates an epoch, the last {setup.dropped_samples} "
            f"samples of each epoch's order left out; {setup.total_steps} updates in all"
        )
        line(
            f"ranks: {world.size} on {', '.join(world.hosts)}, controller {world.controller}, "
            f"device {world.devices[0]}, {counted(world.threads_per_rank, 'thread')} a rank, "
            f"{counted(world.cores, 'core')}"
        )
        if config.device.device == "auto" and set(world.devices) == {"cpu"}:
            line("no GPU was found: the CPU computes")
        if config.record.profile:
            line(
                "note: a profiled run waits for the device after each part of a step: its times are not to be compared"
            )
        if world.oversubscribed:
            line(
                f"note: {counted(world.local_size, 'rank')} x {counted(world.threads_per_rank, 'thread')} on "
                f"{counted(world.cores, 'core')}: more threads than cores. The run is right but slow; its record is "
                "marked as functional, not timed"
            )

    def _open_folder(self, config: Config, world: World, standing: Standing | None) -> Checkpoint | None:
        """Begin or resume the run; `standing` is known where it is not said which of the two."""
        record = self._new_record(config, world)
        if standing == "to be set aside":
            place = set_aside(self._new_folder(config))
            self.console.line(f"a run of this name cannot be resumed: what is there is now in {place}")
        if config.record.resume is None and standing != "to be resumed":
            self._writer = RunWriter.create(self._new_folder(config), record)
            return None
        folder = Path(config.record.resume) if config.record.resume else self._new_folder(config)
        run, checkpoint = read_resumable_run(folder, framework=self.framework, setup=self.setup)
        old = run.record
        assert isinstance(record.status, Status)
        assert isinstance(old.status, Status), "a run that is resumed was measured"
        status = replace(
            record.status,
            resumed_after_epochs=[*old.status.resumed_after_epochs, checkpoint.epoch],
            resumed_after_steps=[*old.status.resumed_after_steps, checkpoint.step],
        )
        (folder / WEIGHTS_FILE).unlink(missing_ok=True)
        # Lines after the checkpoint are written anew, as the epochs are trained anew.
        record = replace(record, status=status, initial_test=old.initial_test)
        self._writer = RunWriter(folder, record, epochs=run.epochs[: checkpoint.epoch])
        inside = f" and {counted(checkpoint.ranks[0].steps, 'update')} of the next" if checkpoint.ranks else ""
        self.console.line(f"resuming {folder} after epoch {checkpoint.epoch}{inside}")
        return checkpoint

    def _new_folder(self, config: Config) -> Path:
        dataset = config.data.dataset.split(":")[0]
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        name = config.record.name or f"{self.framework}-{config.model.model}-{dataset}-np{self.comm.size}-{stamp}"
        return config.record.folder(name)

    def _new_record(self, config: Config, world: World) -> RunRecord:
        setup = self.setup
        environment = describe_environment()
        return RunRecord(
            schema_version=SCHEMA_VERSION,
            origin="measured",
            framework=self.framework,
            config=config,
            environment=environment,
            site=config.record.site,
            world=world,
            data=DataRecord(
                name=setup.dataset.name,
                training_samples=len(setup.training_indices),
                validation_samples=len(setup.validation_indices),
                test_samples=len(setup.dataset.test.labels),
                dropped_samples_per_epoch=setup.dropped_samples,
                global_batch_size=setup.global_batch_size,
                steps_per_epoch=setup.steps_per_epoch,
                image_shape=setup.dataset.image_shape,
                class_names=list(setup.dataset.class_names),
                mean=list(setup.dataset.mean),
                standard_deviation=list(setup.dataset.standard_deviation),
            ),
            model=ModelRecord(
                name=setup.spec.name,
                outputs=setup.spec.outputs,
                parameters=setup.spec.parameters,
                multiply_adds_per_image=setup.spec.multiply_adds,
            ),
            hashes=Hashes(
                initial_weights=weights_hash(setup.first_weights),
                sample_order=setup.sample_order_hash,
            ),
            status=Status(
                state="running",
                host=environment.host,
                process=psutil.Process().pid,
                started_at=now(),
                heartbeat_at=now(),
                slurm_job=slurm_job(),
            ),
        )

    def _reason_to_stop(self) -> str | None:
        """Return, in a line, why the run ends before its last epoch; None if it does not."""
        assert self._writer
        training = self.setup.config.training
        reached = self._epochs_to_target()
        if reached is not None:
            accuracy = _number(self._writer.epochs[reached - 1].validation_accuracy)
            return f"target reached: validation accuracy {100 * accuracy:.2f} % after {counted(reached, 'epoch')}"
        losses = [
            math.inf if math.isnan(epoch.validation_loss) else epoch.validation_loss
            for epoch in self._writer.epochs
            if isinstance(epoch.validation_loss, float)
        ]
        patience = training.early_stop
        if patience is not None and len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience]):
            return "early stop: the validation loss has not improved"
        return None

    def _epochs_to_target(self) -> int | None:
        """Return the first epoch whose validation reached the target accuracy; None if there is none, or no target."""
        assert self._writer
        target = self.setup.config.training.target_accuracy
        for epoch in self._writer.epochs:
            accuracy = epoch.validation_accuracy
            if target is not None and isinstance(accuracy, float) and accuracy >= target:
                return epoch.epoch
        return None

    def _totals(self, test: Sums, *, test_seconds: float, startup_seconds: float) -> Totals:
        assert self._writer
        epochs = self._writer.epochs
        training_seconds = sum(_number(epoch.training_seconds) for epoch in epochs)
        waits = [epoch.data_wait_seconds for epoch in epochs]
        reached = self._epochs_to_target()
        to_target = [_number(e.training_seconds) + _number(e.validation_seconds) for e in epochs[:reached]]
        return Totals(
            epochs=len(epochs),
            steps=sum(epoch.steps for epoch in epochs),
            startup_seconds=startup_seconds,
            training_seconds=training_seconds,
            validation_seconds=sum(_number(epoch.validation_seconds) for epoch in epochs),
            test_seconds=test_seconds,
            images_per_second=self._throughput(epochs),
            test_loss=test.mean_loss,
            test_accuracy=test.accuracy,
            epochs_to_target=reached,
            seconds_to_target=None if reached is None else sum(to_target),
            # An epoch of an older run that this one resumed may lack it.
            data_wait_seconds=next((wait for wait in waits if isinstance(wait, NotRecorded)), sum(map(_number, waits))),
            first_epoch_seconds=epochs[0].training_seconds if epochs else None,
            steady_images_per_second=self._throughput(epochs[1:]),
            queue_seconds=queue_seconds(os.environ),
            launch_seconds=launch_seconds(os.environ, process_began=time.time() - process_age()),
        )

    def _throughput(self, epochs: Sequence[EpochRecord]) -> float | None:
        images = sum(epoch.steps for epoch in epochs) * self.setup.global_batch_size
        return images_per_second(images, sum(_number(epoch.training_seconds) for epoch in epochs))

    def _epoch_line(self, record: EpochRecord) -> str:
        assert self._writer
        epochs = self._writer.epochs
        spent = sum(_number(e.training_seconds) + _number(e.validation_seconds) for e in epochs)
        left = spent / len(epochs) * (self.setup.epochs - record.epoch)
        width = len(str(self.setup.epochs))
        parts = [
            f"epoch {record.epoch:{width}}/{self.setup.epochs}",
            f"{_number(record.images_per_second):8,.0f} images/s",
            f"loss {_number(record.training_loss):.4f}",
            f"accuracy {100 * _number(record.training_accuracy):5.2f} %",
        ]
        if record.validation_loss is not None:
            parts += [
                f"validation loss {_number(record.validation_loss):.4f}",
                f"accuracy {100 * _number(record.validation_accuracy):5.2f} %",
            ]
        parts += [readable_seconds(_number(record.training_seconds) + _number(record.validation_seconds))]
        parts += [f"left {readable_seconds(left)}"] if left else []
        return "  ".join(parts)

    def _end_lines(self, totals: Totals, test: Sums) -> str:
        assert self._writer
        launch = totals.launch_seconds
        before = f"launch {readable_seconds(launch)}, " if isinstance(launch, float) else ""
        return (
            f"trained {counted(totals.epochs, 'epoch')} in "
            f"{readable_seconds(_number(totals.training_seconds))}, "
            f"{_number(totals.images_per_second):,.0f} images/s "
            f"({before}start-up {readable_seconds(_number(totals.startup_seconds))}, "
            f"validation {readable_seconds(_number(totals.validation_seconds))}, "
            f"test {readable_seconds(_number(totals.test_seconds))}: not counted in)\n"
            f"test {_describe(test)}\n"
            f"run folder: {self._writer.folder}"
        )

    def _write_events(self, record: EpochRecord) -> None:
        assert self._writer
        if self.setup.config.record.tensorboard:
            with user_errors("writing TensorBoard events"):
                write_scalars(self._writer.folder, record)


def _number(value: float | NotRecorded | None) -> float:
    return value if isinstance(value, int | float) else 0.0


def _describe(sums: Sums) -> str:
    return (
        f"loss {_number(sums.mean_loss):.4f}, accuracy {100 * _number(sums.accuracy):.2f} % "
        f"({sums.correct:.0f}/{sums.samples:.0f})"
    )
