"""Checkpoints: ranks agree when, checkpoints hold what each has, their time is counted apart."""

import numpy as np
import pytest
from builders import forget_hashes, make_config, make_task, random_weights
from fake_ranks import alone, run_ranks
from played_run import FakeStrategy, Played

from common.errors import UserError
from common.model.weights import save_weights, weights_hash
from common.run import checkpoints as checkpoints_module
from common.run.checkpoints import Schedule, inside
from common.run_folder.checkpoints import checkpoint_folders, load_newest_checkpoint
from common.run_folder.records import read_run

OFTEN = {"checkpoint_minutes": 1e-9}


def start(config, comm, **changes):
    """Start a run whose weights are those of the other ranks but for `changes`,."""
    strategy = FakeStrategy({}, state={"losses_of_places": np.full(2, comm.rank + 0.5)})
    played = Played(config, comm, strategy=strategy)
    strategy.own_weights = {**random_weights(played.task), **changes}
    return played


def config_of(folder, **record):
    """Return settings for epochs of 4 steps on 2 ranks."""
    return make_config(folder, training={"batch_size": 15}, record={"name": "run", **record})


def test_all_ranks_stand_still_with_the_first_and_a_checkpoint_holds_what_each_has(tmp_path):
    config = config_of(tmp_path, **OFTEN)

    def work(comm):
        played = start(config, comm)
        if comm.rank:
            played.run._checkpoints._schedule = Schedule(1e9)  # by its own clock it would write none
        played.epoch.seconds = 10.0 * comm.rank
        return played.train()

    assert run_ranks(2, work) == [[1, 1, 1, 1]] * 2
    (folder,) = checkpoint_folders(tmp_path / "run")
    assert folder.name == "epoch-0001-step-000003"
    spec = make_task(config, size=2).spec
    newest = load_newest_checkpoint(tmp_path / "run", spec=spec, recorded_epochs=0)
    assert (newest.epoch, newest.step) == (0, 3)
    assert [rank.steps for rank in newest.ranks] == [3, 3]
    assert [round(rank.training_seconds, 1) for rank in newest.ranks] == [0.0, 10.0]
    assert [rank.state["losses_of_places"].tolist() for rank in newest.ranks] == [[0.5, 0.5], [1.5, 1.5]]


def test_time_between_updates_counts_as_time_of_checkpoints_once(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoints_module.time, "perf_counter", lambda: now[0])
    save = checkpoints_module.save_checkpoint

    def save_slowly(*arguments, **options):
        now[0] += 10.0
        return save(*arguments, **options)

    monkeypatch.setattr(checkpoints_module, "save_checkpoint", save_slowly)
    played = start(config_of(tmp_path, **OFTEN), alone())
    for epoch in (1, 2):
        assert played.train() == [1] * 8
        played.end_epoch(epoch)
    run = read_run(tmp_path / "run")
    assert [epoch.checkpoint_seconds for epoch in run.epochs] == [80.0, 80.0]  # 7 inside, and the last
    assert [folder.name for folder in checkpoint_folders(run.folder)] == ["epoch-0002"]
    played.train()
    newest = load_newest_checkpoint(run.folder, spec=played.task.spec)
    assert newest.checkpoint_seconds == 60.0, "before its own"


def test_a_checkpoint_inside_an_epoch_of_an_older_version_is_refused(tmp_path):
    played = start(config_of(tmp_path, **OFTEN), alone())
    played.train()
    played.end("interrupted")
    file = checkpoint_folders(tmp_path / "run")[-1] / "ranks.safetensors"
    save_weights(file, {"0.state.metric0": np.zeros(1)})
    forget_hashes(file.parent)
    with pytest.raises(UserError, match="written by an older version") as error:
        start(config_of(tmp_path, resume=str(tmp_path / "run")), alone())
    assert "\n" not in str(error.value) and file.parent.name in str(error.value)


def test_what_ranks_keep_in_memory_is_the_same_and_has_the_statistics_of_each(tmp_path):
    """Whichever ranks go on start from the same weights, and each with its own statistics of BatchNorm."""
    config = config_of(tmp_path)

    def work(comm):
        played = start(config, comm, **{"bn.running_mean": np.full(1, comm.rank)})
        return inside(played.epoch, comm=comm, seconds=0.0, in_memory=True)

    first, second = run_ranks(2, work)
    assert weights_hash(first.weights) == weights_hash(second.weights)
    assert [rank.weights["bn.running_mean"].tolist() for rank in second.ranks] == [[0], [1]]


@pytest.mark.parametrize(("record", "when"), [({}, "after epoch 1"), (OFTEN, "after step 1 of epoch 1")])
def test_weights_that_differ_stop_all_ranks_before_anything_is_written(record, when, tmp_path):
    config = config_of(tmp_path, **record)

    def work(comm):
        bias = random_weights(make_task(config, size=2))["fc2.bias"]
        played = start(config, comm, **{"fc2.bias": np.nextafter(bias, 9) if comm.rank else bias})
        played.train()
        played.end_epoch(1, weights=played.strategy.own_weights)

    for error in run_ranks(2, work):
        assert isinstance(error, UserError) and f"{when}: 1 of 4 tensors differ, the first is fc2.bias" in str(error)
    assert read_run(tmp_path / "run").epochs == [] and checkpoint_folders(tmp_path / "run") == []
