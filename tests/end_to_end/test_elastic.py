"""Elastic runs, 1 -> 2 -> 1 ranks: a rank joins, then the first is killed (PyTorch) or stopped, so that its watcher
kills it (Keras); they equal one process to rounding.

Each framework has one start of horovodrun and one of a process alone.
"""

import json
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from processes import BIN, TESTS, run_command, train_command

from common.model.weights import load_weights
from common.run_folder.records import WEIGHTS_FILE, Hashes, Run, read_run
from launch.starting.elastic import ElasticStart, aliases_of_this_host
from launch.starting.launchers import launcher_at

pytestmark = [pytest.mark.ranks, pytest.mark.ci]

TOLERANCE = 1e-10
SIGNALS = {"torch": "SIGKILL", "keras": "SIGSTOP"}
SETTINGS = ["--dataset", "synthetic:1200x28x28x1x10", "--model", "mlp", "--dtype", "float64", "--no-dropout"]
SETTINGS += ["--epochs", "5", "--steps-per-epoch", "12", "--batch-size", "61", "--threads", "1", "--momentum", "0.9"]
SETTINGS += ["--validation-share", "0.1"]


@dataclass(frozen=True)
class Runs:
    """The elastic run and the one of a process alone."""

    elastic: Run
    alone: Run
    printed: str


@pytest.fixture(scope="module", params=["torch", "keras"])
def runs(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"elastic_{request.param}")
    launcher = launcher_at(None, hosts=None)
    start = ElasticStart(launcher=launcher, np=1, least=1, most=2, folder=folder)
    start.write_files()
    events = folder / "events.json"
    second = aliases_of_this_host(2)[1]
    events.write_text(
        json.dumps(
            [
                {"epoch": 2, "update": 4, "add": second, "hosts": str(start.hosts_file)},
                {"epoch": 4, "update": 4, "signal": SIGNALS[request.param], "after": 3, "rank": 0},
            ]
        )
    )
    variables = [f"{name}={value}" for name, value in start.variables.items()]
    worker = [sys.executable, str(TESTS / "elastic_worker.py"), request.param, str(events)]
    words = [str(BIN / "horovodrun"), *start.words()[1:], *worker, *SETTINGS]
    elastic = run_command(
        ["env", *variables, *words, "--elastic", "--commit-steps", "4", "--stall-seconds", "5", "--name", "elastic"],
        folder=folder,
    )
    assert elastic.code == 0, elastic.stdout[-3000:] + elastic.stderr[-3000:]
    alone = run_command(train_command(request.param, [*SETTINGS, "--name", "alone"]), folder=folder)
    assert alone.code == 0, alone.stderr
    return Runs(read_run(folder / "runs" / "elastic"), read_run(folder / "runs" / "alone"), elastic.stdout)


def test_the_run_equals_that_of_one_process(runs):
    weights, alone = (load_weights(run.folder / WEIGHTS_FILE) for run in (runs.elastic, runs.alone))
    assert weights.keys() == alone.keys()
    for name, array in alone.items():
        assert np.abs(weights[name] - array).max() <= TOLERANCE * np.abs(array).max(), name
    assert len(runs.elastic.epochs) == len(runs.alone.epochs) == 5
    for epoch, other in zip(runs.elastic.epochs, runs.alone.epochs, strict=True):
        assert epoch.training_loss == pytest.approx(other.training_loss, rel=TOLERANCE)
        assert epoch.validation_loss == pytest.approx(other.validation_loss, rel=TOLERANCE)
        assert (epoch.training_accuracy, epoch.learning_rate) == (other.training_accuracy, other.learning_rate)
    hashes = runs.elastic.record.hashes, runs.alone.record.hashes
    assert all(isinstance(one, Hashes) and one.initial_weights != one.final_weights for one in hashes)


def test_the_record_says_who_came_and_went(runs):
    record = runs.elastic.record
    joined, ended = record.elastic.changes
    assert (joined.cause, joined.ranks_before, joined.ranks_after, joined.lost_steps) == ("the hosts changed", 1, 2, 0)
    assert (len(joined.joined), joined.ended) == (1, [])
    assert (ended.cause, ended.ranks_before, ended.ranks_after) == ("a rank ended", 2, 1)
    assert ended.joined == []
    assert len(ended.ended) == 1
    # The hosts were seen to change in the commit after update 4 of epoch 2; the kill came in the 4 updates after it.
    assert joined.step == 12 + 8
    assert ended.step in (36 + 4, 36 + 8)
    assert 0 <= ended.lost_steps <= 4
    assert record.elastic.commits > 0
    assert record.elastic.lost_seconds > 0
    assert record.data.global_batch_size == 61
    assert runs.alone.record.elastic is None


def test_the_rank_that_is_left_writes_the_record(runs):
    assert runs.elastic.state == "finished"
    first = runs.elastic.record.elastic
    (killed,) = first.changes[1].ended
    assert killed.endswith(f"process {runs.elastic.record.status.process}") is False
    assert "1 rank before, 2 now" in runs.printed
    assert "2 ranks before, 1 now" in runs.printed
