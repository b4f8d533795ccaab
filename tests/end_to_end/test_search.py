"""Searches with trainers, as users start them: both frameworks, pruning, an interruption, the recipe of the best."""

import re
import signal
import sys
from pathlib import Path

import pytest
from jobs import Jobs, train
from made_trials import write_search_file
from optuna.trial import create_trial
from processes import epochs_of, finish, run_command, start_command
from waiting import wait_until

from common.run_folder.records import read_run
from common.run_folder.search_record import read_search
from launch.search.sampling import distributions_of
from launch.search.search_file import read_search_file
from launch.search.studies import Studies

FAST = "3\nsteps_per_epoch = 2\nthreads = 1\nkeep = 0"
LONG = "4000\nthreads = 1\nkeep = 0"  # ended by the test, or by the pruner


def write_file(folder, epochs, *, trials, frameworks='["torch"]', sampler="tpe"):
    write_search_file(folder, sampler=sampler, epochs=epochs, trials=trials, framework=frameworks)


def start(folder, *more):
    return start_command([sys.executable, "-m", "launch", "search", "made.toml", *more], folder=folder)


def start_long(folder):
    """Start a search of one trial that does not end; return it and the trainer's process once it has an epoch."""
    write_file(folder, LONG, trials=1)
    process, run = start(folder), folder / "runs/made/torch-t0"
    wait_until(lambda: epochs_of(run), process=process)
    return process, Path(f"/proc/{read_run(run).record.status.process}")


def search(folder, *more):
    return finish(start(folder, *more), within_seconds=300)


def trials_of(folder):
    return read_search(folder / "runs/made").trials


@pytest.mark.ranks
@pytest.mark.ci
def test_both_frameworks_train_at_the_same_points_and_the_best_one_becomes_a_recipe(tmp_path):
    write_file(tmp_path, FAST, trials=2, frameworks='["torch", "keras"]', sampler="random")
    done = search(tmp_path, "--at-once", "2")
    assert done.code == 0, done
    trials = trials_of(tmp_path)
    assert sorted((trial.run, trial.state) for trial in trials) == [
        (f"{framework}-t{number}", "finished") for framework in ("keras", "torch") for number in (0, 1)
    ]
    points = {(trial.framework, trial.point): trial.params for trial in trials}
    assert [points["torch", number] for number in (0, 1)] == [points["keras", number] for number in (0, 1)]
    for number in (0, 1):
        hashes = {read_run(tmp_path / "runs/made" / f"{name}-t{number}").record.hashes for name in ("torch", "keras")}
        assert len({one.initial_weights for one in hashes}) == 1  # the same seed, too
    words = ["-m", "analysis", "hyperparameters", "runs/made", "--recipe-out", "best.toml", "--plots", "plots"]
    shown = run_command([sys.executable, *words], folder=tmp_path)
    assert shown.code == 0, shown
    best = re.search(r"has the settings of ((torch|keras)-t\d):", shown.stdout)
    assert best, shown
    recipe = ["--recipe", str(tmp_path / "best.toml"), "--threads", "1"]
    again = Jobs(tmp_path, [train("again", *recipe, launcher="none")]).run(best[2], "again")
    first = read_run(tmp_path / "runs/made" / best[1])
    assert again.record.hashes == first.record.hashes  # final weights included: the recipe is the whole training


@pytest.mark.ranks
def test_an_interrupted_search_ends_its_trainers(tmp_path):
    process, trainer = start_long(tmp_path)
    process.send_signal(signal.SIGINT)
    done = finish(process, within_seconds=60)
    assert done.code == 130, done
    assert done.stdout.splitlines()[-1] == "interrupted; resume with: python -m launch search made.toml"
    assert read_run(tmp_path / "runs/made/torch-t0").state == "interrupted" and not trainer.exists()
    (trial,) = trials_of(tmp_path)
    assert (trial.state, trial.reason) == ("failed", "interrupted")


@pytest.mark.ranks
@pytest.mark.ci
def test_a_killed_search_is_resumed_and_ends_what_it_left(tmp_path):
    """Its trainer lives on, and is ended by the next start, which makes the point again."""
    process, trainer = start_long(tmp_path)
    process.kill()
    process.communicate()
    assert trainer.exists()
    second = start(tmp_path)
    wait_until((tmp_path / "runs/made/torch-t1/epochs.jsonl").exists, process=second)
    assert not trainer.exists()
    second.send_signal(signal.SIGTERM)
    assert finish(second, within_seconds=60).code == 130
    first, again = trials_of(tmp_path)
    assert first.params == again.params
    assert first.reason.startswith("left by an interrupted command")


@pytest.mark.ranks
@pytest.mark.ci
def test_a_pruned_trial_ends_its_trainer_and_keeps_its_epochs(tmp_path):
    """Five trials that another tool has added are better than any can be."""
    write_file(tmp_path, LONG, trials='6\npruner = "median"')
    file = read_search_file(str(tmp_path / "made.toml"), runs_folder=tmp_path / "runs")
    file.folder.mkdir(parents=True)
    studies = Studies(file, worker=1)
    for point in range(5):
        studies.of["torch"].add_trial(
            create_trial(
                value=2.0,
                params={"learning_rate": 0.01, "momentum": 0.5},
                distributions=distributions_of(file.space),
                intermediate_values=dict.fromkeys(range(1, 100), 2.0),
                user_attrs={"point": point},
            )
        )
    done = search(tmp_path)
    assert done.code == 0, done
    assert "1 trial to do, 5 made" in done.stdout
    *others, pruned = trials_of(tmp_path)
    assert {trial.state for trial in others} == {"finished"}
    run = read_run(tmp_path / "runs/made/torch-t5")
    assert (run.state, run.record.status.message) == ("interrupted", "received SIGTERM")
    assert 0 < len(run.epochs) < 4000
    assert "torch-t5: pruned after epoch " in done.stdout
    assert (pruned.state, pruned.run) == ("pruned", "torch-t5")
    assert pruned.score in [epoch.validation_accuracy for epoch in run.epochs]
