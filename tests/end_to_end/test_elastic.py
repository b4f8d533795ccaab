"""Elastic runs, 1 -> 2 -> 1 ranks: a rank joins, then the first is killed (PyTorch) or stopped, so that its watcher
kills it (Keras); they equal one process to rounding.
"""

import json
import sys

import pytest
from jobs import Jobs, relative_difference, train
from processes import BIN, TESTS, run_command

from common.model.weights import load_weights
from common.run_folder.records import WEIGHTS_FILE, read_run
from launch.starting.elastic import ElasticStart, aliases_of_this_host
from launch.starting.launchers import launcher_at

pytestmark = [pytest.mark.ranks, pytest.mark.ci]

TOLERANCE = 1e-10
SIGNALS = {"torch": "SIGKILL", "keras": "SIGSTOP"}
SETTINGS = ["--dataset", "synthetic:1200x28x28x1x10", "--model", "mlp", "--dtype", "float64", "--no-dropout"]
SETTINGS += ["--epochs", "5", "--steps-per-epoch", "12", "--batch-size", "61", "--threads", "1", "--momentum", "0.9"]
SETTINGS += ["--validation-share", "0.1"]


@pytest.fixture(scope="module", params=["torch", "keras"])
def runs(request, tmp_path_factory):
    """The elastic run, the one of a process alone, and what the first printed."""
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
    alone = Jobs(folder, [train("alone", *SETTINGS, launcher="none")]).run(request.param, "alone")
    return read_run(folder / "runs" / "elastic"), alone, elastic.stdout


def test_the_run_equals_that_of_one_process(runs):
    elastic, alone, _ = runs
    weights, expected = (load_weights(run.folder / WEIGHTS_FILE) for run in (elastic, alone))
    assert weights.keys() == expected.keys()
    assert max(relative_difference(weights[name], array) for name, array in expected.items()) <= TOLERANCE
    assert len(elastic.epochs) == len(alone.epochs) == 5
    for epoch, other in zip(elastic.epochs, alone.epochs, strict=True):
        assert epoch.training_loss == pytest.approx(other.training_loss, rel=TOLERANCE)
        assert epoch.validation_loss == pytest.approx(other.validation_loss, rel=TOLERANCE)
        assert (epoch.training_accuracy, epoch.learning_rate) == (other.training_accuracy, other.learning_rate)
    assert all(run.record.hashes.initial_weights != run.record.hashes.final_weights for run in (elastic, alone))


def test_every_set_of_ranks_rehearses_before_it_goes_on(runs):
    _, _, printed = runs
    noted = [line.partition("noted: ")[2] for line in printed.splitlines() if "noted: " in line]
    # The first rank alone; it and the second; the second alone.
    assert [noted.count(words) for words in ("all tensors moved", "nothing is left of it")] == [4, 4]
    assert not {"something is left of it", "not all tensors moved"} & set(noted)


def test_the_rank_that_is_left_records_who_came_and_went(runs):
    run, alone, printed = runs
    record, changes = run.record, run.record.elastic.changes
    joined, ended = changes
    assert (joined.cause, joined.ranks_before, joined.ranks_after, joined.lost_steps) == ("the hosts changed", 1, 2, 0)
    assert [(len(change.joined), len(change.ended)) for change in changes] == [(1, 0), (0, 1)]
    assert (ended.cause, ended.ranks_before, ended.ranks_after) == ("a rank ended", 2, 1)
    # The hosts were seen to change in the commit after update 4 of epoch 2; the kill came in the 4 updates after it.
    assert joined.step == 12 + 8
    assert ended.step in (36 + 4, 36 + 8)
    assert 0 <= ended.lost_steps <= 4
    assert record.elastic.commits > 0 and record.elastic.lost_seconds > 0
    assert record.data.global_batch_size == 61
    assert run.state == "finished" and not ended.ended[0].endswith(f"process {record.status.process}")
    assert "1 rank before, 2 now" in printed and "2 ranks before, 1 now" in printed
    assert alone.record.elastic is None
