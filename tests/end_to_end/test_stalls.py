"""A stopped rank: the run says which, ends, and goes on from its checkpoint to the weights of an undisturbed one."""

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from jobs import Jobs, resumed, train
from processes import (
    HANG_SECONDS,
    TESTS,
    epochs_of,
    finish,
    launcher_command,
    rank_processes,
    run_command,
    start_command,
    train_command,
)
from waiting import wait_until

from common.run_folder.records import read_run

pytestmark = [pytest.mark.ranks, pytest.mark.ci]

SETTINGS = ["--dataset", "synthetic:4000x28x28x1x10", "--model", "mlp", "--epochs", "12", "--batch-size", "32"]
SETTINGS += ["--threads", "1", "--stall-seconds", "3", "--on-stall", "end"]


@pytest.mark.parametrize(("framework", "launcher"), [("keras", "mpirun2")], indirect=["framework"])
def test_a_stopped_rank_is_named_and_the_run_goes_on_from_its_checkpoint(framework, launcher, tmp_path):
    resume = resumed("stopped", "stopped", "--stall-seconds", "60", after="undisturbed", launcher=launcher)
    jobs = Jobs(tmp_path, [train("undisturbed", *SETTINGS, "--stall-seconds", "60", launcher=launcher), resume])
    command = [*launcher_command(launcher), *train_command(framework, [*SETTINGS, "--name", "stopped"])]
    folder = jobs.place(framework) / "runs" / "stopped"
    process = start_command(command, folder=jobs.place(framework))
    wait_until(lambda: epochs_of(folder), process=process)
    ranks = rank_processes(process.pid)
    started = [*ranks.values(), *(child for rank in ranks.values() for child in rank.children())]
    stopped = ranks["1"].pid
    ended, line = stop(process, stopped)
    assert f"process {stopped}) is stopped, in " in line
    assert line.endswith(": ending the run")
    assert "in the kernel: state T" in ended.stderr
    run = read_run(folder)
    assert run.state == "interrupted"
    assert str(run.record.status.message).startswith(f"rank 1 (host {os.uname().nodename}, process {stopped})")
    assert len(started) == 4  # two ranks, and a watcher of each
    assert_ended(started)
    assert jobs.run(framework, "stopped").record.hashes == jobs.run(framework, "undisturbed").record.hashes


@pytest.mark.parametrize(
    ("framework", "launcher", "flags", "phase"),
    [("torch", "gloo2", [], "imports"), ("torch", "mpirun2", ["--strategy", "server", "--servers", "1"], "serving")],
    indirect=["framework"],
)
def test_a_rank_that_is_stopped_in_another_phase_is_named_and_the_run_ends(framework, launcher, flags, phase, tmp_path):
    command = train_command(framework, [*SETTINGS, *flags, "--name", "stopped"])
    process = start_command([*launcher_command(launcher), *command], folder=tmp_path)
    if phase == "imports":
        wait_until(lambda: imports_framework(process.pid, rank="1"), process=process)
    else:
        wait_until(lambda: epochs_of(tmp_path / "runs/stopped"), process=process)
    ranks = rank_processes(process.pid)
    stopped = ranks["1"].pid
    _, line = stop(process, stopped)
    assert f"(host {os.uname().nodename}, process {stopped}) is stopped, in {phase}, for " in line
    assert line.endswith(" s: ending the run")
    assert_ended(list(ranks.values()))


@pytest.mark.parametrize(("framework", "launcher"), [("keras", "gloo2")], indirect=["framework"])
def test_a_rank_that_is_stuck_in_loading_its_data_is_named_and_the_run_ends(framework, launcher, tmp_path):
    worker = [sys.executable, str(TESTS / "patched_trainer.py"), framework, "stuck_source", *SETTINGS]
    command = [*launcher_command(launcher), *worker, "--stall-seconds", "6"]
    ended = run_command(command, folder=tmp_path)
    assert ended.code not in (0, 124), ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if "patched_trainer.py: rank 1 (host" in line]
    assert " makes no progress, in loading data" in line
    assert line.endswith(": ending the run")


def stop(launcher, rank):
    """Stop rank 1, wait for the end of all, and return how they ended and the line that names it."""
    os.kill(rank, signal.SIGSTOP)
    ended = finish(launcher, within_seconds=HANG_SECONDS)
    assert ended.code not in (0, 124), ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if "_impl/train.py: rank 1" in line]
    return ended, line


def imports_framework(launcher, *, rank):
    """Return whether a rank has begun to load its framework's libraries."""
    process = rank_processes(launcher).get(rank)
    maps = Path(f"/proc/{process.pid}/maps").read_text() if process else ""
    return "/libtorch" in maps or "/libtensorflow" in maps


def assert_ended(processes):
    _, left = psutil.wait_procs(processes, timeout=20)
    assert not [one for one in left if one.status() != psutil.STATUS_ZOMBIE]
