"""Checkpoints: written atomically, the newest kept, damage and other models reported in one line."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from builders import forget_hashes, make_config, make_setup, random_weights

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


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    return make_setup(make_config(tmp_path_factory.mktemp("runs")))


def make_checkpoint(setup, epoch):
    weights = random_weights(setup, seed=epoch)
    state = {f"{name}.momentum_buffer": -array for name, array in weights.items()}
    return Checkpoint(epoch, 4 * epoch, weights, {**state, "fc1.weight.step": np.array(4.0 * epoch)})


def make_inside(setup, epoch, step):
    """Return a checkpoint of two ranks inside an epoch."""
    whole = make_checkpoint(setup, epoch - 1)
    ranks = [
        PartialEpoch(
            steps=step,
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


def make_apart(setup, epoch):
    """Return a checkpoint at the end of an epoch, of two ranks with weights of their own."""
    ranks = [replace(rank, steps=0, state={}) for rank in make_inside(setup, epoch, 3).ranks]
    return replace(make_checkpoint(setup, epoch), ranks=ranks)


def names(run):
    return [folder.name for folder in checkpoint_folders(run)]


def assert_same(one, other):
    assert (one.epoch, one.step) == (other.epoch, other.step)
    for mine, theirs in [(one.weights, other.weights), (one.optimizer_state, other.optimizer_state)]:
        assert mine.keys() == theirs.keys()
        assert all(mine[name].tobytes() == theirs[name].tobytes() for name in mine)
    assert one.checkpoint_seconds == other.checkpoint_seconds
    for rank, twin in zip(one.ranks, other.ranks, strict=True):
        assert (rank.steps, rank.training_seconds) == (twin.steps, twin.training_seconds)
        assert rank.data_wait_seconds == twin.data_wait_seconds
        for ours, others in [
            (rank.state, twin.state),
            (rank.weights, twin.weights),
            (rank.optimizer_state, twin.optimizer_state),
        ]:
            assert ours.keys() == others.keys()
            assert all(ours[name].tobytes() == others[name].tobytes() for name in ours)
            assert all(ours[name].dtype == others[name].dtype for name in ours)


def test_the_newest_is_read_bit_for_bit(setup, tmp_path):
    for epoch in (1, 2):
        save_checkpoint(tmp_path, make_checkpoint(setup, epoch))
    assert_same(load_newest_checkpoint(tmp_path, spec=setup.spec), make_checkpoint(setup, 2))
    assert sorted(path.name for path in checkpoint_folders(tmp_path)[-1].iterdir()) == [
        "optimizer.safetensors",
        "state.json",
        "weights.safetensors",
    ]


@pytest.mark.parametrize(("keep", "kept"), [(0, [1, 2, 3, 4]), (1, [4]), (3, [2, 3, 4]), (9, [1, 2, 3, 4])])
def test_keep(keep, kept, setup, tmp_path):
    for epoch in (1, 2, 3, 4):
        save_checkpoint(tmp_path, make_checkpoint(setup, epoch))
        remove_old_checkpoints(tmp_path, keep=keep)
    assert names(tmp_path) == [f"epoch-{epoch:04d}" for epoch in kept]


def test_the_order_is_numeric(setup, tmp_path):
    for epoch in (9_999, 10_000):
        save_checkpoint(tmp_path, make_checkpoint(setup, epoch))
    remove_old_checkpoints(tmp_path, keep=1)
    assert names(tmp_path) == ["epoch-10000"]
    (tmp_path / "checkpoints" / "epoch-0001.bak").mkdir()
    assert load_newest_checkpoint(tmp_path, spec=setup.spec).epoch == 10_000


def test_a_repeated_epoch_is_replaced(setup, tmp_path):
    save_checkpoint(tmp_path, make_checkpoint(setup, 1))
    other = Checkpoint(1, 4, random_weights(setup, seed=99), {})
    save_checkpoint(tmp_path, other)
    assert_same(load_newest_checkpoint(tmp_path, spec=setup.spec), other)


@pytest.mark.parametrize("interrupted_at", ["save_weights", "write_atomically", "_sync_folder"])
def test_an_interrupted_write_leaves_the_old_one(interrupted_at, setup, tmp_path, monkeypatch):
    save_checkpoint(tmp_path, make_checkpoint(setup, 1))

    def interrupt(*args, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, interrupted_at, interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, make_checkpoint(setup, 2))
    monkeypatch.undo()
    assert "epoch-0001" in names(tmp_path)
    assert not list((tmp_path / "checkpoints").glob(".*"))
    newest = load_newest_checkpoint(tmp_path, spec=setup.spec)
    assert_same(newest, make_checkpoint(setup, newest.epoch))


def test_a_killed_write_is_not_taken_for_a_checkpoint(setup, tmp_path):
    save_checkpoint(tmp_path, make_checkpoint(setup, 1))
    rest = tmp_path / "checkpoints" / ".epoch-0002"
    rest.mkdir()
    (rest / "weights.safetensors").write_bytes(b"half")
    assert load_newest_checkpoint(tmp_path, spec=setup.spec).epoch == 1
    save_checkpoint(tmp_path, make_checkpoint(setup, 2))
    assert names(tmp_path) == ["epoch-0001", "epoch-0002"] and not rest.exists()
    assert_same(load_newest_checkpoint(tmp_path, spec=setup.spec), make_checkpoint(setup, 2))


def test_no_checkpoint_is_reported_in_one_line(setup, tmp_path):
    with pytest.raises(UserError, match=rf"no checkpoint.*Received: {tmp_path}"):
        load_newest_checkpoint(tmp_path, spec=setup.spec)


@pytest.mark.parametrize("file", ["weights.safetensors", "optimizer.safetensors", "ranks.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "noise"])
def test_damage_is_one_line_and_without_it_the_previous_one_is_found(file, damage, setup, tmp_path):
    save_checkpoint(tmp_path, make_checkpoint(setup, 1))
    save_checkpoint(tmp_path, make_inside(setup, 2, 3))
    path = checkpoint_folders(tmp_path)[-1] / file
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[:-3] if damage == "cut" else os.urandom(50))
    with pytest.raises(UserError, match="Received") as error:
        load_newest_checkpoint(tmp_path, spec=setup.spec)
    assert str(path.parent) in str(error.value) and "\n" not in str(error.value)
    shutil.rmtree(path.parent)
    assert load_newest_checkpoint(tmp_path, spec=setup.spec).name == "epoch-0001"


@pytest.mark.parametrize("file", ["weights.safetensors", "optimizer.safetensors", "ranks.safetensors", "state.json"])
def test_a_changed_bit_is_never_read(file, setup, tmp_path):
    """A disk may return other bytes than were written, and safetensors has no checksum."""
    whole = make_inside(setup, 2, 3)
    save_checkpoint(tmp_path, whole)
    path = checkpoint_folders(tmp_path)[0] / file
    written = path.read_bytes()
    for position in np.random.default_rng(1).choice(len(written), min(60, len(written)), replace=False):
        changed = bytearray(written)
        changed[position] ^= 1 << (position % 8)
        path.write_bytes(changed)
        try:
            assert_same(load_newest_checkpoint(tmp_path, spec=setup.spec), whole)  # such as a blank between words
        except UserError as error:
            assert "\n" not in str(error)
    path.write_bytes(written)
    assert_same(load_newest_checkpoint(tmp_path, spec=setup.spec), whole)


def test_a_checkpoint_of_an_earlier_version_has_no_hashes(setup, tmp_path):
    save_checkpoint(tmp_path, make_inside(setup, 2, 3))
    forget_hashes(checkpoint_folders(tmp_path)[0])
    assert_same(load_newest_checkpoint(tmp_path, spec=setup.spec), make_inside(setup, 2, 3))


OF_RANK = {"steps": 3, "training_seconds": 1.0, "data_wait_seconds": 1.0}
NAMES_OF_NO_RANK = ["weight", "a.weights.b", "7.weights.b", "-1.weights.b", "0.steps.b", "0.__class__.b"]


@pytest.mark.parametrize(
    ("state", "arrays"),
    [
        ({"epoch": float("inf")}, None),
        ({"checkpoint_seconds": 10**400}, None),
        ({"ranks": [OF_RANK | {"own_steps": "many"}] * 2}, None),
        ({"ranks": [OF_RANK]}, None),  # and arrays of two
        *(({}, {name: np.ones(1)}) for name in NAMES_OF_NO_RANK),
    ],
)
def test_odd_content_without_hashes_is_one_line(state, arrays, setup, tmp_path):
    save_checkpoint(tmp_path, make_inside(setup, 2, 3))
    (folder,) = checkpoint_folders(tmp_path)
    forget_hashes(folder)
    written = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(written | state))
    if arrays:
        save_weights(folder / "ranks.safetensors", arrays)
    with pytest.raises(UserError, match=r"^the checkpoint is damaged[^\n]+\Z"):
        load_newest_checkpoint(tmp_path, spec=setup.spec)


def test_ranks_with_weights_of_their_own_at_the_end_of_an_epoch(setup, tmp_path):
    save_checkpoint(tmp_path, make_inside(setup, 2, 3))
    save_checkpoint(tmp_path, make_apart(setup, 2))
    assert names(tmp_path) == ["epoch-0002-step-000003", "epoch-0002"]
    assert_same(load_newest_checkpoint(tmp_path, spec=setup.spec, recorded_epochs=2), make_apart(setup, 2))
    (tmp_path / "checkpoints" / "epoch-0002" / "ranks.safetensors").unlink()  # not copied yet
    assert_same(load_newest_checkpoint(tmp_path, spec=setup.spec, recorded_epochs=2), make_inside(setup, 2, 3))


def test_statistics_of_an_earlier_version_are_weights(setup, tmp_path):
    save_checkpoint(tmp_path, make_inside(setup, 2, 3))
    file = checkpoint_folders(tmp_path)[0] / "ranks.safetensors"
    forget_hashes(file.parent)
    arrays = load_weights(file).items()
    save_weights(file, {name.replace(".weights.", ".statistics."): array for name, array in arrays})
    assert_same(load_newest_checkpoint(tmp_path, spec=setup.spec), make_inside(setup, 2, 3))


@pytest.mark.parametrize("file", ["weights.safetensors", "optimizer.safetensors", "ranks.safetensors", "state.json"])
def test_an_incomplete_checkpoint_is_skipped(file, setup, tmp_path):
    """Files are copied to a bucket one by one; the machine may disappear in between."""
    save_checkpoint(tmp_path, make_checkpoint(setup, 1))
    save_checkpoint(tmp_path, make_inside(setup, 2, 3))
    assert load_newest_checkpoint(tmp_path, spec=setup.spec, recorded_epochs=1).step == 7
    (checkpoint_folders(tmp_path)[-1] / file).unlink()
    found = load_newest_checkpoint(tmp_path, spec=setup.spec, recorded_epochs=1)
    assert_same(found, make_checkpoint(setup, 1))


def test_another_model_is_refused(setup, tmp_path):
    save_checkpoint(tmp_path, make_checkpoint(setup, 1))
    other = model_spec("mlp", input_shape=setup.spec.input_shape, outputs=7)
    with pytest.raises(UserError, match=r"do not belong to mlp.*fc2.weight should have shape \(7, 192\)"):
        load_newest_checkpoint(tmp_path, spec=other)


def test_the_progress_of_each_rank_inside_an_epoch_is_read_bit_for_bit(setup, tmp_path):
    save_checkpoint(tmp_path, make_checkpoint(setup, 1))
    save_checkpoint(tmp_path, make_inside(setup, 2, 3))
    assert names(tmp_path) == ["epoch-0001", "epoch-0002-step-000003"]
    found = load_newest_checkpoint(tmp_path, spec=setup.spec, recorded_epochs=1)
    assert (found.epoch, found.step) == (1, 7)
    assert_same(found, make_inside(setup, 2, 3))


def test_the_end_of_an_epoch_comes_after_all_inside_it(setup, tmp_path):
    for checkpoint in (make_inside(setup, 3, 2), make_checkpoint(setup, 2), make_checkpoint(setup, 3)):
        save_checkpoint(tmp_path, checkpoint)
    assert names(tmp_path) == ["epoch-0002", "epoch-0003-step-000002", "epoch-0003"]
    for recorded, newest in [(2, "epoch-0003-step-000002"), (3, "epoch-0003")]:
        found = load_newest_checkpoint(tmp_path, spec=setup.spec, recorded_epochs=recorded)
        assert found.name == newest


def test_one_inside_an_epoch_replaces_earlier_ones_but_no_finished_epoch(setup, tmp_path):
    for epoch in (1, 2):
        save_checkpoint(tmp_path, make_checkpoint(setup, epoch))
    for step in (1, 3, 10):
        save_checkpoint(tmp_path, make_inside(setup, 3, step))
    assert names(tmp_path) == ["epoch-0001", "epoch-0002", "epoch-0003-step-000010"]


@pytest.mark.parametrize(("keep", "kept"), [(0, [1, 2, 3]), (1, [3]), (2, [2, 3])])
def test_a_finished_epoch_removes_the_checkpoints_inside_it(keep, kept, setup, tmp_path):
    for epoch in (1, 2, 3):
        save_checkpoint(tmp_path, make_inside(setup, epoch, 2))
        save_checkpoint(tmp_path, make_checkpoint(setup, epoch))
        assert f"epoch-{epoch:04d}-step-000002" in names(tmp_path), "its epoch is not on record yet"
        remove_old_checkpoints(tmp_path, keep=keep)
    assert names(tmp_path) == [f"epoch-{epoch:04d}" for epoch in kept]


def test_checkpoints_inside_the_current_epoch_are_kept(setup, tmp_path):
    remove_old_checkpoints(tmp_path, keep=1)
    save_checkpoint(tmp_path, make_inside(setup, 1, 2))
    remove_old_checkpoints(tmp_path, keep=1)
    assert names(tmp_path) == ["epoch-0001-step-000002"]


def test_the_rest_of_a_killed_write_is_removed_by_the_next(setup, tmp_path):
    save_checkpoint(tmp_path, make_inside(setup, 1, 1))
    rest = tmp_path / "checkpoints" / ".epoch-0001-step-000002"
    rest.mkdir()
    (rest / "weights.safetensors").write_bytes(b"half")
    save_checkpoint(tmp_path, make_inside(setup, 1, 3))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["epoch-0001-step-000003"]
