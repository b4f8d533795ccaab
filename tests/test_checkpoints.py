"""Checkpoints: whole or not there, the newest kept, damage and other models in one line."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from example_runs import make_config, make_experiment, random_weights

from common import checkpoints
from common.checkpoints import Checkpoint, checkpoint_folders, load_newest_checkpoint, save_checkpoint
from common.errors import UserError
from common.experiment import Experiment
from common.model_specs import model_spec


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return make_experiment(make_config(tmp_path_factory.mktemp("runs")))


def make_checkpoint(experiment: Experiment, epoch: int) -> Checkpoint:
    weights = random_weights(experiment, seed=epoch)
    state = {f"{name}.momentum_buffer": -array for name, array in weights.items()}
    return Checkpoint(epoch, 4 * epoch, weights, {**state, "fc1.weight.step": np.array(4.0 * epoch)})


def names(run: Path) -> list[str]:
    return [folder.name for folder in checkpoint_folders(run)]


def assert_same(one: Checkpoint, other: Checkpoint) -> None:
    assert (one.epoch, one.step) == (other.epoch, other.step)
    for mine, theirs in [(one.weights, other.weights), (one.optimizer_state, other.optimizer_state)]:
        assert mine.keys() == theirs.keys()
        assert all(mine[name].tobytes() == theirs[name].tobytes() for name in mine)


def test_the_newest_is_given_back_bit_for_bit(experiment: Experiment, tmp_path: Path) -> None:
    for epoch in (1, 2):
        save_checkpoint(tmp_path, make_checkpoint(experiment, epoch), keep=0)
    assert_same(load_newest_checkpoint(tmp_path, spec=experiment.spec), make_checkpoint(experiment, 2))
    assert sorted(path.name for path in checkpoint_folders(tmp_path)[-1].iterdir()) == [
        "optimizer.safetensors",
        "state.json",
        "weights.safetensors",
    ]


@pytest.mark.parametrize(("keep", "kept"), [(0, [1, 2, 3, 4]), (1, [4]), (3, [2, 3, 4]), (9, [1, 2, 3, 4])])
def test_keep(keep: int, kept: list[int], experiment: Experiment, tmp_path: Path) -> None:
    for epoch in (1, 2, 3, 4):
        save_checkpoint(tmp_path, make_checkpoint(experiment, epoch), keep=keep)
    assert names(tmp_path) == [f"epoch-{epoch:04d}" for epoch in kept]


def test_the_order_is_that_of_numbers(experiment: Experiment, tmp_path: Path) -> None:
    for epoch in (9_999, 10_000):
        save_checkpoint(tmp_path, make_checkpoint(experiment, epoch), keep=1)
    assert names(tmp_path) == ["epoch-10000"]
    (tmp_path / "checkpoints" / "epoch-0001.bak").mkdir()
    assert load_newest_checkpoint(tmp_path, spec=experiment.spec).epoch == 10_000


def test_an_epoch_that_was_done_before_is_replaced(experiment: Experiment, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make_checkpoint(experiment, 1), keep=1)
    other = Checkpoint(1, 4, random_weights(experiment, seed=99), {})
    save_checkpoint(tmp_path, other, keep=1)
    assert_same(load_newest_checkpoint(tmp_path, spec=experiment.spec), other)


@pytest.mark.parametrize("interrupted_at", ["save_weights", "write_atomically", "_sync_folder"])
def test_an_interrupted_write_leaves_the_old_one(
    interrupted_at: str, experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, make_checkpoint(experiment, 1), keep=1)

    def interrupt(*args: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, interrupted_at, interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, make_checkpoint(experiment, 2), keep=1)
    monkeypatch.undo()
    assert "epoch-0001" in names(tmp_path)
    assert not list((tmp_path / "checkpoints").glob(".*"))
    newest = load_newest_checkpoint(tmp_path, spec=experiment.spec)
    assert_same(newest, make_checkpoint(experiment, newest.epoch))


def test_a_killed_write_is_not_taken_for_a_checkpoint(experiment: Experiment, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make_checkpoint(experiment, 1), keep=1)
    rest = tmp_path / "checkpoints" / ".epoch-0002"
    rest.mkdir()
    (rest / "weights.safetensors").write_bytes(b"half")
    assert load_newest_checkpoint(tmp_path, spec=experiment.spec).epoch == 1
    save_checkpoint(tmp_path, make_checkpoint(experiment, 2), keep=1)
    assert names(tmp_path) == ["epoch-0002"] and not rest.exists()
    assert_same(load_newest_checkpoint(tmp_path, spec=experiment.spec), make_checkpoint(experiment, 2))


def test_none_is_one_line(experiment: Experiment, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"no checkpoint.*Received: {tmp_path}"):
        load_newest_checkpoint(tmp_path, spec=experiment.spec)


@pytest.mark.parametrize("file", ["weights.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "noise"])
def test_damage_is_one_line(file: str, damage: str, experiment: Experiment, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make_checkpoint(experiment, 1), keep=1)
    path = checkpoint_folders(tmp_path)[0] / file
    content = {"missing": None, "cut": path.read_bytes()[:-3], "noise": os.urandom(50)}[damage]
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match="Received") as error:
        load_newest_checkpoint(tmp_path, spec=experiment.spec)
    assert str(path.parent) in str(error.value) and "\n" not in str(error.value)
    # The advice works: without the damaged one the one before is found.
    shutil.rmtree(path.parent)
    save_checkpoint(tmp_path, make_checkpoint(experiment, 1), keep=1)
    load_newest_checkpoint(tmp_path, spec=experiment.spec)


def test_another_model_is_refused(experiment: Experiment, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make_checkpoint(experiment, 1), keep=1)
    other = model_spec("mlp", input_shape=experiment.spec.input_shape, outputs=7)
    with pytest.raises(UserError, match=r"another model than mlp.*fc2.weight should have shape \(7, 192\)"):
        load_newest_checkpoint(tmp_path, spec=other)
