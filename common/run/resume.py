"""Resuming a run: which settings may change, and which files and records are required."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from common.config import Config, changed_settings, parse_command_line, requested
from common.distributed.communicator import Communicator
from common.errors import UserError, expanded
from common.run.totals import reason_to_stop
from common.run_folder.checkpoints import CHECKPOINTS_FOLDER, Checkpoint, load_newest_checkpoint, usable_checkpoints
from common.run_folder.records import (
    EPOCHS_FILE,
    RUN_FILE,
    STALE_HEARTBEAT_SECONDS,
    DataRecord,
    Hashes,
    NotRecorded,
    RecordedRun,
    RunRecord,
    Status,
    World,
    read_epochs,
    read_record,
    read_run,
    state_of,
)
from common.task.task import Task

# What may change when a run is resumed: its length, and settings that its weights do not depend on.
MAY_CHANGE = {
    "training": {"epochs", "max_steps"},
    "record": {"keep", "resume", "resume_or_start", "checkpoint_minutes", "progress", "tensorboard", "verbose"},
    "data": {"data_folder"},
    "faults": {"stall_seconds", "on_stall"},
}
# With --resume-or-start also the run's place, which another working folder writes differently.
PLACE = {"runs_folder", "name"}

# What --resume-or-start finds of the run; None: it is not given, or finds none.
Standing = Literal["finished", "to be resumed", "to be set aside"] | None
POLL_SECONDS = 0.5


class AlreadyFinished(Exception):  # noqa: N818 - not an error
    """`--resume-or-start` found a finished run: not an error, and nothing is to be done."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"the run is already finished: {folder}")


def settings_of(arguments: Sequence[str], *, program: str) -> Config:
    """Return the settings of a command line, or those of the run that it resumes, with the changes that weights allow.

    Raises:
        UserError: they are wrong, there is no such run, or a change that is not allowed.
    """
    folder = requested("--resume", arguments)
    if folder is None:
        return parse_command_line(arguments, program=program)
    old = _measured_settings(read_run(expanded(folder)).record, folder=folder)
    if old.energy.energy:
        raise _is_metered(folder)
    strategy = requested("--strategy", arguments)  # looked at first: its options do not go with those of the run
    if strategy not in (None, old.strategy.strategy):
        raise _is_kept("strategy", old.strategy.strategy, strategy)
    base = replace(old, record=replace(old.record, resume_or_start=False))
    config = parse_command_line(arguments, program=program, base=base)
    if config.record.resume_or_start:
        raise UserError(
            f"a run is resumed by its folder or by its name. Received: --resume {folder} --resume-or-start. "
            "Leave one of the two out"
        )
    _check_changes(old, config)
    return config


def _measured_settings(record: RunRecord, *, folder: Path | str) -> Config:
    if isinstance(record.config, NotRecorded):
        raise UserError(
            f"this run was not measured here and cannot be resumed. Received: --resume {folder}. Start a new run"
        )
    return record.config


def _is_metered(folder: Path | str) -> UserError:
    return UserError(
        f"a metered run measures from its start to its end and cannot be resumed. Received: --resume {folder}. "
        "Start a new run"
    )


def _is_kept(name: str, before: Any, now: Any) -> UserError:
    return UserError(
        f"a resumed run keeps its settings ({name} is {before}). Received: "
        f"--{name.replace('_', '-')} {now}. Leave it out, or start a new run"
    )


def _check_changes(old: Config, config: Config, *, but_for: frozenset[str] = frozenset()) -> None:
    """Raise UserError if a setting changed that a resumed run keeps; `but_for`: record settings that may change too."""
    may_change = MAY_CHANGE | {"record": MAY_CHANGE["record"] | but_for}
    for subject, name, before, now in changed_settings(old, config):
        if name not in may_change.get(subject, set()):
            raise _is_kept(name, before, now)
    if config.schedule.decay == "cosine" and config.training.epochs != old.training.epochs:
        raise UserError(
            f"the cosine decay was planned for {old.training.epochs} epochs. Received: --epochs "
            f"{config.training.epochs}. Leave --epochs out, or start a new run"
        )


def check_replayed(config: Config, *, framework: str) -> None:
    """Raise UserError unless a run whose schedule is to be replayed has the same framework and settings."""
    folder = expanded(str(config.strategy.replay))
    record = read_record(folder)
    _check_framework(record, framework=framework, folder=folder, done="replayed")
    for subject, name, before, now in changed_settings(_measured_settings(record, folder=folder), config):
        if subject != "record" and name not in ("data_folder", "replay"):
            raise UserError(
                f"a replay keeps the settings of its run ({name} is {before}). Received: --{name.replace('_', '-')} "
                f"{now} --replay {folder}. Give all settings of that run"
            )


def look_at_run(config: Config, *, framework: str, report: Callable[[str], None]) -> Standing:
    """Return what exists of the run that `--resume-or-start` names; change nothing.

    Args:
        report: called with one line if this takes long.

    Raises:
        UserError: the run is still running, is of another framework or has other settings, or its name is taken.
    """
    folder = config.record.folder()
    if not config.record.resume_or_start or not folder.exists():
        return None
    if not (folder / RUN_FILE).exists():
        if any(not path.name.startswith(".") for path in folder.iterdir()):
            raise UserError(
                f"the folder already exists and is not a run folder. Received: {folder}. Give another --name"
            )
        return "to be set aside"  # of a run that was killed just after it started
    record = read_record(folder)
    old = _measured_settings(record, folder=folder)
    _check_framework(record, framework=framework, folder=folder)
    _check_changes(old, config, but_for=frozenset(PLACE))
    state = state_of(_when_known(folder, record, report=report))
    if state == "running":
        raise _still_runs(folder)
    if state == "finished":
        before, now = old.training, config.training
        if (before.epochs, before.max_steps) == (now.epochs, now.max_steps):
            return "finished"
        if old.energy.energy:
            raise _is_metered(folder)
        return "to be resumed"
    return "to be resumed" if can_be_resumed(folder, old) else "to be set aside"


def can_be_resumed(folder: Path, config: Config) -> bool:
    """Return whether a run that has not finished, of these settings, has a checkpoint that it can go on from."""
    recorded = len(read_epochs(folder)) if (folder / EPOCHS_FILE).exists() else 0
    return not config.energy.energy and bool(usable_checkpoints(folder, recorded_epochs=recorded))


def standing_on_all_ranks(
    config: Config, *, comm: Communicator, framework: str, report: Callable[[str], None]
) -> Standing:
    """Return what exists of the run that `--resume-or-start` names, before anything is changed.

    Raises:
        UserError: as `look_at_run`; on all ranks.
        AlreadyFinished: the run; on all ranks.
    """
    if not config.record.resume_or_start:
        return None
    standing: Standing = None
    with comm.propagate_errors("looking at the run folder"):
        if comm.rank == 0:
            standing = look_at_run(config, framework=framework, report=report)
    standing = comm.broadcast(standing)
    if standing == "finished":
        raise AlreadyFinished(config.record.folder())
    return standing


def recorded_first_copies(config: Config, *, framework: str, report: Callable[[str], None]) -> int | None:
    """Return how many ranks an elastic run was first started with that is resumed by others; None: it starts now.

    Args:
        report: called with one line if this takes long.

    Raises:
        UserError: its record cannot be read, or the run cannot be resumed.
    """
    if not config.record.resume and look_at_run(config, framework=framework, report=report) != "to be resumed":
        return None
    data = read_record(config.record.folder()).data
    if not config.faults.elastic or not isinstance(data, DataRecord):
        return None
    # Not the number in the record: a rank may have ended before the folder was made.
    return data.global_batch_size // (config.training.batch_size * config.device.backward_passes_per_step)


def _when_known(folder: Path, record: RunRecord, *, report: Callable[[str], None]) -> RunRecord:
    """Return the record once it is known whether the run is still running.

    A process of another host is known only by its heartbeat, which either continues within seconds or becomes stale.
    One new heartbeat is no proof: a network file system may show the last one late.
    """
    assert isinstance(record.status, Status), "a measured run has a status"
    heartbeats, host = {record.status.heartbeat_at}, record.status.host
    deadline = time.monotonic() + STALE_HEARTBEAT_SECONDS
    if state_of(record) == "running":
        report(f"checking whether {folder} is still running on {host} (up to {STALE_HEARTBEAT_SECONDS:.0f} s)")
    while state_of(record) == "running" and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        record = read_record(folder)
        assert isinstance(record.status, Status)
        heartbeats.add(record.status.heartbeat_at)
        if len(heartbeats) > 2:
            break
    return record


def _still_runs(folder: Path) -> UserError:
    return UserError(f"the run is still running. Received: --resume {folder}. Wait for it, or stop it first")


def _check_framework(record: RunRecord, *, framework: str, folder: Path, done: str = "resumed") -> None:
    if record.framework != framework:
        raise UserError(
            f"a run can only be {done} by the framework that started it. Received: {folder} of {record.framework}. "
            f"Use {record.framework}_impl/train.py"
        )


def read_resumable_run(folder: Path, *, framework: str, task: Task) -> tuple[RecordedRun, Checkpoint]:
    """Return the recorded run, and the checkpoint to resume it from.

    Raises:
        UserError: it does not exist, is still running, is complete, or needs another framework or number of ranks.
    """
    run = read_run(folder)
    old = run.record
    _check_framework(old, framework=framework, folder=folder)
    if run.state == "running":
        raise _still_runs(folder)
    size = old.world.processes if isinstance(old.world, World) else None
    if size != task.processes and not task.config.faults.elastic:
        raise UserError(
            "the run was started with a different number of ranks. "
            f"Received: -np {task.processes}. Start it with -np {size or 'unknown'}"
        )
    checkpoint = load_newest_checkpoint(folder, spec=task.spec, recorded_epochs=len(run.epochs))
    if isinstance(old.hashes, Hashes) and old.hashes.sample_order != task.sample_order_hash:
        raise UserError(
            f"the samples of the data set have changed since the run started. Received: --resume {folder}, "
            f"{task.dataset.name}. Restore the data, or start a new run"
        )
    # A run that ended between its last checkpoint and the test is resumed for the test alone.
    is_trained = checkpoint.step >= task.total_steps
    if checkpoint.step > task.total_steps or (checkpoint.steps_inside and is_trained):
        inside = "inside an epoch, " if checkpoint.steps_inside else ""
        raise UserError(
            f"the checkpoint is {inside}after update {checkpoint.step}. Received: settings that end "
            f"after update {task.total_steps}. Give more --epochs or --max-steps"
        )
    if checkpoint.steps_inside:
        if "losses_of_places" not in checkpoint.ranks[0].state:
            raise UserError(
                f"the checkpoint inside an epoch was written by an older version. Received: "
                f"{folder / CHECKPOINTS_FOLDER / checkpoint.name}. Remove this folder to resume from the previous one"
            )
        return run, checkpoint
    if checkpoint.step != checkpoint.epoch * task.steps_per_epoch and (not is_trained or run.state == "finished"):
        raise UserError(
            f"the last epoch was cut short by --max-steps and cannot be resumed. Received: --resume {folder}. "
            "Start a new run"
        )
    if is_trained and run.state == "finished":
        raise UserError(
            f"nothing is left to do: {checkpoint.epoch} epochs are done. Received: --resume {folder}. "
            f"Give --epochs {checkpoint.epoch + 1} or more"
        )
    reason = reason_to_stop(task.config.training, run.epochs[: checkpoint.epoch])
    if reason and run.state == "finished":
        raise UserError(f"nothing is left to do: {reason}. Received: --resume {folder}. Start a new run")
    return run, checkpoint
