"""One start of a run, from its settings to its end. Every rank calls every method; rank 0 prints and writes."""

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from common.config import Config
from common.distributed.communicator import Communicator, launcher_of
from common.distributed.console import Console
from common.distributed.whole_arrays import whole_arrays
from common.elastic.membership import Membership
from common.errors import EXIT_CODE_STALLED, EXIT_CODE_USER_ERROR
from common.measurement.interference import InterferenceMeter, join
from common.measurement.memory_limit import watch_memory
from common.measurement.metering import Meter
from common.measurement.step_profile import average_over_ranks
from common.measurement.timing import Phases
from common.run.checkpointer import Checkpointer, SavedEpoch
from common.run.console_report import start_lines, warning, warning_lines
from common.run.measured import Measured
from common.run.opening import open_run_folder
from common.run.recorder import NullRecorder, RunRecorder
from common.run.resume import AlreadyFinished, Standing, look_at_run
from common.run.trainer import Trainer
from common.run_folder.checkpoints import Checkpoint
from common.run_folder.records import TIMELINE_FILE, NotRecorded, World
from common.run_folder.sharing import SharingRecord, join_shares, without_seconds
from common.run_folder.values import OneDNNInForce
from common.run_folder.world_changes import ElasticRecord
from common.task.task import Task
from common.utils.at_once import runs_at_once
from common.watchdog.board import announce, announce_failure, note_updates
from common.watchdog.watch import start_watch


class Session:
    """Opens the run folder, watches the host, and reduces over ranks what the recorder of rank 0 writes.

    Attributes:
        membership: of an elastic run; None: the ranks stay.
        recorder: writes the record, once the run folder is open.
        phases: the clock of this rank.
        world: the ranks there are, once the run folder is open.
    """

    membership: Membership | None = None
    world: World

    def __init__(self, *, framework: str, comm: Communicator, console: Console) -> None:
        self.framework = framework
        self.comm = comm
        self.console = console
        self.recorder = NullRecorder()
        self.phases = Phases()
        self.phases.listeners.append(announce)
        self._interference = InterferenceMeter(first_on_host=comm.local_rank == 0)
        self._meter: Meter | None = None

    def start(
        self,
        task: Task,
        *,
        device: str,
        gpu: str | None,
        threads: int,
        onednn: bool,
        pinned_memory: NotRecorded | None = None,
    ) -> Checkpoint | None:
        """Open the run folder, print what is trained; return the checkpoint to resume from, if there is one.

        Args:
            device: of this rank.
            gpu: its model; None on a CPU.
            threads: of this rank.
            onednn: whether oneDNN computes on the CPU of this rank.
            pinned_memory: why the setting is not applicable to the framework; None: it is.

        Raises:
            UserError: the run folder exists, cannot be written or cannot be resumed; on all ranks.
            AlreadyFinished: `--resume-or-start` found a finished run; on all ranks.
        """
        self.task = task
        self._on_gpu = gpu is not None
        self._start_watch()
        config = task.config
        standing = self._look_at_run(config) if config.record.resume_or_start else None
        self.world = self._world(device=device, gpu=gpu, threads=threads, onednn=onednn, pinned_memory=pinned_memory)
        checkpoint = None
        with self.comm.propagate_errors("opening the run folder"):
            if self.comm.rank == 0:
                writer, checkpoint = open_run_folder(
                    task, self.world, framework=self.framework, standing=standing, console=self.console
                )
                self.recorder = RunRecorder(writer, task=task, console=self.console)
                lines = start_lines(task, self.world, record=writer.record, folder=writer.folder)
                self.console.line("\n".join(lines))
        if config.device.memory_limit is not None:
            watch_memory(config.device.memory_limit, comm=self.comm, end=self._end_now, end_by_rank_0=announce_failure)
        if config.energy.energy:
            self._meter = Meter(config.energy, comm=self.comm, device=device, phases=self.phases)
        found: Checkpoint | None = self.comm.broadcast(checkpoint)
        return found

    def first_copies(self, config: Config) -> int | None:
        """Return how many ranks the run was first started with; None: as many as there are."""
        return None

    def _start_watch(self) -> None:
        config = self.task.config.faults
        start_watch(config, comm=self.comm, end=self._end_hanging, fail=self._end_now)

    def _end_hanging(self, reason: str) -> None:
        """Record that ranks hang, and end this rank at once; a watcher has said so."""
        self.recorder.end("interrupted", message=reason)
        os._exit(EXIT_CODE_STALLED)

    def _end_now(self, reason: str) -> None:
        """Record that the run failed, and end this rank at once: then the launcher ends the others."""
        self.recorder.end("failed", message=reason)
        print(f"error: {reason}", file=sys.stderr, flush=True)
        os._exit(EXIT_CODE_USER_ERROR)

    def _look_at_run(self, config: Config) -> Standing:
        """Return what exists of the run that `--resume-or-start` names, before anything is printed or changed."""
        standing: Standing = "none"
        with self.comm.propagate_errors("looking at the run folder"):
            if self.comm.rank == 0:
                standing = look_at_run(config, framework=self.framework, report=self.console.line)
        standing = self.comm.broadcast(standing)
        if standing == "finished":
            raise AlreadyFinished(config)
        return standing

    def _world(
        self, *, device: str, gpu: str | None, threads: int, onednn: bool, pinned_memory: NotRecorded | None = None
    ) -> World:
        in_force: OneDNNInForce | None = None if device != "cpu" else "on" if onednn else "off"
        too_many = self.comm.cores.is_exceeded_by(threads)
        of_ranks = self.comm.allgather((platform.node(), device, gpu, too_many, in_force))
        hosts, devices, gpus, oversubscribed, onednn_of_ranks = zip(*of_ranks, strict=True)
        return World(
            size=self.comm.size,
            local_size=self.comm.local_size,
            servers=self.comm.servers,
            parts=self.comm.parts,
            hosts=sorted({*hosts, *self.comm.server_hosts}),
            controller=self.comm.controller,
            threads_per_rank=threads,
            cores=self.comm.cores.total,
            oversubscribed=any(oversubscribed),
            devices=list(devices),
            gpus=list(gpus),
            onednn=list(onednn_of_ranks),
            launcher=launcher_of(os.environ),
            pinned_memory=pinned_memory or self.task.config.device.pinned_memory,
            at_once=runs_at_once(),
        )

    def record_initial_test(self, test: Measured) -> None:
        """Record the test before training."""
        test = test.over_ranks(self.comm)
        with self.comm.propagate_errors("writing the run folder"):
            self.recorder.add_initial_test(test)

    def is_complete(self, *, step: int) -> bool:
        """Return whether a run that is resumed after update `step` has nothing left to train; look at the host.

        The host is looked at before all ranks meet here, so that none waits for it in its training time.
        """
        self._interference.start()
        lines = warning_lines(self.task, self.world)
        if self._interference.other_processes:
            names = "; ".join(self._interference.other_processes)
            lines.append(warning(f"other programs use this machine: {names}. Times may be longer"))
        for line in lines:
            self.console.line(line)
        return bool(self.comm.broadcast(self.recorder.should_stop(step)))

    def timeline_file(self) -> Path | None:
        """Return where Horovod writes its timeline, on all ranks; None if it was not asked for."""
        folder = self.recorder.folder
        wanted = folder is not None and self.task.config.record.horovod_timeline
        file: Path | None = self.comm.broadcast(folder / TIMELINE_FILE if folder and wanted else None)
        return file

    def start_training(self, trainer: Trainer, checkpoint: Checkpoint | None) -> Checkpointer:
        """End start-up, which is not training time; return what writes the checkpoints."""
        self.phases.startup_ends()
        return self._checkpointer(checkpoint)

    def _checkpointer(self, checkpoint: Checkpoint | None) -> Checkpointer:
        seconds = checkpoint.checkpoint_seconds if checkpoint else 0.0
        return Checkpointer(
            self.task, comm=self.comm, folder=self.recorder.folder, seconds=seconds, membership=self.membership
        )

    def progress_bar(self, epoch: int, *, done: int) -> Callable[[int], object]:
        """Return a function that takes a number of steps done and advances the progress bar, if bars are shown.

        Args:
            epoch: its number, from 1.
            done: steps of it that were trained before the run was resumed.
        """
        title = f"epoch {epoch}/{self.task.epochs}"
        advance = self.console.steps(self.task.steps_of_epoch(epoch), title=title, done=done)

        def advance_and_note(steps: int) -> None:
            advance(steps)
            note_updates(steps)

        return advance_and_note

    def record_epoch(self, epoch: int, trainer: Trainer, validation: Measured, *, saved: SavedEpoch) -> bool:
        """Record an epoch; return whether the run is complete.

        Args:
            epoch: its number, from 1.
            trainer: the one that trained it on this rank.
            validation: of this rank; `NOT_MEASURED` if there was none.
            saved: its checkpoint.

        Raises:
            UserError: the record cannot be written; on all ranks.
        """
        training, validation = trainer.result().over_ranks(self.comm), validation.over_ranks(self.comm)
        training = replace(training, seconds=training.seconds + self._lost_seconds())
        with self.comm.propagate_errors("writing the record"):
            self.recorder.add_epoch(epoch, training, validation, saved=saved)
        return bool(self.comm.broadcast(self.recorder.should_stop(self.task.steps_after(epoch))))

    def _lost_seconds(self) -> float:
        """Return the training time of an epoch that no rank has measured."""
        return 0.0

    def _commits(self) -> ElasticRecord | None:
        """Return the commits of an elastic run."""
        return None

    def finish(
        self, trainer: Trainer, test: Measured, sharing: SharingRecord | None, *, peak_memory_bytes: int | None
    ) -> None:
        """Record the test, final weights, totals and status.

        Args:
            trainer: the one that trained the run on this rank.
            test: of this rank.
            sharing: this rank's part of what was exchanged; None on all ranks if nothing was.
            peak_memory_bytes: of this rank's device, as the framework counts it; None on a CPU.

        Raises:
            UserError: the weights cannot be written; on all ranks.
        """
        test = test.over_ranks(self.comm)
        startup_seconds = float(self.comm.maximum(np.array(self.phases.startup_seconds)))
        isolation = join(self.comm.allgather(self._interference.result(peak_device_memory_bytes=peak_memory_bytes)))
        metered = self._meter.finish() if self._meter else None
        profiler = trainer.profiler
        profile = average_over_ranks(self.comm.allgather(profiler.laps)) if profiler else None
        shared = join_shares(self.comm.allgather(sharing)) if sharing else None
        if shared and self._on_gpu:
            shared = without_seconds(shared, reason="a GPU still computes while the host waits for the exchange")
        weights = trainer.state.export_weights()
        with (
            self.comm.propagate_errors("writing the final weights"),
            whole_arrays(weights, partition=self.task.partition, comm=self.comm) as (whole,),
        ):
            self.recorder.finish(
                test,
                weights=whole,
                startup_seconds=startup_seconds,
                isolation=isolation,
                metered=metered,
                profile=profile,
                sharing=shared,
                elastic=self._commits(),
            )
        announce("ending")
