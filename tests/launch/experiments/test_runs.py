"""Real experiments: missing runs are made, and nothing is lost, whatever was killed."""

import contextlib
import os
import re
import shutil
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import psutil
import pytest
import waiting
from builders import make_environment, make_record, make_status
from processes import ROOT, Finished, finish, start_command, wait_until

from common.errors import UserError
from common.run_folder.records import RunWriter, World, read_run
from launch import __main__ as launch
from launch.experiments.left_over import left_over
from launch.experiments.plan import read_plan
from launch.experiments.survey import survey
from launch.starting.launchers import launcher_at

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
LONG = SETTINGS + "epochs = 4000\n"  # ended by the test


class Experiment:
    """An experiment in its own folder, run by the command line."""

    def __init__(self, folder, text):
        self.folder, self.file = folder, folder / "made.toml"
        self.file.write_text(text)
        self.runs = folder / "runs" / "made"

    def start(self, *more):
        command = [sys.executable, "-m", "launch", "experiment", "run", "made.toml", *more]
        return start_command(command, folder=self.folder)

    def run(self, *more):
        return finish(self.start(*more), within_seconds=240)

    def call(self, command, *more):
        """Give a command that starts no trainer in this process."""
        with contextlib.chdir(self.folder), redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            code = launch.main(["experiment", command, "made.toml", *more])
        return Finished(code, out.getvalue(), err.getvalue())

    def status(self):
        """Give that command, whose table is of another program."""
        command = [sys.executable, "-m", "launch", "experiment", "status", "made.toml"]
        return finish(start_command(command, folder=self.folder), within_seconds=60)

    def finished(self):
        names = sorted(path.parent.name for path in self.runs.glob("*/run.json"))
        return [name for name in names if read_run(self.runs / name).state == "finished"]

    def trainers(self):
        """The processes that train."""
        found = []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            command = process.info["cmdline"] or []
            if process.info["cwd"] == str(self.folder) and any(part.endswith("_impl/train.py") for part in command):
                found.append(process)
        return found


@pytest.fixture(autouse=True)
def all_ends_with_the_test(tmp_path):
    """End the commands and trainers that a test has left in its folder."""
    yield
    for process in psutil.process_iter(["cwd"]):
        if process.info["cwd"] == str(tmp_path):
            process.kill()


def epochs_of(folder):
    file = folder / "epochs.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.ranks
@pytest.mark.ci
def test_missing_runs_are_made_and_a_failed_cell_does_not_end_it(tmp_path):
    bad = '[[cells]]\nname = "bad"\nbatch_size = 100000\n'
    experiment = Experiment(tmp_path, f"{SHORT}{bad}[[cells]]\n")
    first = experiment.run()
    assert first.code == 1, first
    failed = "FAILED: torch_impl/train.py: error: the batch is larger"
    assert re.search(rf"^1/2 bad-torch-mlp-np1-r1: {failed}", first.stdout, re.M)
    assert re.search(r"^2/2 torch-mlp-np1-r1: trained in .*, test accuracy .* %; about 0.0 s left", first.stdout, re.M)
    assert experiment.finished() == ["torch-mlp-np1-r1"]
    before = files_of(experiment.runs / "torch-mlp-np1-r1")
    status = experiment.status()
    assert status.code == 1
    assert "failed: bad-torch-mlp-np1-r1: torch_impl/train.py: error: the batch is larger" in status.stdout
    assert re.search(r"^bad-torch-mlp-np1 +0/1 +1 failed", status.stdout, re.M)
    assert re.search(r"^torch-mlp-np1 +1/1 ", status.stdout, re.M)

    experiment.file.write_text(experiment.file.read_text().replace("100000", "50"))
    second = experiment.run()
    assert second.code == 0, second
    assert "1 run of 2 to do" in second.stdout
    assert len(experiment.finished()) == 2
    assert files_of(experiment.runs / "torch-mlp-np1-r1") == before
    assert (experiment.runs / "set-aside/bad-torch-mlp-np1-r1-1/output.log").exists()  # nothing is lost
    third = experiment.call("run")
    assert (third.code, third.stdout) == (0, "nothing is left to do: 2 runs\n")

    experiment.file.write_text(experiment.file.read_text().replace("max_steps = 2", "max_steps = 3"))
    changed = experiment.call("run")
    assert changed.code == 2
    assert "was run with max_steps 2. Received: 3 in made.toml. Give the changed experiment another" in changed.stderr


@pytest.mark.ranks
@pytest.mark.ci
def test_a_killed_command_is_resumed(tmp_path):
    """Its trainer lives on: the next start waits for it, where it can, and starts nothing beside it."""
    experiment = Experiment(tmp_path, f"[experiment]\nrepeats = 2\n{SETTINGS}epochs = 60\n[[cells]]\n")
    process = experiment.start()
    second = experiment.runs / "torch-mlp-np1-r2"
    wait_until(lambda: epochs_of(second) > 0, process=process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(experiment.trainers()) <= 1
    before = files_of(experiment.runs / "torch-mlp-np1-r1")
    again = experiment.run()
    assert again.code == 0, again
    assert experiment.finished() == ["torch-mlp-np1-r1", "torch-mlp-np1-r2"]
    assert [epochs_of(experiment.runs / name) for name in experiment.finished()] == [60, 60]
    assert files_of(experiment.runs / "torch-mlp-np1-r1") == before
    assert not (experiment.runs / "set-aside").exists()


@pytest.mark.ranks
@pytest.mark.ci
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two cores are needed")
def test_two_runs_at_once_have_a_core_each_and_are_resumed(tmp_path):
    """One is killed, which fails it alone; Ctrl-C ends the others; the next start makes what is missing."""
    experiment = Experiment(tmp_path, f"[experiment]\nrepeats = 3\n{SETTINGS}epochs = 300\n[[cells]]\n")
    names = [f"torch-mlp-np1-r{repeat}" for repeat in (1, 2, 3)]
    one, other, third = (experiment.runs / name for name in names)
    process = experiment.start("--at-once", "2", "--cores-per-run", "1")
    wait_until(lambda: epochs_of(one) > 0 and epochs_of(other) > 0, process=process)
    first, second = experiment.trainers()
    assert len(first.cpu_affinity()) == len(second.cpu_affinity()) == 1
    assert first.cpu_affinity() != second.cpu_affinity()
    next(trainer for trainer in (first, second) if names[0] in trainer.cmdline()).kill()
    wait_until(lambda: epochs_of(third) > 0, process=process)  # in the lane of the one that was killed
    process.send_signal(signal.SIGINT)
    stopped = finish(process, within_seconds=60)
    assert stopped.code == 130, stopped
    assert "resume with: python -m launch experiment run made.toml --at-once 2 --cores-per-run 1" in stopped.stdout
    assert re.search(r"^1/3 torch-mlp-np1-r1: FAILED: killed", stopped.stdout, re.M)
    assert not experiment.trainers() and read_run(third).state == "interrupted"
    done = {name: files_of(experiment.runs / name) for name in experiment.finished()}
    again = experiment.run("--at-once", "2")
    assert again.code == 0, again
    assert f"{3 - len(done)} runs of 3 to do on local, 2 at once: about " in again.stdout
    assert {name: files_of(experiment.runs / name) for name in done} == done
    for name in names:
        record = read_run(experiment.runs / name).record
        assert (record.world.at_once, record.world.cores) == (2, len(os.sched_getaffinity(0)) // 2)
    assert (experiment.runs / f"set-aside/{names[0]}-1").is_dir()  # nothing is lost
    assert experiment.call("run", "--at-once", "2").stdout == "nothing is left to do: 3 runs\n"


@pytest.mark.ranks
@pytest.mark.ci
def test_a_killed_rank_fails_its_run_which_the_next_start_repeats(tmp_path):
    experiment = Experiment(tmp_path, f'{LONG}[[cells]]\n[[cells]]\nname = "last"\nmax_steps = 2\n')
    process = experiment.start()
    first = experiment.runs / "torch-mlp-np1-r1"
    wait_until(lambda: epochs_of(first) > 0, process=process)
    for trainer in experiment.trainers():
        trainer.kill()
    ended = finish(process, within_seconds=240)
    assert ended.code == 1, ended
    assert "torch-mlp-np1-r1: FAILED: killed" in ended.stdout
    assert experiment.finished() == ["last-torch-mlp-np1-r1"]
    broken = files_of(first)

    experiment.file.write_text(
        experiment.file.read_text().replace("epochs = 4000", "epochs = 4000\nsteps_per_epoch = 1")
    )
    experiment.file.write_text(experiment.file.read_text().replace("[[cells]]\n[[", "[[cells]]\nmax_steps = 2\n[["))
    refused = experiment.call("run")
    assert refused.code == 2  # other settings: neither mixed with what is there, nor put in its place
    assert files_of(first) == broken
    experiment.file.write_text(f'{LONG}[[cells]]\n[[cells]]\nname = "last"\nmax_steps = 2\n')
    process = experiment.start()
    wait_until(lambda: epochs_of(first) > 0 and files_of(first)["run.json"] != broken["run.json"], process=process)
    process.send_signal(signal.SIGTERM)
    stopped = finish(process, within_seconds=60)
    assert stopped.code == 130, stopped
    assert "interrupted; resume with: python -m launch experiment run made.toml" in stopped.stdout
    assert not experiment.trainers()
    assert read_run(first).state == "interrupted"
    kept = files_of(experiment.runs / "set-aside/torch-mlp-np1-r1-1")
    assert {name: kept[name] for name in broken} == broken


@pytest.mark.ranks
@pytest.mark.ci
def test_budget_limit_and_needs(tmp_path):
    protocol = "[experiment]\nrepeats = 2\nbudget_minutes = 0.3\nlimit_minutes = 0.1\ncool_down_seconds = 0.5\n"
    rich = '[[cells]]\nname = "rich"\ncores = 100000\n'
    experiment = Experiment(tmp_path, f"{protocol}{LONG}{rich}[[cells]]\n")
    ended = experiment.run()
    assert ended.code == 1, ended
    assert "left out: rich-torch-mlp-np1, needs 100000 cores, there are" in ended.stdout
    assert "torch-mlp-np1-r1: FAILED: not finished within 0.1 minutes (limit_minutes)" in ended.stdout
    assert "the budget of 0.3 minutes is spent: 1 run not started" in ended.stdout
    assert not experiment.trainers()


@pytest.mark.ranks
@pytest.mark.ci
def test_two_at_once_do_not_run_the_same_experiment(tmp_path):
    experiment = Experiment(tmp_path, f"{LONG}[[cells]]\n")
    process = experiment.start()
    try:
        wait_until(lambda: epochs_of(experiment.runs / "torch-mlp-np1-r1") > 0, process=process)
        second = experiment.call("run")
        assert second.code == 2
        assert "this experiment is already being run. Received: runs/made" in second.stderr
        assert re.search(r"^torch-mlp-np1 +0/1 +1 running", experiment.status().stdout, re.M)
    finally:
        process.send_signal(signal.SIGTERM)
        finish(process, within_seconds=60)


def test_a_dry_run_shows_commands_and_estimate_and_does_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare = '[[prepare]]\ncommand = ["images", "draw", "{folder}/drawn"]\nmakes = "{folder}/drawn"\n'
    (tmp_path / "made.toml").write_text(f'{prepare}{SHORT}[[cells]]\n[[cells]]\nname = "gpu"\ngpus = 64\n')
    assert launch.main(["experiment", "run", "made.toml", "--dry-run", "--site", "aws-p3-2xlarge"]) == 0
    lines = capsys.readouterr().out.splitlines()
    program = os.path.relpath(ROOT / "torch_impl/train.py")
    assert lines[0] == "python -m common images draw runs/made/drawn"
    assert lines[1].startswith(f"python {program} --model mlp --dataset synthetic:600x8x8x1x3 ")
    assert lines[2].endswith(
        "--name gpu-torch-mlp-np1-r1 --site aws-p3-2xlarge"
    )  # there are enough on that site, on as many nodes as needed
    assert re.fullmatch(
        r"2 runs of 2 to do on aws-p3-2xlarge: about 24\.0 s \(roughly, within a factor of 3\); .*; \$0\.\d\d",
        lines[-1],
    )
    assert launch.main(["experiment", "run", "made.toml", "--dry-run"]) == 0
    assert "left out: gpu-torch-mlp-np1, needs 64 GPUs, there are 0" in capsys.readouterr().out.splitlines()
    assert [path.name for path in tmp_path.iterdir()] == ["made.toml"]


def test_another_controller_is_another_setting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.toml").write_text(
        SHORT.replace('launcher = "python"', 'np = 2\ncontroller = "gloo"') + "[[cells]]\n"
    )
    plan = read_plan("made.toml", runs_folder=Path("runs"))
    world = World(size=2, local_size=2, hosts=["a"], controller="mpi", threads_per_rank=1, cores=2,
                  oversubscribed=False, devices=["cpu", "cpu"])  # fmt: skip
    record = make_record(config=plan.runs[0].config, status=make_status(), world=world)
    RunWriter.create(plan.folder / plan.runs[0].name, record).end("finished")
    with pytest.raises(UserError, match=r"was run with controller mpi\. Received: gloo in made\.toml"):
        survey(plan)


def test_a_run_counts_for_the_variables_of_its_cell_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOROVOD_CYCLE_TIME", raising=False)

    def states(cell, recorded):
        (tmp_path / "made.toml").write_text(f"{SHORT}[[cells]]\n{cell}\n")
        plan = read_plan("made.toml", runs_folder=Path("runs"))
        shutil.rmtree(plan.folder, ignore_errors=True)
        environment = make_environment(variables=recorded)
        record = make_record(config=plan.runs[0].config, status=make_status(), environment=environment)
        RunWriter.create(plan.folder / plan.runs[0].name, record).end("finished")
        assert [one.state for one in survey(plan)] == ["finished"] or cell, "shown without a launcher"
        return [one.state for one in survey(replace(plan, launcher=launcher_at(None, hosts=None)))]

    own, slow = {"HOROVOD_CYCLE_TIME": "0.2"}, {"HOROVOD_CYCLE_TIME": "5"}
    assert states("", own) == states("HOROVOD_CYCLE_TIME = 5", slow) == states("HOROVOD_CYCLE_TIME = 0.2", own)
    for cell, recorded, was, now in (("HOROVOD_CYCLE_TIME = 1", slow, "5", "1"), ("", slow, "5", "None")):
        with pytest.raises(UserError, match=rf"was run with HOROVOD_CYCLE_TIME {was}\. Received: {now} in made\.toml"):
            states(cell, recorded)


def test_a_run_of_another_site_is_not_used(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.toml").write_text(f"{SHORT}[[cells]]\n")
    plan = read_plan("made.toml", runs_folder=Path("runs"))
    record = make_record(config=plan.runs[0].config, status=make_status(), site="cte-power")
    RunWriter.create(plan.folder / plan.runs[0].name, record).end("finished")
    command = ["experiment", "run", "made.toml"]
    assert launch.main(command) == 2
    assert "was run at another site, cte-power. Received: local. Give the runs" in capfd.readouterr().err
    assert launch.main([*command, "--site", "cte-power", "--dry-run"]) == 0
    assert "nothing is left to do: 1 run" in capfd.readouterr().out
    assert launch.main(["experiment", "status", "made.toml"]) == 0
    assert launch.main([*command, "--hosts", "a:1", "--dry-run"]) == 2
    assert "was run at another site, cte-power. Received: hosts" in capfd.readouterr().err
    named = [*command, "--runs-folder", "elsewhere", "--hosts", "a:1", "--dry-run"]
    assert launch.main(named) == 0
    assert "1 run of 1 to do on hosts" in capfd.readouterr().out


def test_what_needs_more_slots_than_hosts_have_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.toml").write_text(SHORT.replace('launcher = "python"', "np = [2, 3]") + "[[cells]]\n")
    assert launch.main(["experiment", "run", "made.toml", "--hosts", "a:1,b:1", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "horovodrun -np 2 -H a:1,b:1" in shown and "--site hosts" in shown
    assert "left out: torch-mlp-np3, needs 3 slots, there are 2" in shown


PREPARE = '[[prepare]]\ncommand = ["datasets", "verify", "mars"]\nmakes = "{folder}/drawn"\n'


@pytest.mark.ranks
@pytest.mark.ci
def test_preparations_that_no_run_needs_are_left_out(tmp_path):
    assert Experiment(tmp_path, f"{PREPARE}{SHORT}[[cells]]\n").run().code == 0


def test_a_failed_preparation_ends_it(tmp_path):
    needing = f'{PREPARE}{SHORT}data_folder = "{{folder}}/drawn"\n[[cells]]\n'
    ended = Experiment(tmp_path, needing).call("run")
    assert ended.code == 2
    words = "preparing the experiment failed. Received: exit code 2 of python -m common datasets verify mars"
    assert words in ended.stderr


def test_processes_of_other_runs_do_not_count_as_left_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.toml").write_text(f"[experiment]\nrepeats = 12\n{SHORT}[[cells]]\n")
    plan = read_plan("made.toml", runs_folder=Path("runs"))
    eleventh = plan.runs[10]
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)", *eleventh.arguments(plan.folder)]
    process = psutil.Popen(sleeper)
    try:
        waiting.wait_until(lambda: bool(left_over(plan, eleventh)))
        assert [found.pid for found in left_over(plan, eleventh)] == [process.pid]
        assert left_over(plan, plan.runs[0]) == []  # -r1 is a prefix of -r11
    finally:
        process.kill()
        process.wait()
    assert left_over(plan, eleventh) == []
    monkeypatch.chdir(tmp_path.parent)  # the same folder, seen from another one
    plan = read_plan(str(tmp_path / "made.toml"), runs_folder=tmp_path / "runs")
    process = psutil.Popen(sleeper, cwd=tmp_path)
    try:
        waiting.wait_until(lambda: [found.pid for found in left_over(plan, eleventh)] == [process.pid])
    finally:
        process.kill()
        process.wait()
    assert {found.state for found in survey(plan)} == {"to do"}
