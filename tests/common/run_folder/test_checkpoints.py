"""Checkpoints: written atomically, the newest kept, damage and other models reported in one line."""

import os
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
from builders import forget_hashes, make_config, make_task, random_weights

from common.errors import UserError
from common.model.specs import model_spec
from common.model.weights import load_weights, save_weights
from common.run_folder import checkpoints
from common.run_folder.checkpoints import (
    Checkpoint,
    PartialEpoch,
    checkpoint_folders,
    load_newest_checkpoint,
    remove_old_checkpoints,
    save_checkpoint,
)

SETUP = make_task(make_config("runs"))
FILES = ["weights.safetensors", "optimizer.safetensors", "ranks.safetensors", "state.json"]


def at_end(epoch, *, seed=None):
    """Return a checkpoint at the end of an epoch."""
    weights = random_weights(SETUP, seed=epoch if seed is None else seed)
    state = {f"{name}.momentum_buffer": -array for name, array in weights.items()}
    return Checkpoint(epoch, 4 * epoch, weights, {**state, "fc1.weight.step": np.array(4.0 * epoch)})


def inside(epoch, step):
    """Return a checkpoint of two ranks inside an epoch."""
    whole = at_end(epoch - 1)
    ranks = [
        PartialEpoch(
            steps=step,
            own_steps=step + rank,
            training_seconds=0.1 * step + rank,
            data_wait_seconds=1 / 3,
            state={
                "generator": np.arange(5, dtype=np.uint8) + rank,
                "losses": np.random.default_rng(rank).normal(size=3),
                "dots.in.names": np.array([7], dtype=np.int64),
            },
            weights={"bn1.running_mean": np.full(4, rank, np.float32)},
            optimizer_state={"fc1.bias.momentum_buffer": np.full(3, -rank, np.float32)},
        )
        for rank in range(2)
    ]
    done = 4 * (epoch - 1) + step
    return Checkpoint(epoch - 1, done, whole.weights, whole.optimizer_state, ranks, checkpoint_seconds=0.7)


def apart(epoch):
    """Return a checkpoint at the end of an epoch, of two ranks with weights of their own."""
    ranks = [replace(rank, steps=0, state={}) for rank in inside(epoch, 3).ranks]
    return replace(at_end(epoch), ranks=ranks)


def names(run):
    return [folder.name for folder in checkpoint_folders(run)]


def bits(value):
    """Return something that is equal for two checkpoints if all their bits are."""
    if is_dataclass(value):
        return {field.name: bits(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: bits(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return value.dtype.str, np.atleast_1d(value).shape, value.tobytes()
    return [bits(part) for part in value] if isinstance(value, list | tuple) else value


def check_newest(run, expected, **options):
    """Check that the checkpoint from which a run would resume has the bits expected."""
    newest = load_newest_checkpoint(run, spec=SETUP.spec, **options)
    assert newest.name == expected.name and bits(newest) == bits(expected)


@pytest.mark.parametrize(
    ("written", "recorded_epochs", "newest"),
    [
        ([at_end(1), at_end(2)], None, at_end(2)),
        ([at_end(1), at_end(1, seed=99)], None, at_end(1, seed=99)),  # a repeated epoch is replaced
        ([at_end(9_999), at_end(10_000)], None, at_end(10_000)),
        ([at_end(1), inside(2, 3)], 1, inside(2, 3)),
        ([inside(3, 2), at_end(2), at_end(3)], 2, inside(3, 2)),
        ([inside(3, 2), at_end(2), at_end(3)], 3, at_end(3)),
        ([inside(2, 3), apart(2)], 2, apart(2)),
    ],
)
def test_the_newest_of_the_recorded_epochs_is_read_bit_for_bit(written, recorded_epochs, newest, tmp_path):
    for checkpoint in written:
        save_checkpoint(tmp_path, checkpoint)
    (tmp_path / "checkpoints" / "epoch-99999.bak").mkdir()
    check_newest(tmp_path, newest, recorded_epochs=recorded_epochs)


@pytest.mark.parametrize(("keep", "kept"), [(0, [1, 2, 3, 4]), (1, [4]), (3, [2, 3, 4]), (9, [1, 2, 3, 4])])
def test_the_newest_are_kept_and_none_inside_a_finished_epoch(keep, kept, tmp_path):
    for epoch in (1, 2, 3, 4):
        for step in (1, 2, 10):
            save_checkpoint(tmp_path, inside(epoch, step))
        remove_old_checkpoints(tmp_path, keep=keep)
        newest = f"epoch-{epoch:04d}-step-000010"
        assert [name for name in names(tmp_path) if "step" in name] == [newest], "its epoch has not ended"
        save_checkpoint(tmp_path, at_end(epoch))
        assert newest in names(tmp_path), "its epoch is not on record yet"
        remove_old_checkpoints(tmp_path, keep=keep)
    assert names(tmp_path) == [f"epoch-{epoch:04d}" for epoch in kept]


@pytest.mark.parametrize("interrupted_at", ["save_weights", "write_atomically", "_sync_folder"])
def test_an_interrupted_write_leaves_the_old_one(interrupted_at, tmp_path, monkeypatch):
    save_checkpoint(tmp_path, at_end(1))

    def interrupt(*args, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, interrupted_at, interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, at_end(2))
    assert "epoch-0001" in names(tmp_path)
    assert not list((tmp_path / "checkpoints").glob(".*"))
    check_newest(tmp_path, at_end(len(names(tmp_path))))


@pytest.mark.parametrize("following", [at_end(2), inside(2, 3)])
def test_a_killed_write_is_not_taken_for_a_checkpoint_and_removed_by_the_next(following, tmp_path):
    save_checkpoint(tmp_path, at_end(1))
    rest = tmp_path / "checkpoints" / f".{following.name}"
    rest.mkdir()
    (rest / "weights.safetensors").write_bytes(b"half")
    check_newest(tmp_path, at_end(1))
    save_checkpoint(tmp_path, following)
    check_newest(tmp_path, following)
    assert not rest.exists()


def test_no_checkpoint_and_one_of_another_model_are_one_line(tmp_path):
    with pytest.raises(UserError, match=rf"no checkpoint.*Received: {tmp_path}"):
        load_newest_checkpoint(tmp_path, spec=SETUP.spec)
    save_checkpoint(tmp_path, at_end(1))
    other = model_spec("mlp", input_shape=SETUP.spec.input_shape, outputs=7)
    with pytest.raises(UserError, match=r"do not belong to mlp.*fc2.weight should have shape \(7, 192\)"):
        load_newest_checkpoint(tmp_path, spec=other)


@pytest.mark.parametrize("newest", [inside(2, 3), apart(2)])
@pytest.mark.parametrize("file", FILES)
def test_an_incomplete_one_is_skipped_or_one_line(newest, file, tmp_path):
    """Files are copied to a bucket one by one; the machine may disappear in between."""
    save_checkpoint(tmp_path, at_end(1))
    save_checkpoint(tmp_path, newest)
    path = checkpoint_folders(tmp_path)[-1] / file
    path.unlink()
    check_newest(tmp_path, at_end(1), recorded_epochs=2)
    with pytest.raises(UserError, match=rf"^[^\n]*{path.parent}[^\n]*\Z"):
        load_newest_checkpoint(tmp_path, spec=SETUP.spec)


@pytest.mark.parametrize("file", FILES)
def test_damage_is_one_line_and_a_changed_bit_is_never_read(file, tmp_path):
    """A disk may return other bytes than were written, and safetensors has no checksum."""
    whole = inside(2, 3)
    save_checkpoint(tmp_path, whole)
    path = checkpoint_folders(tmp_path)[0] / file
    written = path.read_bytes()
    contents = [written[:-3], os.urandom(50)]
    for position in np.random.default_rng(1).choice(len(written), min(60, len(written)), replace=False):
        changed = bytearray(written)
        changed[position] ^= 1 << (position % 8)
        contents.append(changed)
    for content in contents:
        path.write_bytes(content)
        try:
            check_newest(tmp_path, whole)  # such as a blank between words
        except UserError as error:
            assert "Received" in str(error) and str(path.parent) in str(error) and "\n" not in str(error)
    path.write_bytes(written)
    check_newest(tmp_path, whole)


def test_a_checkpoint_of_an_earlier_version_has_no_hashes_and_other_names(tmp_path):
    save_checkpoint(tmp_path, inside(2, 3))
    (folder,) = checkpoint_folders(tmp_path)
    forget_hashes(folder)
    check_newest(tmp_path, inside(2, 3))
    arrays = load_weights(folder / "ranks.safetensors")
    renamed = {name.replace(".weights.", ".statistics."): array for name, array in arrays.items()}
    save_weights(folder / "ranks.safetensors", renamed)
    check_newest(tmp_path, inside(2, 3))


@pytest.mark.parametrize("name", ["weight", "a.weights.b", "7.weights.b", "-1.weights.b", "0.steps.b", "0.__class__.b"])
def test_arrays_of_no_rank_are_one_line(name, tmp_path):
    """Without hashes; many more damages: `fuzz/test_files.py`."""
    save_checkpoint(tmp_path, inside(2, 3))
    (folder,) = checkpoint_folders(tmp_path)
    forget_hashes(folder)
    save_weights(folder / "ranks.safetensors", {name: np.ones(1)})
    with pytest.raises(UserError, match=r"^the checkpoint is damaged[^\n]+\Z"):
        load_newest_checkpoint(tmp_path, spec=SETUP.spec)
