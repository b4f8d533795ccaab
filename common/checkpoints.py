"""Checkpoints of a run: each is a folder, complete on disk before it gets its name.

checkpoints/epoch-0003/weights.safetensors     weights, framework-neutral
                       optimizer.safetensors   optimizer state, "<parameter>.<slot>" with PyTorch's slot names
                       state.json              epoch, steps done
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from common.initial_weights import Weights, load_weights, save_weights
from common.model_specs import ModelSpec
from common.records import EPOCHS_FILE, write_atomically

CHECKPOINTS_FOLDER = "checkpoints"


@dataclass(frozen=True)
class Checkpoint:
    """The state after an epoch: all that the next epoch needs besides the settings."""

    epoch: int
    step: int
    weights: Weights
    optimizer_state: Weights


def save_checkpoint(run_folder: Path, checkpoint: Checkpoint, *, keep: int = 0) -> None:
    """Write a checkpoint, then remove all but the `keep` newest (0 keeps all).

    Raises:
        OSError: full disk, missing permission.
    """
    parent = run_folder / CHECKPOINTS_FOLDER
    parent.mkdir(exist_ok=True)
    unfinished = parent / f".epoch-{checkpoint.epoch:04d}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        save_weights(unfinished / "weights.safetensors", checkpoint.weights)
        save_weights(unfinished / "optimizer.safetensors", checkpoint.optimizer_state)
        state = {"epoch": checkpoint.epoch, "step": checkpoint.step}
        write_atomically(unfinished / "state.json", json.dumps(state) + "\n")
        finished = parent / f"epoch-{checkpoint.epoch:04d}"
        shutil.rmtree(finished, ignore_errors=True)  # left by a run that went on past the resumed epoch
        unfinished.rename(finished)
        _sync_folder(parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    remove_old_checkpoints(run_folder, keep=keep)


def remove_old_checkpoints(run_folder: Path, *, keep: int) -> None:
    """Remove all but the `keep` newest checkpoints (0 keeps all).

    Raises:
        OSError: missing permission.
    """
    if keep:
        for old in checkpoint_folders(run_folder)[:-keep]:
            shutil.rmtree(old)


def checkpoint_folders(run_folder: Path) -> list[Path]:
    """Return the finished checkpoints of a run, oldest first."""
    found = (run_folder / CHECKPOINTS_FOLDER).glob("epoch-*")
    epochs = {int(folder.name[6:]): folder for folder in found if folder.name[6:].isdecimal()}
    return [epochs[epoch] for epoch in sorted(epochs)]


def load_newest_checkpoint(run_folder: Path, *, spec: ModelSpec, recorded_epochs: int | None = None) -> Checkpoint:
    """Return the newest checkpoint of a run; of those whose epoch is on record, where `recorded_epochs` are given.

    Raises:
        UserError: there is none, it is damaged, or it is of another model.
    """
    folders = checkpoint_folders(run_folder)
    if folders and recorded_epochs is not None:
        oldest = folders[0]
        # A run that was ended between a checkpoint and its line in the record has the checkpoint before, too.
        folders = [folder for folder in folders if int(folder.name.removeprefix("epoch-")) <= recorded_epochs]
        if not folders:
            raise UserError(
                f"the record of epochs ends before the checkpoint. Received: {recorded_epochs} lines in "
                f"{run_folder / EPOCHS_FILE}, checkpoint {oldest.name}. Start a new run"
            )
    if not folders:
        raise UserError(
            f"no checkpoint to resume from. Received: {run_folder}. Start the run anew under another --name"
        )
    newest = folders[-1]
    try:
        state = json.loads((newest / "state.json").read_text())
        epoch, step = int(state["epoch"]), int(state["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"the checkpoint is damaged. Received: {newest} ({error}). Remove this folder to resume from the one before"
        ) from None
    weights = load_weights(newest / "weights.safetensors", spec=spec)
    return Checkpoint(epoch, step, weights, load_weights(newest / "optimizer.safetensors"))


def _sync_folder(folder: Path) -> None:
    """Make a rename in this folder last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
