"""Searches with made trials: the same points for both frameworks, resuming, pruning, several workers.

What may be wrong in a file is in `tests/refusals/launch-files.toml`.
"""

import itertools
import re
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path

import optuna
import pytest
from builders import make_record, make_status, write_run
from filelock import FileLock
from made_trials import made_run, write_search_file
from processes import call, finish, run_python, start_command

from common.run_folder.records import read_run
from common.run_folder.search_record import read_search
from launch import __main__ as launch
from launch.experiments.survey import survey_run
from launch.search.sampling import adaptive_sampler, fixed_points
from launch.search.search_file import Range, grid_size, read_search_file, steps_of
from launch.search.studies import Studies, open_storage

PAUSE = "launch.starting.lanes.POLL_SECONDS"
MAKE = "launch.search.trials.make_run"


@pytest.fixture(autouse=True)
def _trials_are_made(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PAUSE, 0.0)
    monkeypatch.setattr(MAKE, made_run)


def search(*words, code=0):
    return call(launch.main, "search", "made.toml", *words, code=code)


def search_file(**changes):
    return read_search_file(str(write_search_file(Path.cwd(), **changes)), runs_folder=Path("runs"))


def trials(**values):
    """Return the trials that are recorded, those with these values."""
    recorded = read_search(Path("runs/made")).trials
    return [trial for trial in recorded if all(getattr(trial, name) == value for name, value in values.items())]


def states():
    return Counter(trial.state for trial in trials())


def points_of(framework):
    return [trial.params for trial in sorted(trials(framework=framework), key=lambda trial: trial.point)]


def test_the_shipped_search_is_valid():
    file = read_search_file("search", runs_folder=Path("runs"))
    assert (file.keys.trials, file.frameworks, file.folder) == (20, ["torch", "keras"], Path("runs/search"))
    assert file.draws_once


def test_a_grid_has_the_choices_and_the_steps_of_its_axes():
    assert steps_of(Range(low=0.1, high=0.4, step=0.1)) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert steps_of(Range(low=1, high=6, step=2)) == [1, 3, 5]
    assert steps_of(Range(low=1, high=3)) == [1, 2, 3]
    assert grid_size(search_file(sampler="grid", learning_rate="{ low = 0.01, high = 0.03, step = 0.01 }")) == 9


@pytest.mark.parametrize(
    ("sampler", "changes"),
    [
        ("random", {}),
        pytest.param("quasi-random", {}, marks=pytest.mark.ci),
        pytest.param("grid", {"learning_rate": "[0.01, 0.02]"}, marks=pytest.mark.ci),
    ],
)
def test_points_are_drawn_once_for_both_frameworks(tmp_path, sampler, changes):
    search_file(sampler=sampler, **changes)
    search()
    assert points_of("torch") == points_of("keras")
    assert len({str(point) for point in points_of("torch")}) == 4
    for trial in trials():
        config = read_run(tmp_path / "runs/made" / str(trial.run)).record.config
        settings = {"learning_rate": config.optimizer.learning_rate, "momentum": config.optimizer.momentum}
        assert (trial.params, config.training.seed) == (settings, 1 + trial.point)


def test_more_trials_begin_with_the_points_of_fewer():
    for sampler in ("random", "quasi-random"):
        few, many = (fixed_points(search_file(sampler=sampler, trials=number)) for number in (4, 9))
        assert (len(many), many[:4]) == (9, few)
        values = sorted(float(point["learning_rate"]) for point in many)
        assert values[0] < 0.01 < values[-1]


def test_the_study_is_one_that_any_tool_of_optuna_reads():
    search_file(storage='"sqlite"')
    search()
    for framework in ("torch", "keras"):
        study = optuna.load_study(study_name=framework, storage="sqlite:///runs/made/study.db")
        assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 4
        assert study.best_trial.user_attrs["run"] == f"{framework}-t{study.best_trial.number}"
        assert study.best_value == max(trial.value for trial in study.trials)
        assert [len(trial.intermediate_values) for trial in study.trials] == [3] * 4


@pytest.mark.ci
def test_the_same_command_has_nothing_left_to_do():
    search_file()
    search()
    before = trials()
    assert search() == "nothing is left to do: 8 trials\n"
    assert trials() == before
    search_file(trials=5)  # more of the same search
    search()
    assert states() == {"finished": 10}
    write_search_file(Path.cwd(), momentum="[0.0, 0.6, 0.9]")
    changed = "the search was started with other settings. Received: space.momentum [0.0, 0.6, 0.9] instead of"
    assert changed in search(code=2)


@pytest.mark.ci
def test_points_drawn_in_one_order_are_not_continued_in_another():
    file = search_file(sampler="random")
    search()
    text = file.experiment.path.read_text()
    head, _, space = text.partition("[space]\n")
    first, second, *rest = space.splitlines(keepends=True)
    file.experiment.path.write_text(f"{head}[space]\n{second}{first}{''.join(rest)}")
    order = "Received: momentum, learning_rate in made.toml. Put them in the order learning_rate, momentum"
    assert order in search(code=2)


def failing(*errors):
    """Return a stand-in for `make_run` that fails with these errors at its first calls; None: it is interrupted."""
    left = [*errors]

    def run(plan, planned, *, lane, advance):
        if not left:
            return (yield from made_run(plan, planned, lane=lane, advance=advance))
        error = left.pop(0)
        if error is None:
            yield
            raise KeyboardInterrupt
        (plan.folder / "logs").mkdir(exist_ok=True)
        (plan.folder / "logs" / f"{planned.name}.log").write_text(f"train.py: error: {error}\n")
        return survey_run(plan, planned)

    return run


def test_failed_and_interrupted_trials_are_made_again_at_the_same_points(monkeypatch):
    search_file(sampler="tpe")
    with monkeypatch.context() as patch:
        patch.setattr(MAKE, failing("the disk is full", None))
        printed = search(code=130)
    assert "torch-t0: FAILED: train.py: error: the disk is full" in printed
    assert printed.splitlines()[-1] == "interrupted; resume with: python -m launch search made.toml"
    reasons = {trial.run: trial.reason for trial in trials(state="failed")}
    assert reasons == {"torch-t0": "train.py: error: the disk is full", "keras-t0": "interrupted"}
    search()
    assert states() == {"failed": 2, "finished": 8}
    for framework in ("torch", "keras"):
        first, again = trials(framework=framework, point=0)
        assert (first.state, again.run, again.state) == ("failed", f"{framework}-t4", "finished")
        assert first.params == again.params


def test_a_combination_that_is_no_setting_fails_its_trial_alone():
    """Each of both is valid with the first choice of the other."""
    momentum = "[0.5, 0.0]\nnesterov = [false, true]"
    search_file(sampler="grid", momentum=momentum, learning_rate="[0.01]")
    assert "2 trials failed; the same command makes them once more" in search(code=1)
    assert states() == {"finished": 6, "failed": 2}
    assert all("--nesterov needs --momentum" in trial.reason for trial in trials(state="failed"))


def left_running(*, worker=1, storage="journal", **status):
    """Start a trial that is left running, as by a command that was killed; return its point."""
    file = search_file(trials=1, storage=f'"{storage}"')
    file.folder.mkdir(parents=True)
    studies = Studies(file, worker=worker)
    studies.enqueue_missing()
    started = studies.next_trial()
    assert started
    if status:
        planned = file.planned("torch", started.trial.params, name=started.run, point=0)
        record = make_record(config=planned.config, status=make_status(**status))
        write_run(file.folder / started.run, record, [])
        started.trial.set_user_attr("host", status.get("host", socket.gethostname()))
    return started.trial.params


@pytest.mark.parametrize("state", [None, "running", "interrupted"])
def test_a_trial_that_a_killed_command_left_running_is_made_again(state):
    no_process = {"host": socket.gethostname(), "process": 2**22 + 1}  # which no process can have
    point = left_running(**(no_process | {"state": state} if state else {}))
    search()
    first, again = trials(framework="torch")
    assert (first.state, again.state) == ("failed", "finished")
    assert first.params == again.params == point
    assert first.reason.startswith("left by an interrupted command")


@pytest.mark.ci
def test_a_trial_of_another_worker_is_left_to_it():
    left_running(worker=2)
    with FileLock("runs/made/.worker-1.lock"):
        assert "this search is already being run. Received: --worker 1 in runs/made" in search(code=2)
    search()
    assert states() == {"running": 1, "finished": 1}
    search("--worker", "2")  # which starts anew, and so is at nothing
    assert states() == {"failed": 1, "finished": 2}


@pytest.mark.ci
def test_sqlite_and_numbers_of_workers_are_for_one_host():
    left_running(storage="sqlite", host="elsewhere")
    one_host = "SQLite is for the commands of one host. Received: torch-t0 is running on elsewhere"
    assert one_host in search("--worker", "2", code=2)
    Path("runs").rename("before")
    left_running(host="elsewhere")
    assert "this worker is at work on another host. Received: --worker 1, torch-t0" in search(code=2)
    search("--worker", "2")
    assert states() == {"running": 1, "finished": 1}


@pytest.mark.parametrize(
    ("pruner", "number", "epochs"),
    [
        ("median", 12, 3),
        pytest.param("successive-halving", 20, 9, marks=pytest.mark.ci),
        pytest.param("hyperband", 20, 9, marks=pytest.mark.ci),
    ],
)
def test_poor_trials_are_pruned_once_and_for_all(pruner, number, epochs):
    """What is kept of them is in `tests/end_to_end/test_search.py`."""
    lines = f'{number}\npruner = "{pruner}"'
    search_file(sampler="tpe", trials=lines, epochs=epochs, framework='["torch"]')
    search()
    pruned, finished = trials(state="pruned"), trials(state="finished")
    assert pruned and len(pruned) + len(finished) == number
    assert max(trial.score for trial in pruned) < max(trial.score for trial in finished)
    search()
    assert trials(state="pruned") == pruned  # which are not made again


@pytest.mark.ci
def test_cma_es_takes_ranges_and_choices():
    ranges = "{ low = 0.001, high = 0.1 }\nweight_decay = { low = 0.0, high = 0.1 }"
    search_file(sampler="cma-es", learning_rate=ranges)
    search()
    assert states() == {"finished": 8}


def test_each_worker_and_each_start_has_a_seed_of_its_own():
    file = search_file(sampler="tpe")
    drawn = set()
    for worker, made in [(1, 0), (2, 0), (1, 3), (1, 0)]:
        study = optuna.create_study(sampler=adaptive_sampler(file, worker=worker, made=made))
        drawn.add(study.ask().suggest_float("x", 0.0, 1.0))
    assert len(drawn) == 3


def test_a_dry_run_prints_every_command_and_makes_nothing():
    search_file()
    lines = search("--dry-run").splitlines()
    assert len(lines) == 9
    assert re.search(r"torch_impl/train.py .*--learning-rate 0\.\d+ .*--seed 1 .*--name torch-t0$", lines[0])
    assert lines[-1] == "4 trials of each framework (torch, keras); random points, drawn once"
    assert not Path("runs").exists()


WORKER = """
import sys
from made_trials import made_run
import launch.search.trials, launch.starting.lanes
launch.starting.lanes.POLL_SECONDS = 0.01
launch.search.trials.make_run = made_run
from launch.__main__ import main
sys.exit(main(["search", "made.toml", "--worker", sys.argv[1]]))
"""


@pytest.mark.ci
def test_two_workers_share_one_journal(tmp_path):
    search_file(sampler="tpe", trials=10)
    first, second = (start_command([sys.executable, "-c", WORKER, number], folder=tmp_path) for number in "12")
    ended = [finish(first, within_seconds=120), finish(second, within_seconds=120)]
    assert [command.code for command in ended] == [0, 0], ended
    assert states() == {"finished": 20}
    points = {(trial.framework, trial.point) for trial in trials()}
    assert points == set(itertools.product(("torch", "keras"), range(10)))
    assert len({(trial.framework, str(trial.params)) for trial in trials()}) == 20
    assert {trial.worker for trial in trials()} == {1, 2}


KILLED_WHILE_IT_WRITES = """
import os, signal, sys
from pathlib import Path
from launch.search.studies import open_storage

os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
storage = open_storage(Path("runs"), "journal")
storage.create_new_study([1], "torch")
"""


def test_a_journal_whose_writer_was_killed_is_written_to_after_half_a_minute(monkeypatch, tmp_path):
    """The folder is given by a relative path, as users do."""
    (tmp_path / "runs").mkdir()
    killed = run_python("-c", KILLED_WHILE_IT_WRITES, cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: 60 * real())
    storage = open_storage(Path("runs"), "journal")
    optuna.create_study(study_name="keras", storage=storage)
    Path("runs/study.journal.lock").symlink_to("runs/study.journal")  # as an earlier version left it
    storage = open_storage(Path("runs"), "journal")
    optuna.create_study(study_name="other", storage=storage)
    assert {study.study_name for study in storage.get_all_studies()} == {"torch", "keras", "other"}
