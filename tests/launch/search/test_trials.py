"""Searches with made trials: the same points for both frameworks, resuming, pruning, several workers.

What may be wrong in a file is in `tests/refusals/launch-files.toml`.
"""

import itertools
import re
import socket
import sys
from collections import Counter
from pathlib import Path

import optuna
import pytest
from builders import make_record, make_status, write_run
from filelock import FileLock
from made_trials import made_run, write_search_file
from processes import finish, start_command

from common.run_folder.records import read_epochs, read_run
from common.run_folder.search_record import read_search
from launch import __main__ as launch
from launch.experiments.survey import survey_run
from launch.search.sampling import adaptive_sampler, fixed_points
from launch.search.search_file import Range, grid_size, read_search_file, shipped_searches, steps_of
from launch.search.studies import Studies

PAUSE = "launch.starting.lanes.POLL_SECONDS"
MAKE = "launch.search.trials.make_run"


@pytest.fixture(autouse=True)
def _trials_are_made(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PAUSE, 0.0)
    monkeypatch.setattr(MAKE, made_run)


def search(*arguments):
    return launch.main(["search", "made.toml", *arguments])


def recorded():
    return read_search(Path("runs/made"))


def states():
    return Counter(trial.state for trial in recorded().trials)


def points_of(framework):
    trials = (trial for trial in recorded().trials if trial.framework == framework)
    return [trial.params for trial in sorted(trials, key=lambda trial: trial.point)]


def test_the_shipped_search_is_valid():
    assert shipped_searches() == ["search"]
    file = read_search_file("search", runs_folder=Path("runs"))
    assert (file.keys.trials, file.frameworks, file.folder) == (20, ["torch", "keras"], Path("runs/search"))
    assert file.draws_once


def test_a_grid_has_the_choices_and_the_steps_of_its_axes(tmp_path):
    assert steps_of(Range(low=0.1, high=0.4, step=0.1)) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert steps_of(Range(low=1, high=6, step=2)) == [1, 3, 5]
    assert steps_of(Range(low=1, high=3)) == [1, 2, 3]
    file = write_search_file(tmp_path, sampler="grid", learning_rate="{ low = 0.01, high = 0.03, step = 0.01 }")
    assert grid_size(read_search_file(str(file), runs_folder=tmp_path)) == 9


@pytest.mark.parametrize(
    ("sampler", "changes"),
    [
        ("random", {}),
        pytest.param("quasi-random", {}, marks=pytest.mark.ci),
        pytest.param("grid", {"learning_rate": "[0.01, 0.02]"}, marks=pytest.mark.ci),
    ],
)
def test_points_are_drawn_once_for_both_frameworks(tmp_path, sampler, changes):
    write_search_file(tmp_path, sampler=sampler, **changes)
    assert search() == 0
    assert points_of("torch") == points_of("keras")
    assert len({str(point) for point in points_of("torch")}) == 4
    for trial in recorded().trials:
        run = read_run(tmp_path / "runs/made" / str(trial.run))
        assert run.record.framework == trial.framework
        config = run.record.config
        settings = {"learning_rate": config.optimizer.learning_rate, "momentum": config.optimizer.momentum}
        assert (trial.params, config.training.seed) == (settings, 1 + trial.point)
        assert trial.score == run.epochs[-1].validation_accuracy


def test_more_trials_begin_with_the_points_of_fewer(tmp_path):
    for sampler in ("random", "quasi-random"):
        few = read_search_file(str(write_search_file(tmp_path, sampler=sampler)), runs_folder=tmp_path)
        many = write_search_file(tmp_path, sampler=sampler, trials=9)
        points = fixed_points(read_search_file(str(many), runs_folder=tmp_path))
        assert (len(points), points[:4]) == (9, fixed_points(few))
        values = sorted(float(point["learning_rate"]) for point in points)
        assert values[0] < 0.01 < values[-1]


def test_the_study_is_one_that_any_tool_of_optuna_reads(tmp_path):
    write_search_file(tmp_path, storage='"sqlite"')
    assert search() == 0
    for framework in ("torch", "keras"):
        study = optuna.load_study(study_name=framework, storage="sqlite:///runs/made/study.db")
        assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 4
        assert study.best_trial.user_attrs["run"] == f"{framework}-t{study.best_trial.number}"
        assert study.best_value == max(trial.value for trial in study.trials)
        assert [len(trial.intermediate_values) for trial in study.trials] == [3] * 4


@pytest.mark.ci
def test_the_same_command_has_nothing_left_to_do(tmp_path, capsys):
    write_search_file(tmp_path)
    assert search() == 0
    before = recorded()
    capsys.readouterr()
    assert search() == 0
    assert capsys.readouterr().out == "nothing is left to do: 8 trials\n"
    assert recorded() == before
    write_search_file(tmp_path, trials=5)  # more of the same search
    assert search() == 0
    assert states() == {"finished": 10}
    write_search_file(tmp_path, momentum="[0.0, 0.6, 0.9]")
    assert search() == 2
    error = capsys.readouterr().err
    assert "the search was started with other settings. Received: space.momentum [0.0, 0.6, 0.9] instead of" in error


def failing(first, error):
    """Return a stand-in for `make_run` that fails or is interrupted at the first calls."""
    calls = []

    def run(plan, planned, *, lane, advance):
        calls.append(planned.name)
        if len(calls) > first:
            return (yield from made_run(plan, planned, lane=lane, advance=advance))
        if error == "interrupt":
            yield
            raise KeyboardInterrupt
        (plan.folder / "logs").mkdir(exist_ok=True)
        (plan.folder / "logs" / f"{planned.name}.log").write_text(f"train.py: error: {error}\n")
        return survey_run(plan, planned)

    return run


def test_failed_trials_do_not_stop_the_others_and_are_made_again(tmp_path, monkeypatch, capsys):
    write_search_file(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(MAKE, failing(2, "the disk is full"))
        assert search() == 1
    output = capsys.readouterr().out
    assert "torch-t0: FAILED: train.py: error: the disk is full" in output
    assert "2 trials failed; the same command makes them once more" in output
    assert states() == {"failed": 2, "finished": 6}
    assert search() == 0
    assert states() == {"failed": 2, "finished": 8}
    again = [trial for trial in recorded().trials if trial.framework == "torch" and trial.point == 0]
    assert [(trial.run, trial.state) for trial in again] == [("torch-t0", "failed"), ("torch-t4", "finished")]
    assert again[0].params == again[1].params
    assert again[0].reason == "train.py: error: the disk is full"


def test_an_interrupted_search_is_resumed_at_the_same_point(tmp_path, monkeypatch, capsys):
    write_search_file(tmp_path, sampler="tpe")
    with monkeypatch.context() as patch:
        patch.setattr(MAKE, failing(1, "interrupt"))
        assert search() == 130
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == "interrupted; resume with: python -m launch search made.toml"
    (ended,) = (trial for trial in recorded().trials if trial.state == "failed")
    assert (ended.run, ended.reason) == ("torch-t0", "interrupted")
    assert search() == 0
    assert states() == {"failed": 1, "finished": 8}
    of_point = [trial for trial in recorded().trials if trial.framework == "torch" and trial.point == 0]
    assert [(trial.run, trial.params) for trial in of_point] == [
        (name, ended.params) for name in ("torch-t0", "torch-t4")
    ]


def left_running(tmp_path, *, worker=1, storage="journal", **status):
    """Start a trial that is left running, as by a command that was killed; return it."""
    file = read_search_file(
        str(write_search_file(tmp_path, trials=1, storage=f'"{storage}"')), runs_folder=Path("runs")
    )
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
    return next(trial for trial in studies.trials() if trial.state == "running")


@pytest.mark.parametrize("state", [None, "killed", "interrupted"])
def test_a_trial_that_a_killed_command_left_running_is_made_again(tmp_path, state):
    here = {"host": socket.gethostname(), "process": 2**22 + 1}  # which no process can have
    status = {None: {}, "killed": here | {"state": "running"}, "interrupted": here | {"state": "interrupted"}}[state]
    left = left_running(tmp_path, **status)
    assert search() == 0
    first, *others = (trial for trial in recorded().trials if trial.framework == "torch")
    assert (first.state, first.params) == ("failed", left.params)
    assert first.reason.startswith("left by an interrupted command")
    assert [(trial.state, trial.params) for trial in others] == [("finished", left.params)]


@pytest.mark.ci
def test_a_trial_of_another_worker_is_left_to_it(tmp_path, capsys):
    left_running(tmp_path, worker=2)
    with FileLock("runs/made/.worker-1.lock"):
        assert search() == 2
        assert "this search is already being run. Received: --worker 1 in runs/made" in capsys.readouterr().err
    assert search() == 0
    assert states() == {"running": 1, "finished": 1}
    assert search("--worker", "2") == 0  # which starts anew, and so is at nothing
    assert states() == {"failed": 1, "finished": 2}


@pytest.mark.ci
def test_sqlite_and_numbers_of_workers_are_for_one_host(tmp_path, capsys):
    left_running(tmp_path, storage="sqlite", host="elsewhere")
    assert search("--worker", "2") == 2
    error = capsys.readouterr().err
    assert "SQLite is for the commands of one host. Received: torch-t0 is running on elsewhere" in error
    (tmp_path / "runs").rename(tmp_path / "before")
    left_running(tmp_path, host="elsewhere")
    assert search("--worker", "1") == 2
    assert "this worker is at work on another host. Received: --worker 1, torch-t0" in capsys.readouterr().err
    assert search("--worker", "2") == 0
    assert states() == {"running": 1, "finished": 1}


@pytest.mark.parametrize(
    ("pruner", "trials", "epochs"),
    [
        ("median", 12, 3),
        pytest.param("successive-halving", 20, 9, marks=pytest.mark.ci),
        pytest.param("hyperband", 20, 9, marks=pytest.mark.ci),
    ],
)
def test_a_pruned_trial_keeps_its_epochs(tmp_path, capsys, pruner, trials, epochs):
    pruned_by = f'{trials}\npruner = "{pruner}"'
    write_search_file(tmp_path, sampler="tpe", trials=pruned_by, epochs=epochs, framework='["torch"]')
    assert search() == 0
    output = capsys.readouterr().out
    pruned = [trial for trial in recorded().trials if trial.state == "pruned"]
    assert pruned
    assert states() == {"pruned": len(pruned), "finished": trials - len(pruned)}
    for trial in pruned:
        folder = tmp_path / "runs/made" / str(trial.run)
        assert read_run(folder).state == "interrupted"
        written = read_epochs(folder)
        assert 1 <= len(written) < epochs
        assert trial.score == written[-1].validation_accuracy
        assert f"{trial.run}: pruned after epoch {len(written)}\n" in output
    finished = [trial.score for trial in recorded().trials if trial.state == "finished"]
    assert max(trial.score for trial in pruned) < max(finished)
    assert search() == 0
    assert states()["pruned"] == len(pruned)  # which are not made again


@pytest.mark.ci
def test_cma_es_takes_ranges_and_choices(tmp_path):
    ranges = "{ low = 0.001, high = 0.1 }\nweight_decay = { low = 0.0, high = 0.1 }"
    write_search_file(tmp_path, sampler="cma-es", learning_rate=ranges)
    assert search() == 0
    assert states() == {"finished": 8}


def test_each_worker_and_each_start_has_a_seed_of_its_own(tmp_path):
    file = read_search_file(str(write_search_file(tmp_path, sampler="tpe")), runs_folder=tmp_path)
    drawn = set()
    for worker, made in [(1, 0), (2, 0), (1, 3), (1, 0)]:
        study = optuna.create_study(sampler=adaptive_sampler(file, worker=worker, made=made))
        drawn.add(study.ask().suggest_float("x", 0.0, 1.0))
    assert len(drawn) == 3


@pytest.mark.ci
def test_a_combination_that_is_no_setting_fails_its_trial_alone(tmp_path):
    """Each of both is valid with the first choice of the other."""
    momentum = "[0.5, 0.0]\nnesterov = [false, true]"
    write_search_file(tmp_path, sampler="grid", momentum=momentum, learning_rate="[0.01]")
    assert search() == 1
    assert states() == {"finished": 6, "failed": 2}
    failed = next(trial for trial in recorded().trials if trial.state == "failed")
    assert "--nesterov needs momentum" in failed.reason


def test_a_dry_run_prints_every_command_and_makes_nothing(tmp_path, capsys):
    write_search_file(tmp_path)
    assert search("--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
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
    write_search_file(tmp_path, sampler="tpe", trials=10)
    first, second = (start_command([sys.executable, "-c", WORKER, number], folder=tmp_path) for number in "12")
    ended = [finish(first, within_seconds=120), finish(second, within_seconds=120)]
    assert [command.code for command in ended] == [0, 0], ended
    assert states() == {"finished": 20}
    trials = recorded().trials
    points = {(trial.framework, trial.point) for trial in trials}
    assert points == set(itertools.product(("torch", "keras"), range(10)))
    assert len({(trial.framework, str(trial.params)) for trial in trials}) == 20
    assert {trial.worker for trial in trials} == {1, 2}
