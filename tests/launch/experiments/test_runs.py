"""Real experiments: missing runs are made, and nothing is lost, whatever was killed."""

import contextlib
import os
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest
from processes import call, epochs_of, finish, start_command
from waiting import wait_until

from common.distributed.launchers import AT_ONCE
from common.run_folder.records import read_run
from launch import __main__ as launch
from launch.experiments.left_over import left_over
from launch.experiments.plan import read_plan

SETTINGS = """
[settings]
framework = "torch"
model = "mlp"
dataset = "synthetic:600x8x8x1x3"
launcher = "python"
device = "cpu"
threads = 1
keep = 0
"""
SHORT = SETTINGS + "epochs = 1\nmax_steps = 2\n"
PREPARE = '[[prepare]]\ncommand = ["datasets", "verify", "mars"]\nmakes = "{folder}/drawn"\n'


class Experiment:
    """An experiment in its own folder, run by the command line."""

    def __init__(self, folder, text):
        self.folder, self.file = folder, folder / "made.toml"
        self.file.write_text(text)
        self.runs = folder / "runs" / "made"

    def start(self, action, *more):
        command = [sys.executable, "-m", "launch", "experiment", action, "made.toml", *more]
        return start_command(command, folder=self.folder)

    def run(self, *more):
        return finish(self.start("run", *more), within_seconds=240)

    def run_here(self, *more, **expected):
        """Run it in this process, where it starts no trainer; see `call`."""
        with contextlib.chdir(self.folder):
            return call(launch.main, "experiment", "run", "made.toml", *more, **expected)

    def change(self, old, new):
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))

    def finished(self):
        names = sorted(path.parent.name for path in self.runs.glob("*/run.json"))
        return [name for name in names if read_run(self.runs / name).state == "finished"]

    def trainers(self):
        return [
            process
            for process in psutil.process_iter(["cmdline", "cwd"])
            if process.info["cwd"] == str(self.folder)
            and any(part.endswith("_impl/train.py") for part in process.info["cmdline"] or [])
        ]


@pytest.fixture(autouse=True)
def all_ends_with_the_test(tmp_path):
    """End the commands and trainers that a test has left in its folder."""
    yield
    for process in psutil.process_iter(["cwd"]):
        if process.info["cwd"] == str(tmp_path):
            process.kill()


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.ranks
@pytest.mark.ci
def test_missing_runs_are_made_and_a_failed_cell_does_not_end_it(tmp_path):
    bad = '[[cells]]\nname = "bad"\nbatch_size = 100000\n'
    experiment = Experiment(tmp_path, f"{PREPARE}{SHORT}{bad}[[cells]]\n")  # what no run needs is not prepared
    first = experiment.run()
    assert first.code == 1, first
    failed = "FAILED: torch_impl/train.py: error: the batch is larger"
    assert re.search(rf"^1/2 bad-torch-mlp-np1-r1: {failed}", first.stdout, re.M)
    assert re.search(r"^2/2 torch-mlp-np1-r1: trained in .*, test accuracy .* %$", first.stdout, re.M)
    assert experiment.finished() == ["torch-mlp-np1-r1"]
    before = files_of(experiment.runs / "torch-mlp-np1-r1")
    status = finish(experiment.start("status"), within_seconds=60)  # whose table is of another program
    assert status.code == 1
    assert "failed: bad-torch-mlp-np1-r1: torch_impl/train.py: error: the batch is larger" in status.stdout
    assert re.search(r"^bad-torch-mlp-np1 +0/1 +1 failed", status.stdout, re.M)
    assert re.search(r"^torch-mlp-np1 +1/1 ", status.stdout, re.M)

    experiment.change("100000", "50")
    second = experiment.run()
    assert second.code == 0, second
    assert "1 run of 2 to do" in second.stdout
    assert len(experiment.finished()) == 2
    assert files_of(experiment.runs / "torch-mlp-np1-r1") == before
    assert (experiment.runs / "set-aside/bad-torch-mlp-np1-r1-1/output.log").exists()  # nothing is lost
    nothing, report = experiment.run_here().splitlines()
    assert nothing == "nothing is left to do: 2 runs"
    assert report.startswith("next: python -m analysis report ")

    experiment.change("max_steps = 2", "max_steps = 3")
    changed = "was run with max_steps 2. Received: 3 in made.toml. Give the changed experiment another"
    experiment.run_here(code=2, shows=changed)


@pytest.mark.ranks
@pytest.mark.ci
def test_a_killed_command_is_resumed(tmp_path):
    """Its trainer lives on: the next start waits for it, where it can, and starts nothing beside it."""
    experiment = Experiment(tmp_path, f"[experiment]\nrepeats = 2\n{SETTINGS}epochs = 60\n[[cells]]\n")
    process = experiment.start("run")
    second = experiment.runs / "torch-mlp-np1-r2"
    wait_until(lambda: epochs_of(second) > 0, process=process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (left,) = experiment.trainers()
    before = files_of(experiment.runs / "torch-mlp-np1-r1")
    again = experiment.run()
    assert again.code == 0, again
    assert experiment.finished() == ["torch-mlp-np1-r1", "torch-mlp-np1-r2"]
    assert read_run(second).record.status.process == left.pid
    assert [epochs_of(experiment.runs / name) for name in experiment.finished()] == [60, 60]
    assert files_of(experiment.runs / "torch-mlp-np1-r1") == before
    assert not (experiment.runs / "set-aside").exists()


@pytest.mark.ranks
@pytest.mark.ci
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two cores are needed")
def test_two_runs_at_once_have_a_core_each_and_are_resumed(tmp_path):
    """One is killed, which fails it alone; Ctrl-C ends the others; the next start makes what is missing.

    Meanwhile no second command runs the same experiment.
    """
    experiment = Experiment(tmp_path, f"[experiment]\nrepeats = 3\n{SETTINGS}epochs = 300\n[[cells]]\n")
    names = [f"torch-mlp-np1-r{repeat}" for repeat in (1, 2, 3)]
    folders = [experiment.runs / name for name in names]
    process = experiment.start("run", "--at-once", "2", "--cores-per-run", "1")
    wait_until(lambda: epochs_of(folders[0]) > 0 and epochs_of(folders[1]) > 0, process=process)
    first, second = experiment.trainers()
    assert len(first.cpu_affinity()) == len(second.cpu_affinity()) == 1
    assert first.cpu_affinity() != second.cpu_affinity()
    assert psutil.Process(process.pid).cpu_affinity() == psutil.Process().cpu_affinity()
    assert {trainer.environ()[AT_ONCE] for trainer in (first, second)} == {"2"}
    experiment.run_here(code=2, shows="this experiment is already being run. Received: runs/made")
    next(trainer for trainer in (first, second) if names[0] in trainer.cmdline()).kill()
    wait_until(lambda: epochs_of(folders[2]) > 0, process=process)  # in the lane of the one that was killed
    process.send_signal(signal.SIGINT)
    stopped = finish(process, within_seconds=60)
    assert stopped.code == 130, stopped
    assert "resume with: python -m launch experiment run made.toml --at-once 2 --cores-per-run 1" in stopped.stdout
    assert re.search(r"^1/3 torch-mlp-np1-r1: FAILED: killed", stopped.stdout, re.M)
    assert not experiment.trainers() and read_run(folders[2]).state == "interrupted"
    done = {name: files_of(experiment.runs / name) for name in experiment.finished()}
    broken = files_of(folders[0])
    again = experiment.run("--at-once", "2")
    assert again.code == 0, again
    assert f"{3 - len(done)} runs of 3 to do on local, 2 at once: about " in again.stdout
    assert {name: files_of(experiment.runs / name) for name in done} == done
    for folder in folders:
        record = read_run(folder).record
        assert (record.world.at_once, record.world.cores) == (2, len(os.sched_getaffinity(0)) // 2)
    aside = files_of(experiment.runs / f"set-aside/{names[0]}-1")
    assert broken and {name: aside[name] for name in broken} == broken  # nothing is lost
    assert experiment.run_here("--at-once", "2").startswith("nothing is left to do: 3 runs\n")


@pytest.mark.ranks
@pytest.mark.ci
def test_a_run_that_takes_too_long_is_ended(tmp_path):
    experiment = Experiment(tmp_path, f"[experiment]\nlimit_minutes = 0.1\n{SETTINGS}epochs = 4000\n[[cells]]\n")
    ended = experiment.run()
    assert ended.code == 1, ended
    assert "torch-mlp-np1-r1: FAILED: not finished within 0.1 minutes (limit_minutes)" in ended.stdout
    assert not experiment.trainers()


def test_a_failed_preparation_ends_it(tmp_path):
    needing = f'{PREPARE}{SHORT}data_folder = "{{folder}}/drawn"\n[[cells]]\n'
    words = "preparing the experiment failed. Received: exit code 2 of python -m common datasets verify mars"
    Experiment(tmp_path, needing).run_here(code=2, shows=words)


def test_processes_of_other_runs_do_not_count_as_left_over(tmp_path, monkeypatch):
    """Nor does it matter from which folder one looks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.toml").write_text(f"[experiment]\nrepeats = 12\n{SHORT}[[cells]]\n")
    plan = read_plan("made.toml", runs_folder=Path("runs"))
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)", *plan.runs[10].arguments(plan.folder)]

    def left(of_plan, repeat):
        return [process.pid for process in left_over(of_plan, of_plan.runs[repeat - 1])]

    with psutil.Popen(sleeper) as process:
        wait_until(lambda: left(plan, 11) == [process.pid])
        assert left(plan, 1) == []  # -r1 is a prefix of -r11
        monkeypatch.chdir(tmp_path.parent)
        elsewhere = read_plan(str(tmp_path / "made.toml"), runs_folder=tmp_path / "runs")
        assert left(elsewhere, 11) == [process.pid]
        process.kill()
    assert left(elsewhere, 11) == []
