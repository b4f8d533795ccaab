"""Checkpoints of a run: folders that are complete on disk before they get their name.

checkpoints/epoch-0003/weights.safetensors     weights, framework-neutral
                       optimizer.safetensors   optimizer state, "<parameter>.<slot>" with PyTorch's slot names
                       state.json              finished epochs, updates done
                       ranks.safetensors       only where ranks have something of their own
            epoch-0004-step-000120/            inside an epoch, after 120 of its updates (`--checkpoint-minutes`)
                       ...                     the same, weights of rank 0, and
                       ranks.safetensors       the state of each rank: "<rank>.state.<name>", "<rank>.weights.<name>"
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.model.specs import ModelSpec
from common.model.weights import ArrayStream, Weights, load_weights, save_weights
from common.run_folder.records import EPOCHS_FILE
from common.utils.atomic import atomic_folder, write_atomically
from common.utils.whole_files import parse_json, read_bytes

CHECKPOINTS_FOLDER = "checkpoints"
_NAME = re.compile(r"epoch-(\d+)(?:-step-(\d+))?")
_KINDS_OF_ARRAYS = ("state", "weights", "optimizer_state")  # of `PartialEpoch`


@dataclass(frozen=True, kw_only=True)
class PartialEpoch:
    """What one rank alone has, in an epoch that is trained in part or about to start.

    Attributes:
        own_steps: batches that this rank computed, where ranks draw them; None: one in each step.
        data_wait_seconds: part of the seconds.
        state: sums of loss and accuracy, the state of the dropout generators, and what the strategy keeps; as the
            framework has them.
        weights: those that other ranks hold otherwise: BatchNorm's running statistics, which are averaged at the end of
            an epoch; with `--strategy averaging` all, unless they have just been averaged.
        optimizer_state: with `--strategy averaging`, where other ranks have another.
    """

    steps: int = 0
    own_steps: int | None = None
    training_seconds: float = 0.0
    data_wait_seconds: float = 0.0
    state: Weights = field(default_factory=dict)
    weights: Weights = field(default_factory=dict)
    optimizer_state: Weights = field(default_factory=dict)

    @property
    def has_arrays(self) -> bool:
        """Whether the rank has anything that others have not."""
        return bool(self.state or self.weights or self.optimizer_state)


@dataclass(frozen=True)
class Checkpoint:
    """All that is needed to resume, besides the settings.

    Attributes:
        epoch: finished epochs.
        step: updates done, since the first epoch.
        weights: of all ranks; their average at the end of an epoch, rank 0's inside it, where they differ.
        optimizer_state: of all ranks; rank 0's where they differ.
        ranks: inside an epoch, and where ranks differ: what each has, in the order of ranks.
        checkpoint_seconds: inside an epoch: time spent on its earlier checkpoints.
    """

    epoch: int
    step: int
    weights: Weights
    optimizer_state: Weights
    ranks: Sequence[PartialEpoch] = ()
    checkpoint_seconds: float = 0.0

    def partial_epoch(self, rank: int) -> PartialEpoch:
        """Return what a rank has of the epoch after the finished ones."""
        return self.ranks[rank] if self.ranks else PartialEpoch()

    @property
    def steps_inside(self) -> int:
        """Updates of the epoch after the finished ones; 0 at the end of an epoch."""
        return self.ranks[0].steps if self.ranks else 0

    @property
    def name(self) -> str:
        """Name of its folder."""
        if not self.steps_inside:
            return f"epoch-{self.epoch:04d}"
        return f"epoch-{self.epoch + 1:04d}-step-{self.steps_inside:06d}"


def save_checkpoint(run_folder: Path, checkpoint: Checkpoint, *, streams: Sequence[ArrayStream] | None = None) -> str:
    """Write a checkpoint, return the hash of its weights; one inside an epoch replaces earlier ones of the same epoch.

    Args:
        streams: weights and optimizer state that are not all in memory; None: those of `checkpoint`.

    Raises:
        OSError: full disk, missing permission.
    """
    parent = run_folder / CHECKPOINTS_FOLDER
    parent.mkdir(exist_ok=True)
    for unfinished in parent.glob(".epoch-*"):  # from a killed process
        shutil.rmtree(unfinished, ignore_errors=True)
    finished = parent / checkpoint.name
    with atomic_folder(finished) as unfinished:
        weights, optimizer_state = streams or (checkpoint.weights, checkpoint.optimizer_state)
        hashes = {
            name: save_weights(unfinished / name, arrays)
            for name, arrays in (("weights.safetensors", weights), ("optimizer.safetensors", optimizer_state))
        }
        state: dict[str, Any] = {"epoch": checkpoint.epoch, "step": checkpoint.step, "hashes": hashes}
        if checkpoint.ranks:
            arrays = _arrays_of_ranks(checkpoint.ranks)
            hashes["ranks.safetensors"] = save_weights(unfinished / "ranks.safetensors", arrays)
            state["checkpoint_seconds"] = checkpoint.checkpoint_seconds
            state["ranks"] = [
                {name: getattr(rank, name) for name in ("steps", "own_steps", "training_seconds", "data_wait_seconds")}
                for rank in checkpoint.ranks
            ]
        write_atomically(unfinished / "state.json", json.dumps(state | {"hash": _hash(state)}) + "\n")
        shutil.rmtree(finished, ignore_errors=True)  # written before the run was resumed from an earlier epoch
    _sync_folder(parent)
    if checkpoint.steps_inside:
        for old in checkpoint_folders(run_folder):
            if _is_inside_epoch(old) and _position(old) < _position(finished):
                shutil.rmtree(old)
    return hashes["weights.safetensors"]


def _hash(state: Mapping[str, Any]) -> str:
    """Return a hash of what `state.json` says, against disks that return other bytes than were written."""
    return hashlib.blake2b(json.dumps(state, sort_keys=True).encode(), digest_size=16).hexdigest()


def remove_old_checkpoints(run_folder: Path, *, keep: int) -> None:
    """Remove checkpoints that are no longer needed after the newest finished epoch.

    These are all inside it or earlier ones, and all but the `keep` newest of finished epochs (0 keeps all).

    Raises:
        OSError: missing permission.
    """
    folders = checkpoint_folders(run_folder)
    finished = [folder for folder in folders if not _is_inside_epoch(folder)]
    obsolete = finished[:-keep] if keep else []
    if finished:
        newest = _position(finished[-1])
        obsolete += [folder for folder in folders if _is_inside_epoch(folder) and _position(folder) < newest]
    for old in obsolete:
        shutil.rmtree(old)


def checkpoint_folders(run_folder: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    found: list[Path] = []
    with suppress(ValueError):  # a null character in the name: from Python 3.13 on
        found += (run_folder / CHECKPOINTS_FOLDER).glob("epoch-*")
    return sorted((folder for folder in found if _NAME.fullmatch(folder.name)), key=_position)


def usable_checkpoints(run_folder: Path, *, recorded_epochs: int) -> list[Path]:
    """Return the checkpoints whose finished epochs are recorded and whose files are complete, oldest first.

    A run that ended between writing a checkpoint and its epoch's record, or whose newest checkpoint was only partly
    copied to a bucket, resumes from the previous one.
    """
    folders = [folder for folder in checkpoint_folders(run_folder) if _finished_epochs(folder) <= recorded_epochs]
    return [folder for folder in folders if all((folder / name).exists() for name in _files(folder))]


def newest_finished_epoch(run_folder: Path, *, recorded_epochs: int) -> int:
    """Return the finished epochs of the checkpoint from which a run would resume; 0: there is none."""
    found = usable_checkpoints(run_folder, recorded_epochs=recorded_epochs)
    return _finished_epochs(found[-1]) if found else 0


def _files(folder: Path) -> tuple[str, ...]:
    """Return the names of the files of a checkpoint."""
    files = ("weights.safetensors", "optimizer.safetensors", "state.json")
    has_ranks = _is_inside_epoch(folder)
    with suppress(OSError):  # it is absent, or cannot be read, which is an error when it is loaded
        has_ranks = has_ranks or b'"ranks"' in read_bytes(folder / "state.json")
    return (*files, "ranks.safetensors") if has_ranks else files


def _finished_epochs(folder: Path) -> int:
    epoch, step = _parts_of_name(folder)
    return epoch if step is None else epoch - 1


def _position(folder: Path) -> tuple[int, float]:
    """Return a sort key: the end of an epoch comes after all checkpoints inside it."""
    epoch, step = _parts_of_name(folder)
    return epoch, float("inf") if step is None else int(step)


def _is_inside_epoch(folder: Path) -> bool:
    return _parts_of_name(folder)[1] is not None


def _parts_of_name(folder: Path) -> tuple[int, str | None]:
    match = _NAME.fullmatch(folder.name)
    assert match is not None, folder
    return int(match[1]), match[2]


def load_newest_checkpoint(run_folder: Path, *, spec: ModelSpec, recorded_epochs: int | None = None) -> Checkpoint:
    """Return the newest checkpoint of a run; with `recorded_epochs`, the newest of `usable_checkpoints`.

    Raises:
        UserError: there is none, it is damaged, or it is of another model.
    """
    folders = checkpoint_folders(run_folder)
    if folders and recorded_epochs is not None:
        oldest = folders[0]
        folders = usable_checkpoints(run_folder, recorded_epochs=recorded_epochs)
        if not folders:
            raise UserError(
                f"the record of epochs ends before the checkpoint. Received: {recorded_epochs} lines in "
                f"{run_folder / EPOCHS_FILE}, checkpoint {oldest.name}. Start a new run"
            )
    if not folders:
        raise UserError(f"no checkpoint to resume from. Received: {run_folder}. Start a new run under another --name")
    newest = folders[-1]
    try:
        state = parse_json(read_bytes(newest / "state.json"))
        if "hash" in state and state.pop("hash") != _hash(state):  # earlier versions wrote none
            raise ValueError("its hash is different")
        epoch, step, hashes = int(state["epoch"]), int(state["step"]), dict(state.get("hashes", {}))
        ranks = [
            PartialEpoch(
                steps=int(rank["steps"]),
                own_steps=None if rank.get("own_steps") is None else int(rank["own_steps"]),
                training_seconds=float(rank["training_seconds"]),
                data_wait_seconds=float(rank["data_wait_seconds"]),
            )
            for rank in (state["ranks"] if _is_inside_epoch(newest) else state.get("ranks", []))
        ]
        seconds = float(state.get("checkpoint_seconds", 0.0))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise _damaged(newest, error) from None

    def load(name: str, spec: ModelSpec | None = None) -> Weights:
        return load_weights(newest / name, spec=spec, hashed=hashes.get(name))

    weights, optimizer_state = load("weights.safetensors", spec), load("optimizer.safetensors")
    of_ranks = load("ranks.safetensors") if ranks else {}
    try:
        _put_arrays(of_ranks, ranks)
    except KeyError as error:
        raise _damaged(newest, error) from None
    return Checkpoint(epoch, step, weights, optimizer_state, ranks, seconds)


def _damaged(checkpoint: Path, error: Exception) -> UserError:
    return UserError(
        f"the checkpoint is damaged. Received: {checkpoint} ({error}). Remove this folder to resume from the "
        "previous one, if there is one, or start a new run under another --name"
    )


def _arrays_of_ranks(ranks: Sequence[PartialEpoch]) -> Weights:
    return {
        f"{rank}.{kind}.{name}": array
        for rank, partial in enumerate(ranks)
        for kind in _KINDS_OF_ARRAYS
        for name, array in getattr(partial, kind).items()
    }


def _put_arrays(arrays: Weights, ranks: Sequence[PartialEpoch]) -> None:
    """Assign the arrays to the ranks, the inverse of `_arrays_of_ranks`.

    Raises:
        KeyError: there is no such rank, or it has no such arrays.
    """
    places = {(str(rank), kind): getattr(one, kind) for rank, one in enumerate(ranks) for kind in _KINDS_OF_ARRAYS}
    for key, array in arrays.items():
        rank, _, rest = key.partition(".")
        kind, _, name = rest.partition(".")
        kind = "weights" if kind == "statistics" else kind  # as earlier versions called them
        places[rank, kind][name] = array


def _sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
