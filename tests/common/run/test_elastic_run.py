"""The run folder of an elastic run: another rank goes on with it, and what was lost is in the record."""

import gc
import threading
import time
import weakref
from dataclasses import replace

import pytest
from builders import make_config, make_task, random_weights
from fake_ranks import alone, run_ranks
from played_run import LostRankError, Played, PlayedRun, device_of

from analysis.runs.labels import onednn_in_force
from common.distributed.communicator import Communicator
from common.distributed.console import Console
from common.errors import UserError
from common.run.elastic import Elastic
from common.run_folder.checkpoints import Checkpoint, checkpoint_folders
from common.run_folder.records import now, read_run
from common.run_folder.world_changes import WorldChange

SCALED = {"lr_scaling": "linear"}
COUNTS = {"step": 10, "ranks_before": 2, "ranks_after": 1, "lost_steps": 3}
SECONDS = {"detect_seconds": 0.5, "agree_seconds": 0.25, "resume_seconds": 0.25}
CHANGE = WorldChange(at=now(), cause="a rank ended", ended=["node1, process 5"], joined=[], **COUNTS, **SECONDS)


def elastic(tmp_path):
    config = make_config(tmp_path, schedule=SCALED, faults={"elastic": True}, training={"epochs": 4})
    return Played(config, alone(), elastic=Elastic(size=1))


def test_time_that_was_lost_is_that_of_the_epoch_or_of_the_test(tmp_path):
    played = elastic(tmp_path)
    kept = played.run.elastic
    assert kept.commit.step == 0
    kept._lost_seconds = 7.0
    for epoch in (1, 2, 3, 4):
        played.end_epoch(epoch, training_seconds=2.0)
        assert kept.commit.step == played.task.steps_after(epoch), "each end of an epoch is kept in memory"
    kept._lost_seconds = 7.0
    played.finish(seconds=0.5)
    run = read_run(tmp_path / "run")
    assert [epoch.training_seconds for epoch in run.epochs] == [9.0, 2.0, 2.0, 2.0]
    assert run.record.totals.test_seconds == 7.5
    assert (kept.commit.folder, kept.commit.first_copies) == (tmp_path / "run", 1)


def test_an_older_checkpoint_is_there_until_the_state_after_it_is_kept(tmp_path, monkeypatch):
    """Else a rank that is lost between the two leaves no checkpoint that the record goes with."""
    played = elastic(tmp_path)
    played.end_epoch(1)

    def lost(made):
        raise LostRankError

    monkeypatch.setattr(played.run.elastic, "_keep", lost)
    with pytest.raises(LostRankError):
        played.end_epoch(2)
    assert [folder.name for folder in checkpoint_folders(tmp_path / "run")] == ["epoch-0001", "epoch-0002"]


def test_onednn_of_ranks_that_came_later_is_in_the_record(tmp_path, capsys):
    first = elastic(tmp_path)
    first.end_epoch(1)
    first.run.recorder.release()
    capsys.readouterr()
    kept = Elastic(size=1)
    checkpoint = Checkpoint(1, first.task.steps_after(1), {}, {})
    kept.commit = replace(first.run.elastic.commit, checkpoint=checkpoint, made_at=time.time())
    second = Played(first.task.config, alone(), elastic=kept, onednn=False)
    assert "this build of the framework has no oneDNN" in capsys.readouterr().out
    second.run.elastic._report(CHANGE)
    record = read_run(tmp_path / "run").record
    assert (record.world.onednn, record.elastic.changes) == (["on"], [replace(CHANGE, onednn=["off"])])
    assert onednn_in_force(record) == "on and off"


def test_a_rank_that_ends_while_the_folder_is_opened_ends_no_run(tmp_path):
    config = make_config(tmp_path, faults={"elastic": True}, training={"batch_size": 4})
    is_lost = threading.Event()

    def allgather(value):
        if (tmp_path / "run").exists() and not is_lost.is_set():
            is_lost.set()
            raise LostRankError
        return [value]

    comm = Communicator(rank=0, size=1, local_rank=0, local_size=1, controller="none", allgather=allgather)
    run = PlayedRun(framework="torch", comm=comm, console=Console(comm, progress="lines"), elastic=Elastic(size=2))
    with pytest.raises(LostRankError):
        run.open(make_task(config, size=2, first_copies=run.first_copies(config)), device_of())
    run.rejoined(alone())
    task = make_task(config, size=1, first_copies=run.first_copies(config))
    run.open(task, device_of())
    assert (task.first_copies, task.samples_per_update, run.checkpoint) == (2, 8, None)
    assert read_run(tmp_path / "run").record.status.state == "running"


def test_a_process_that_leaves_lets_go_of_the_model(tmp_path):
    played = elastic(tmp_path)
    model, run = weakref.ref(played.strategy), played.run
    run.elastic._epoch = None  # as `Elastic.run` does
    del played
    run.leave()
    gc.collect()
    assert model() is None


def test_any_number_of_ranks_resumes_with_the_global_batch_of_the_first(tmp_path):
    first = elastic(tmp_path)
    first.end_epoch(1)
    first.run.recorder.add_change(CHANGE)
    first.end("interrupted")
    whole, rates = first.task.samples_per_update, first.task.scaled_learning_rates()
    config = replace(first.task.config, record=replace(first.task.config.record, resume=str(tmp_path / "run")))

    def resume(comm):
        played = Played(config, comm, elastic=Elastic(size=comm.size))
        task = played.task
        played.end_epoch(2, weights=random_weights(task, seed=2))
        assert (played.done, task.samples_per_update) == (1, whole)
        assert task.scaled_learning_rates().tolist() == rates.tolist()
        return task.shares[comm.rank].samples

    images = run_ranks(3, resume)
    assert sum(images) == whole and max(images) - min(images) <= 1
    record = read_run(tmp_path / "run").record
    assert (record.world.size, record.elastic.changes) == (1, [CHANGE])


def test_more_ranks_than_images_are_one_line(tmp_path):
    config = make_config(tmp_path, faults={"elastic": True}, training={"batch_size": 2})
    with pytest.raises(UserError, match="every rank needs an image in each update"):
        make_task(config, size=3, first_copies=1)
