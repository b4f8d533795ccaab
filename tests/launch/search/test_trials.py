"""Searches with made trials: the same points for both frameworks, resuming, pruning, several workers."""

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
from launch.search.sampling import adaptive_sampler, fixed_points
from launch.search.search_file import read_search_file
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
    return [trial.params for trial in sorted(trials, key=lambda one: one.point)]


@pytest.mark.parametrize(
    "sampler", ["random", *(pytest.param(name, marks=pytest.mark.ci) for name in ("quasi-random", "grid"))]
)
def test_points_are_drawn_once_for_both_frameworks(tmp_path, sampler):
    part = "{ low = 0.001, high = 0.1, log = true }"
    choices = "[0.01, 0.02]" if sampler == "grid" else part
    write_search_file(tmp_path, sampler=sampler, old=part, new=choices)
    assert search() == 0
    assert points_of("torch") == points_of("keras")
    assert len({str(point) for point in points_of("torch")}) == 4
    for trial in recorded().trials:
        run = read_run(tmp_path / "runs/made" / str(trial.run))
        assert run.record.framework == trial.framework
        config = run.record.config
        assert trial.params == {
            "learning_rate": config.optimizer.learning_rate,
            "momentum": config.optimizer.momentum,
        }
        assert config.training.seed == 1 + trial.point
        assert trial.score == run.epochs[-1].validation_accuracy


def test_more_trials_begin_with_the_points_of_fewer(tmp_path):
    for sampler in ("random", "quasi-random"):
        few = read_search_file(str(write_search_file(tmp_path, sampler=sampler)), runs_folder=tmp_path)
        many = write_search_file(tmp_path, sampler=sampler, old="trials = 4", new="trials = 9")
        points = fixed_points(read_search_file(str(many), runs_folder=tmp_path))
        assert (len(points), points[:4]) == (9, fixed_points(few))
        values = sorted(float(point["learning_rate"]) for point in points)
        assert values[0] < 0.01 < values[-1]


def test_the_study_is_one_that_any_tool_of_optuna_reads(tmp_path):
    write_search_file(tmp_path, old="journal", new="sqlite")
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
    write_search_file(tmp_path, old="trials = 4", new="trials = 5")  # more of the same search
    assert search() == 0
    assert states() == {"finished": 10}
    write_search_file(tmp_path, old="0.5", new="0.6")
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
        from launch.experiments.survey import survey_run

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


@pytest.mark.parametrize("sampler", [pytest.param("random", marks=pytest.mark.ci), "tpe"])
def test_an_interrupted_search_is_resumed_at_the_same_point(tmp_path, monkeypatch, capsys, sampler):
    write_search_file(tmp_path, sampler=sampler)
    with monkeypatch.context() as patch:
        patch.setattr(MAKE, failing(1, "interrupt"))
        assert search() == 130
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == "interrupted; resume with: python -m launch search made.toml"
    (ended,) = (trial for trial in recorded().trials if trial.state == "failed")
    assert (ended.run, ended.reason) == ("torch-t0", "interrupted")
    assert search() == 0
    assert states() == {"failed": 1, "finished": 8}
    (again,) = (one for one in recorded().trials if one.framework == "torch" and one.point == 0 and one != ended)
    assert (again.run, again.params) == ("torch-t4", ended.params)


def left_running(tmp_path, *, worker=1, storage="journal", **status):
    """Start a trial that is left running, as by a command that was killed; return it."""
    file = write_search_file(tmp_path, old='trials = 4\nstorage = "journal"', new=f'trials = 1\nstorage = "{storage}"')
    searched = read_search_file(str(file), runs_folder=Path("runs"))
    searched.folder.mkdir(parents=True)
    studies = Studies(searched, worker=worker)
    studies.enqueue_missing()
    started = studies.next_trial()
    assert started
    if status:
        planned = searched.planned("torch", started.trial.params, name=started.run, point=0)
        record = make_record(config=planned.config, status=make_status(**status))
        write_run(searched.folder / started.run, record, [])
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
def test_a_trial_of_another_worker_is_left_to_it(tmp_path):
    left_running(tmp_path, worker=2)
    assert search() == 0
    assert states() == {"running": 1, "finished": 1}
    assert search("--worker", "2") == 0  # which starts anew, and so is at nothing
    assert states() == {"failed": 1, "finished": 2}


@pytest.mark.ci
def test_sqlite_and_numbers_of_workers_are_for_one_host(tmp_path, capsys):
    left_running(tmp_path, storage="sqlite", host="elsewhere")
    assert search("--worker", "2") == 2
    assert (
        "SQLite is for the commands of one host. Received: torch-t0 is running on elsewhere" in capsys.readouterr().err
    )
    (tmp_path / "runs").rename(tmp_path / "before")
    left_running(tmp_path, host="elsewhere")
    assert search("--worker", "1") == 2
    assert "this worker is at work on another host. Received: --worker 1, torch-t0" in capsys.readouterr().err
    assert search("--worker", "2") == 0
    assert states() == {"running": 1, "finished": 1}


@pytest.mark.ci
def test_one_command_for_each_number_of_a_worker(tmp_path, capsys):
    write_search_file(tmp_path)
    Path("runs/made").mkdir(parents=True)
    with FileLock("runs/made/.worker-1.lock"):
        assert search() == 2
        assert "this search is already being run. Received: --worker 1 in runs/made" in capsys.readouterr().err
        assert search("--worker", "2") == 0


def test_a_pruned_trial_keeps_its_epochs(tmp_path, capsys):
    write_search_file(tmp_path, sampler="tpe", old="trials = 4", new='trials = 12\npruner = "median"')
    file = tmp_path / "made.toml"
    file.write_text(file.read_text().replace(', "keras"', ""))
    assert search() == 0
    output = capsys.readouterr().out
    pruned = [trial for trial in recorded().trials if trial.state == "pruned"]
    assert pruned
    assert states() == {"pruned": len(pruned), "finished": 12 - len(pruned)}
    for trial in pruned:
        folder = tmp_path / "runs/made" / str(trial.run)
        assert read_run(folder).state == "interrupted"
        epochs = read_epochs(folder)
        assert len(epochs) in (1, 2)
        assert trial.score == epochs[-1].validation_accuracy
        assert f"{trial.run}: pruned after epoch {len(epochs)}\n" in output
    finished = [trial.score for trial in recorded().trials if trial.state == "finished"]
    assert max(trial.score or 0.0 for trial in pruned) < max(score or 0.0 for score in finished)
    assert search() == 0
    assert states()["pruned"] == len(pruned)  # which are not made again


@pytest.mark.ci
@pytest.mark.parametrize("pruner", ["successive-halving", "hyperband"])
def test_each_pruner_works(tmp_path, pruner):
    text = f'trials = 20\npruner = "{pruner}"'
    write_search_file(tmp_path, sampler="tpe", old="trials = 4", new=text)
    file = tmp_path / "made.toml"
    file.write_text(file.read_text().replace("epochs = 3", "epochs = 9").replace(', "keras"', ""))
    assert search() == 0
    assert states()["pruned"] >= 1
    assert sum(states().values()) == 20


@pytest.mark.ci
def test_cma_es_takes_ranges_and_choices(tmp_path):
    text = "[space]\nweight_decay = { low = 0.0, high = 0.1 }"
    write_search_file(tmp_path, sampler="cma-es", old="[space]", new=text)
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
    old = "momentum = [0.0, 0.5, 0.9]"
    write_search_file(tmp_path, sampler="grid", old=old, new="momentum = [0.5, 0.0]\nnesterov = [false, true]")
    file = tmp_path / "made.toml"
    file.write_text(file.read_text().replace("{ low = 0.001, high = 0.1, log = true }", "[0.01]"))
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
    write_search_file(tmp_path, sampler="tpe", old="trials = 4", new="trials = 10")
    first, second = (start_command([sys.executable, "-c", WORKER, number], folder=tmp_path) for number in "12")
    ended = [finish(first, within_seconds=120), finish(second, within_seconds=120)]
    assert [one.code for one in ended] == [0, 0], ended
    assert states() == {"finished": 20}
    trials = recorded().trials
    assert {(trial.framework, trial.point) for trial in trials} == {
        (f, n) for f in ("torch", "keras") for n in range(10)
    }
    assert len({(trial.framework, str(trial.params)) for trial in trials}) == 20
    assert {trial.worker for trial in trials} == {1, 2}
