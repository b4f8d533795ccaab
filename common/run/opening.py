"""How rank 0 opens the run folder: a new one, or an old one that is resumed."""

import platform
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import psutil

from common.distributed.console import Console, counted
from common.json_records import SCHEMA_VERSION
from common.model.weights import weights_hash
from common.run.commit import Commit
from common.run.console_report import onednn_notes, warning
from common.run.resume import Standing, check_replayed, read_resumable_run
from common.run_folder.checkpoints import Checkpoint
from common.run_folder.environment import describe_environment
from common.run_folder.records import (
    WEIGHTS_FILE,
    DataRecord,
    Hashes,
    ModelRecord,
    RunRecord,
    Status,
    World,
    now,
    read_run,
    slurm_job,
)
from common.run_folder.run_writer import RunWriter
from common.run_folder.set_aside import set_aside
from common.run_folder.values import NotRecorded
from common.task.task import Task


def open_run_folder(
    task: Task, world: World, *, framework: str, standing: Standing, console: Console
) -> tuple[RunWriter, Checkpoint | None]:
    """Create or resume the run folder; return its writer and, if resumed, the checkpoint.

    Args:
        standing: what exists of the run, with `--resume-or-start`.

    Raises:
        UserError: the folder exists, cannot be written or cannot be resumed.
    """
    config = task.config
    if config.strategy.replay:
        check_replayed(config, framework=framework)
    folder = _folder_of(task, world, framework=framework)
    if config.record.resume is None and standing != "to be resumed":
        first = weights_hash(task.first_arrays())
        if standing == "to be set aside":
            place = set_aside(folder)
            console.line(f"a run of this name cannot be resumed: its folder was moved to {place}")
        return RunWriter.create(folder, _new_record(task, world, framework=framework, first_weights=first)), None
    run, checkpoint = read_resumable_run(folder, framework=framework, task=task)
    assert isinstance(run.record.hashes, Hashes), "a run that is resumed was measured"
    kept = run.record.hashes.initial_weights  # where they came from may be gone
    record = _new_record(task, world, framework=framework, first_weights=kept)
    assert isinstance(record.status, Status)
    assert isinstance(run.record.status, Status), "a run that is resumed was measured"
    status = replace(
        record.status,
        resumed_after_epochs=[*run.record.status.resumed_after_epochs, checkpoint.epoch],
        resumed_after_steps=[*run.record.status.resumed_after_steps, checkpoint.step],
    )
    (folder / WEIGHTS_FILE).unlink(missing_ok=True)
    # Lines after the checkpoint are written again, as the epochs are trained again.
    record = replace(record, status=status, initial_test=run.record.initial_test)
    if config.faults.elastic:  # what other ranks go on with is of those that began it
        assert isinstance(run.record.world, World), "a run that is resumed was measured"
        begun = replace(run.record.world, onednn=world.onednn)
        record = replace(record, world=begun, data=run.record.data, elastic=run.record.elastic)
    writer = RunWriter(folder, record, epochs=run.epochs[: checkpoint.epoch])
    inside = f" and {counted(checkpoint.steps_inside, 'update')} of the next" if checkpoint.steps_inside else ""
    console.line(f"resuming {folder} after epoch {checkpoint.epoch}{inside}")
    return writer, checkpoint


def reopen_run_folder(commit: Commit, task: Task, world: World, *, console: Console) -> RunWriter:
    """Return a writer of the folder of a run that other ranks began; epochs after the commit are trained again.

    Raises:
        UserError: the folder cannot be read or written.
    """
    for note in onednn_notes(task.config.model.onednn, world.onednn or []):
        console.line(warning(note))
    run, finished = read_run(commit.folder), commit.checkpoint.epoch if commit.checkpoint else 0
    assert isinstance(run.record.status, Status), "a measured run has a status"
    process = {"host": platform.node(), "process": psutil.Process().pid, "heartbeat_at": now()}
    status = replace(run.record.status, state="running", ended_at=None, message=None, **process)
    return RunWriter(commit.folder, replace(run.record, status=status), epochs=run.epochs[:finished])


def _folder_of(task: Task, world: World, *, framework: str) -> Path:
    config, stamp = task.config, datetime.now().strftime("%Y%m%d-%H%M%S")
    dataset, model = config.data.dataset.split(":")[0], config.model.model.replace(":", "-")
    return config.record.folder(unnamed=f"{framework}-{model}-{dataset}-np{world.size}-{stamp}")


def _new_record(task: Task, world: World, *, framework: str, first_weights: str | NotRecorded) -> RunRecord:
    environment = describe_environment()
    return RunRecord(
        schema_version=SCHEMA_VERSION,
        origin="measured",
        framework=framework,
        config=task.config,
        environment=environment,
        site=task.config.record.site,
        world=world,
        data=DataRecord(
            name=task.dataset.name,
            training_samples=len(task.training_indices),
            validation_samples=len(task.validation_indices),
            test_samples=len(task.dataset.test.labels),
            dropped_samples_per_epoch=task.dropped_samples,
            global_batch_size=task.samples_per_update,
            batch_sizes=list(task.samples_of_ranks),
            steps_per_epoch=task.steps_per_epoch,
            image_shape=task.dataset.image_shape,
            class_names=list(task.dataset.class_names),
            mean=list(task.dataset.mean),
            standard_deviation=list(task.dataset.standard_deviation),
        ),
        model=ModelRecord(
            name=task.spec.name,
            outputs=task.spec.outputs,
            parameters=task.spec.parameters,
            multiply_adds_per_image=task.spec.multiply_adds,
            forecast_bytes=task.forecast_bytes,
        ),
        groups=task.groups,
        hashes=Hashes(initial_weights=first_weights, sample_order=task.sample_order_hash),
        status=Status(
            state="running",
            host=environment.host,
            process=psutil.Process().pid,
            started_at=now(),
            heartbeat_at=now(),
            slurm_job=slurm_job(),
        ),
    )
