"""The checkpointer: ranks agree on segments, checkpoints hold what each has, their time is counted apart."""

import numpy as np
import pytest
from builders import forget_hashes, make_config, make_task, random_weights
from fake_ranks import alone, run_ranks
from played_session import FakeTrainer, Played

from common.errors import UserError
from common.model.weights import save_weights
from common.run import checkpointer as checkpointer_module
from common.run.checkpoint_schedule import CheckpointSchedule
from common.run_folder.checkpoints import PartialEpoch, checkpoint_folders, load_newest_checkpoint
from common.run_folder.records import read_run

OFTEN = {"checkpoint_minutes": 1e-9}


class Trainer(FakeTrainer):
    """A trainer of one rank that counts its steps."""

    def __init__(self, played, weights):
        super().__init__(weights)
        self.played = played

    @property
    def steps_left(self):
        """Updates of the epoch that remain."""
        return self.played.task.steps_of_epoch(self.epoch) - self.steps

    def train_epoch(self, epoch):
        """Train an epoch as `train.py` does; return its segments."""
        self.epoch, self.steps, segments = epoch, 0, []
        while self.steps_left:
            segments.append(self.played.checkpointer.next_segment(self.steps_left))
            self.steps += segments[-1]
            self.played.checkpointer.save_if_due(self)
        return segments

    def partial_epoch(self):
        """Return what this rank alone has."""
        rank = self.played.comm.rank
        state = {"losses_of_places": np.full(2, rank + 0.5)}
        return PartialEpoch(steps=self.steps, training_seconds=10.0 * rank + self.steps, state=state)


def start(config, comm, **changes):
    """Start a session, and a trainer whose weights are those of the other ranks but for `changes`."""
    played = Played(config, comm)
    return Trainer(played, {**random_weights(played.task), **changes})


def config_of(folder, **record):
    """Return settings for epochs of 4 steps on 2 ranks."""
    return make_config(folder, training={"batch_size": 15}, record={"name": "run", **record})


def test_all_ranks_train_the_segments_of_the_first_and_a_checkpoint_holds_what_each_has(tmp_path):
    config = config_of(tmp_path, **OFTEN)

    def work(comm):
        trainer = start(config, comm)
        if comm.rank:
            trainer.played.checkpointer._schedule = CheckpointSchedule(1e9)  # by its own clock it would write none
        return trainer.train_epoch(1)

    assert run_ranks(2, work) == [[1, 1, 1, 1]] * 2
    (folder,) = checkpoint_folders(tmp_path / "run")
    assert folder.name == "epoch-0001-step-000003"
    spec = make_task(config, size=2).spec
    newest = load_newest_checkpoint(tmp_path / "run", spec=spec, recorded_epochs=0)
    assert (newest.epoch, newest.step) == (0, 3)
    assert [rank.steps for rank in newest.ranks] == [3, 3]
    assert [rank.training_seconds for rank in newest.ranks] == [3.0, 13.0]
    assert [rank.state["losses_of_places"].tolist() for rank in newest.ranks] == [[0.5, 0.5], [1.5, 1.5]]


def test_time_between_segments_counts_as_time_of_checkpoints_once(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpointer_module.time, "perf_counter", lambda: now[0])
    save = checkpointer_module.save_checkpoint

    def save_slowly(*arguments, **options):
        now[0] += 10.0
        return save(*arguments, **options)

    monkeypatch.setattr(checkpointer_module, "save_checkpoint", save_slowly)
    trainer = start(config_of(tmp_path, **OFTEN), alone())
    for epoch in (1, 2):
        assert trainer.train_epoch(epoch) == [1] * 8
        trainer.played.end_epoch(epoch, weights=trainer.state.weights)
    run = read_run(tmp_path / "run")
    assert [epoch.checkpoint_seconds for epoch in run.epochs] == [80.0, 80.0]  # 7 inside, and the last
    assert [folder.name for folder in checkpoint_folders(run.folder)] == ["epoch-0002"]
    trainer.train_epoch(3)
    newest = load_newest_checkpoint(run.folder, spec=trainer.played.task.spec)
    assert newest.checkpoint_seconds == 60.0, "before its own"


def test_a_checkpoint_inside_an_epoch_of_an_older_version_is_refused(tmp_path):
    trainer = start(config_of(tmp_path, **OFTEN), alone())
    trainer.train_epoch(1)
    trainer.played.end("interrupted")
    file = checkpoint_folders(tmp_path / "run")[-1] / "ranks.safetensors"
    save_weights(file, {"0.state.metric0": np.zeros(1)})
    forget_hashes(file.parent)
    with pytest.raises(UserError, match="written by an older version") as error:
        start(config_of(tmp_path, resume=str(tmp_path / "run")), alone())
    assert "\n" not in str(error.value) and file.parent.name in str(error.value)


@pytest.mark.parametrize(("record", "when"), [({}, "after epoch 1"), (OFTEN, "after step 1 of epoch 1")])
def test_weights_that_differ_stop_all_ranks_before_anything_is_written(record, when, tmp_path):
    config = config_of(tmp_path, **record)

    def work(comm):
        bias = random_weights(make_task(config, size=2))["fc2.bias"]
        trainer = start(config, comm, **{"fc2.bias": np.nextafter(bias, 9) if comm.rank else bias})
        trainer.train_epoch(1)
        trainer.played.end_epoch(1, weights=trainer.state.weights)

    for error in run_ranks(2, work):
        assert isinstance(error, UserError) and f"{when}: 1 of 4 tensors differ, the first is fc2.bias" in str(error)
    assert read_run(tmp_path / "run").epochs == [] and checkpoint_folders(tmp_path / "run") == []
