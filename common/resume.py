"""Going on with a run: which settings may change, and what must be there."""

from collections.abc import Sequence
from pathlib import Path

from common.checkpoints import Checkpoint, load_newest_checkpoint
from common.config import Config, parse_command_line
from common.errors import UserError
from common.experiment import Experiment
from common.records import Hashes, NotRecorded, Run, World, read_run

# What may be given anew when a run is resumed: nothing that its weights depend on, but for how long it goes on.
MAY_CHANGE = {
    "training": {"epochs", "max_steps"},
    "record": {"keep", "resume", "progress", "tensorboard"},
    "data": {"data_folder"},
}


def resumed_settings(arguments: Sequence[str], *, folder: str, program: str) -> Config:
    """Return the settings of the run that is resumed, with the few changes that its weights allow.

    Raises:
        UserError: no such run, or a change that is not allowed.
    """
    old = read_run(folder).record.config
    if isinstance(old, NotRecorded):
        raise UserError(
            f"this run was not measured here and cannot be resumed. Received: --resume {folder}. Start a new run"
        )
    if old.energy.energy:
        raise UserError(
            f"a metered run measures from its start to its end and cannot be resumed. Received: --resume {folder}. "
            "Start a new run"
        )
    config = parse_command_line(arguments, program=program, base=old)
    old_values, values = old.as_dict(), config.as_dict()
    for subject, fields in values.items():
        for name, value in fields.items():
            if value != old_values[subject][name] and name not in MAY_CHANGE.get(subject, set()):
                raise UserError(
                    f"a resumed run keeps its settings ({name} is {old_values[subject][name]}). Received: "
                    f"--{name.replace('_', '-')} {value}. Leave it out, or start a new run"
                )
    if config.schedule.decay == "cosine" and config.training.epochs != old.training.epochs:
        raise UserError(
            f"the cosine decay was laid out for {old.training.epochs} epochs. Received: --epochs "
            f"{config.training.epochs}. Leave --epochs out, or start a new run"
        )
    return config


def read_resumable_run(folder: Path, *, framework: str, experiment: Experiment) -> tuple[Run, Checkpoint]:
    """Return a run as it was left, and the checkpoint from which it goes on.

    Raises:
        UserError: it is not there, still runs, has nothing left to do, or needs another framework or number of ranks.
    """
    run = read_run(folder)
    old = run.record
    if old.framework != framework:
        raise UserError(
            f"a run is resumed by the framework that began it. Received: {folder} of {old.framework}. "
            f"Use {old.framework}_impl/train.py"
        )
    if run.state == "running":
        raise UserError(f"the run is still running. Received: --resume {folder}. Wait for it, or stop it first")
    if not isinstance(old.world, World) or old.world.size != experiment.size:
        size = old.world.size if isinstance(old.world, World) else "unknown"
        raise UserError(
            f"the run began with another number of ranks. Received: -np {experiment.size}. Start it with -np {size}"
        )
    checkpoint = load_newest_checkpoint(folder, spec=experiment.spec, recorded_epochs=len(run.epochs))
    if isinstance(old.hashes, Hashes) and old.hashes.sample_order != experiment.sample_order_hash:
        raise UserError(
            f"the data set has other samples than when the run began. Received: --resume {folder}, "
            f"{experiment.dataset.name}. Restore the data, or start a new run"
        )
    # A run that ended between its last checkpoint and the test is resumed for the test alone.
    is_trained = checkpoint.step >= experiment.total_steps
    if checkpoint.step != checkpoint.epoch * experiment.steps_per_epoch and (not is_trained or run.state == "finished"):
        raise UserError(
            f"the last epoch was cut short by --max-steps and cannot be resumed. Received: --resume {folder}. "
            "Start a new run"
        )
    if is_trained and run.state == "finished":
        raise UserError(
            f"nothing is left to do: {checkpoint.epoch} epochs are done. Received: --resume {folder}. "
            f"Give --epochs {checkpoint.epoch + 1} or more"
        )
    return run, checkpoint
