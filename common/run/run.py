"""One start of a run, from its settings to its end. Every rank calls every method; rank 0 prints and writes."""

import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from common.config import Config
from common.distributed.communicator import Communicator
from common.distributed.console import Console
from common.distributed.whole_arrays import whole_arrays
from common.errors import EXIT_CODE_STALLED, EXIT_CODE_USER_ERROR
from common.measurement.interference import InterferenceMeter, join
from common.measurement.memory_limit import watch_memory
from common.measurement.metering import Meter
from common.measurement.step_profile import average_over_ranks
from common.measurement.timing import Phases
from common.run.checkpoints import Checkpoints
from common.run.commit import Commit
from common.run.console_report import start_lines, warning_lines
from common.run.elastic import Elastic
from common.run.epoch import Epoch, Listener
from common.run.listeners import ProgressBar, Timeline, Watched, free_timeline
from common.run.measured import NOT_MEASURED, Measured
from common.run.opening import open_run_folder, reopen_run_folder
from common.run.recorder import NullRecorder, RunRecorder
from common.run.resume import Standing, standing_on_all_ranks
from common.run.strategy import RankStrategy
from common.run.world import RankDevice, describe_world
from common.run_folder.checkpoints import Checkpoint, PartialEpoch
from common.run_folder.records import World
from common.run_folder.sharing import join_shares, without_seconds
from common.task.rank_batches import RankBatches
from common.task.task import Task
from common.watchdog.board import announce, announce_failure
from common.watchdog.watch import start_watch


class Run:
    """A run on one rank, or, where ranks come and go, on one after the other.

    Args:
        horovod: its module for the framework.
        elastic: what this process keeps where ranks come and go; None: they stay.

    Attributes:
        comm: of the ranks there are.
        recorder: writes the record, once the run folder is open.
        phases: the clock of this rank.
        task, world: of the run, once it is open.
        checkpoint: that the run goes on from, until it does; None: it starts.
    """

    task: Task
    world: World
    strategy: RankStrategy
    batches: RankBatches
    checkpoint: Checkpoint | None = None

    def __init__(
        self,
        *,
        framework: str,
        comm: Communicator,
        console: Console,
        horovod: Any = None,
        elastic: Elastic | None = None,
    ) -> None:
        self.framework = framework
        self.comm = comm
        self.console = console
        self.elastic = elastic
        self.recorder = NullRecorder()
        self.phases = Phases()
        self.phases.listeners.append(announce)
        self._horovod = horovod
        self._interference = InterferenceMeter(first_on_host=comm.local_rank == 0)
        self._meter: Meter | None = None

    @property
    def folder(self) -> Path | None:
        """Of the run, on rank 0; None on the others."""
        return self.recorder.folder

    @property
    def step(self) -> int:
        """Updates that were done before this start."""
        return self.checkpoint.step if self.checkpoint else 0

    def first_copies(self, config: Config) -> int | None:
        """Return how many ranks the run was first started with; None: as many as there are."""
        if not self.elastic:
            return None
        return self.elastic.first_copies(config, comm=self.comm, framework=self.framework, report=self.console.line)

    def open(self, task: Task, device: RankDevice) -> None:
        """Open the run folder, print what is trained, and find out what the run goes on from.

        Raises:
            UserError: the run folder exists, cannot be written or cannot be resumed; on all ranks.
            AlreadyFinished: `--resume-or-start` found a finished run; on all ranks.
        """
        self.task, self._device = task, device
        start_watch(task.config.faults, comm=self.comm, end=self._end_hanging, fail=self._end_now)
        comm, config = self.comm, task.config
        self.world = describe_world(device, task=task, comm=comm)
        commit = self.elastic.commit if self.elastic else None
        if commit:
            self.checkpoint, standing = commit.checkpoint, None
        else:
            standing = standing_on_all_ranks(config, comm=comm, framework=self.framework, report=self.console.line)
        with comm.propagate_errors("opening the run folder"):
            if comm.rank == 0:
                self._open_folder(commit, standing=standing)
        if not commit:
            self.checkpoint = comm.broadcast(self.checkpoint)
            if config.device.memory_limit is not None:
                watch_memory(config.device.memory_limit, comm=comm, end=self._end_now, end_by_rank_0=announce_failure)
            if config.energy.energy:
                self._meter = Meter(config.energy, comm=comm, device=device.name, phases=self.phases)
        if self.elastic:
            self.checkpoint = self.elastic.opened(
                task,
                folder=self.folder,
                checkpoint=self.checkpoint,
                report=lambda change: self.recorder.add_change(replace(change, onednn=self.world.onednn)),
            )

    def _open_folder(self, commit: Commit | None, *, standing: Standing) -> None:
        """Open the run folder on rank 0, and keep its recorder at once: the run may end before all ranks have met."""
        task, world, console = self.task, self.world, self.console
        if commit:
            writer = reopen_run_folder(commit, task, world, console=console)
        else:
            writer, self.checkpoint = open_run_folder(
                task, world, framework=self.framework, standing=standing, console=console
            )
        self.recorder = RunRecorder(writer, task=task, console=console)
        if self.elastic:
            self.elastic.begin(task, folder=writer.folder, checkpoint=self.checkpoint)
        if not commit:
            console.line("\n".join(start_lines(task, world, record=writer.record, folder=writer.folder)))

    def leave(self) -> None:
        """Let go of the model, for this process is about to join other ranks and to build it again."""
        self.phases.abandon()
        for name in ("strategy", "batches"):
            vars(self).pop(name, None)

    def rejoined(self, comm: Communicator) -> None:
        """Go on as a rank of another communicator, without its record until the ranks have agreed."""
        self.recorder.release()
        self.comm, self.console = comm, self.console.of(comm)
        self.recorder = NullRecorder()
        announce("preparing data")

    def restore(self, strategy: RankStrategy, batches: RankBatches) -> None:
        """Give the strategy what the run starts from or goes on with, on all ranks.

        Raises:
            UserError: the weights differ between ranks; on all ranks.
        """
        self.strategy, self.batches = strategy, batches
        strategy.load(*self.task.starting_arrays(self.checkpoint, part=self.comm.part))
        strategy.broadcast(from_checkpoint=self.checkpoint is not None)
        self.comm.check_same_weights(strategy.weights(), when="after the broadcast", cut=self.task.partition.axes)

    def epochs(self) -> Iterator[Epoch]:
        """Yield the epochs that are left, the first of them perhaps trained in part; each is ended by `end_epoch`."""
        task, strategy = self.task, self.strategy
        strategy.rehearse_evaluation(self.batches)
        if task.config.training.evaluate_first and not self.checkpoint:
            test = self.evaluate("test").over_ranks(self.comm)
            with self.comm.propagate_errors("writing the run folder"):
                self.recorder.add_initial_test(test)
        finished = self.checkpoint.epoch if self.checkpoint else 0
        self._own = self.checkpoint.partial_epoch(self.comm.rank) if self.checkpoint else PartialEpoch()
        self._look_at_host()
        self._is_complete = self.comm.broadcast(self.recorder.should_stop(self.step))
        if not self._is_complete:
            strategy.rehearse(self.batches, finished + 1)
        listeners = self._start_training()
        self.checkpoint, freezes = None, task.freezes_batch_norm_in
        for number in itertools.count(finished + 1):
            if self._is_complete:
                break
            if number > finished + 1 and freezes(number) and not freezes(number - 1):
                strategy.rehearse(self.batches, number)
            epoch = Epoch(number, task=task, strategy=strategy, phases=self.phases, listeners=listeners, own=self._own)
            for listener in listeners:
                listener.epoch_starts(epoch)
            yield epoch
        for listener in listeners:
            listener.training_ended()

    def _look_at_host(self) -> None:
        """Look at the host and print warnings, once, before all ranks meet: none waits for it in its training time."""
        if self.phases.current != "startup":
            return
        self._interference.start()
        for line in warning_lines(self.task, self.world, others=self._interference.other_processes):
            self.console.line(line)

    def _start_training(self) -> list[Listener]:
        """End start-up, which is not training time; return who hears of the epochs."""
        config, folder = self.task.config, self.folder
        seconds = self.checkpoint.checkpoint_seconds if self.checkpoint else 0.0
        self._checkpoints = Checkpoints(self.task, comm=self.comm, folder=folder, seconds=seconds)
        listeners: list[Listener] = [Watched(), ProgressBar(self.console, epochs=self.task.epochs), self._checkpoints]
        file: Path | None = self.comm.broadcast(free_timeline(folder) if folder else None)
        if config.record.horovod_timeline and file and not self._is_complete:
            listeners.append(Timeline(self._horovod, file))
        for listener in listeners:
            listener.training_starts()
        if self.phases.current == "startup":
            self.phases.startup_ends()
        if self.elastic:
            listeners.append(self.elastic)
            self.elastic.goes_on(self._checkpoints, None if self.checkpoint else self.strategy)
        return listeners

    def validate(self, epoch: Epoch) -> Measured:
        """Return what this rank measures of its validation samples; `NOT_MEASURED` where no validation is due."""
        return self.evaluate("validation") if self.task.validates_after(epoch.number) else NOT_MEASURED

    def evaluate(self, part: Literal["validation", "test"]) -> Measured:
        """Return what this rank measures of its samples of a part."""
        with self.phases.phase(part, synchronize=self.strategy.synchronize) as evaluation:
            sums = self.strategy.evaluate(self.batches.evaluation(part))
        return Measured(sums=sums, seconds=evaluation.seconds)

    def end_epoch(self, epoch: Epoch) -> None:
        """Average, validate, write the checkpoint, then the record; listeners do the rest.

        Raises:
            UserError: the weights differ between ranks, or something cannot be written; on all ranks.
            HostsChanged: ranks can join, or are about to be removed; on all ranks.
        """
        self._own = self.strategy.end_epoch()
        validation = self.validate(epoch)
        saved = self._checkpoints.save(epoch, self._own)
        training, validation = epoch.measured(self.batches).over_ranks(self.comm), validation.over_ranks(self.comm)
        if self.elastic:
            training = replace(training, seconds=training.seconds + self.elastic.take_lost_seconds())
        with self.comm.propagate_errors("writing the record"):
            self.recorder.add_epoch(epoch.number, training, validation, saved=saved)
        self._is_complete = self.comm.broadcast(self.recorder.should_stop(epoch.step))
        for listener in reversed(epoch.listeners):  # the last keeps the state before an older file of it is removed
            listener.epoch_recorded(epoch)

    def finish(self) -> None:
        """Test, and record the test, final weights, totals and status.

        Raises:
            UserError: the weights cannot be written; on all ranks.
        """
        peak, test = self._device.peak_memory(), self.evaluate("test")
        if self.elastic:  # a change of the ranks after the last update; what was lost then is time of the test
            self.elastic.updated(0)
            test = replace(test, seconds=test.seconds + self.elastic.take_lost_seconds())
        comm, strategy = self.comm, self.strategy
        test = test.over_ranks(comm)
        startup_seconds = float(comm.maximum(np.array(self.phases.startup_seconds)))
        isolation = join(comm.allgather(self._interference.result(peak_device_memory_bytes=peak)))
        metered = self._meter.finish() if self._meter else None
        profiler = strategy.profiler
        profile = average_over_ranks(comm.allgather(profiler.laps)) if profiler else None
        exchanged = strategy.exchanged()
        shared = join_shares(comm.allgather(exchanged)) if exchanged else None
        if shared and not any(worker.updates for worker in shared.workers):  # resumed for the test alone
            shared = None
        if shared and self._device.gpu is not None:
            shared = without_seconds(shared, reason="a GPU still computes while the host waits for the exchange")
        weights = strategy.weights()
        with (
            comm.propagate_errors("writing the final weights"),
            whole_arrays(weights, partition=self.task.partition, comm=comm) as (whole,),
        ):
            self.recorder.finish(
                test,
                weights=whole,
                startup_seconds=startup_seconds,
                isolation=isolation,
                metered=metered,
                profile=profile,
                sharing=shared,
                elastic=self.elastic.counted() if self.elastic else None,
            )
        announce("ending")

    def _end_hanging(self, reason: str) -> None:
        """Record that ranks hang, and end this rank at once; a watcher has said so."""
        self.recorder.end("interrupted", message=reason)
        os._exit(EXIT_CODE_STALLED)

    def _end_now(self, reason: str) -> None:
        """Record that the run failed, and end this rank at once: then the launcher ends the others."""
        self.recorder.end("failed", message=reason)
        print(f"error: {reason}", file=sys.stderr, flush=True)
        os._exit(EXIT_CODE_USER_ERROR)
