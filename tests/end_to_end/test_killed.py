"""Trainers that get a signal, or of whose ranks one is killed: what they say, what they leave, how they go on."""

import json
import os
import signal
import socket
import sys

import psutil
import pytest
from builders import forget_hashes
from jobs import Job, Jobs, check_bit_for_bit
from processes import (
    END_SECONDS,
    epochs_of,
    finish,
    launcher_command,
    our_lines,
    rank_processes,
    recording_command,
    run_command,
    start_command,
    train_command,
)
from waiting import wait_until

from common.run_folder.checkpoints import checkpoint_folders, usable_checkpoints
from common.run_folder.records import read_run

pytestmark = pytest.mark.ranks

DATA = ["--dataset", "synthetic:1200x28x28x1x10", "--validation-share", "0.1"]
MLP = [*DATA, "--model", "mlp", "--steps-per-epoch", "4", "--keep", "2"]
CNN = [*DATA, "--model", "cnn", "--steps-per-epoch", "16"]
OFTEN = ["--checkpoint-minutes", "1e-9"]
ENDLESS = ["--epochs", "100000"]


@pytest.mark.parametrize(
    ("framework", "name"),
    [("torch", "SIGTERM"), pytest.param("keras", "SIGINT", marks=pytest.mark.ci)],
    indirect=["framework"],
)
def test_a_signal_interrupts_at_once(framework, name, tmp_path):
    process = start_command(train_command(framework, [*MLP, *ENDLESS, "--name", "run"]), folder=tmp_path)
    wait_until(lambda: epochs_of(tmp_path / "runs/run"), process=process)
    process.send_signal(getattr(signal, name))
    finished = finish(process, within_seconds=END_SECONDS)
    assert finished.code == 128 + getattr(signal, name), finished.stderr
    message = f"interrupted by {name}; finished epochs are kept, continue with --resume"
    assert our_lines(finished.stderr) == [message], finished.stderr
    assert "Traceback" not in finished.stderr
    run = read_run(tmp_path / "runs/run")
    assert run.state == "interrupted" and run.record.status.message == f"received {name}"
    assert run.record.status.ended_at is not None
    assert run.epochs and not (run.folder / "weights.safetensors").exists()


def jobs_of(folder, arguments, launcher):
    """Return the jobs that go on with the run `killed`, and that make it whole, by these arguments."""
    return Jobs(folder, [Job(name, (*arguments, "--name", name), launcher=launcher) for name in ("killed", "whole")])


@pytest.mark.parametrize("framework", ["torch"], indirect=True)
def test_a_killed_run_is_reported_and_resumes_by_the_same_command(framework, tmp_path):
    """Killed inside its second epoch or a later one, it ends as an unbroken run does; seconds of before are counted."""
    command, place = [*CNN, *OFTEN, "--resume-or-start"], Jobs(tmp_path, []).place(framework)
    run, endless = place / "runs/killed", [*command, *ENDLESS, "--name", "killed"]
    process = start_command(train_command(framework, endless), folder=place)

    def newest():
        return next(reversed(usable_checkpoints(run, recorded_epochs=epochs_of(run))), None)

    def is_inside():
        checkpoint = newest()
        return epochs_of(run) > 0 and checkpoint is not None and "-step-" in checkpoint.name

    def is_stopped():
        return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED

    while True:
        wait_until(is_inside, process=process)
        process.send_signal(signal.SIGSTOP)
        wait_until(is_stopped, process=process)
        if is_inside():  # else it has just finished an epoch
            break
        process.send_signal(signal.SIGCONT)
    process.send_signal(signal.SIGKILL)
    assert finish(process, within_seconds=END_SECONDS).code == -signal.SIGKILL
    assert read_run(run).state == "killed"
    record = json.loads((run / "run.json").read_text())
    assert record["status"]["state"] == "running"
    assert (record["status"]["process"], record["status"]["host"]) == (process.pid, socket.gethostname())
    # Times that the rest of the run cannot take.
    before = {"training_seconds": 2e6, "data_wait_seconds": 1e6}
    checkpoint = newest()
    forget_hashes(checkpoint)
    state = json.loads((checkpoint / "state.json").read_text())
    state["ranks"] = [rank | before for rank in state["ranks"]]
    state["checkpoint_seconds"] = 3e6
    (checkpoint / "state.json").write_text(json.dumps(state))

    jobs = jobs_of(tmp_path, [*command, "--epochs", str(epochs_of(run) + 1)], "none")
    resumed = jobs.run(framework, "killed")
    check_bit_for_bit(resumed, jobs.run(framework, "whole"))
    status, last = resumed.record.status, resumed.epochs[-1]
    assert status.resumed_after_epochs == [len(resumed.epochs) - 1]
    assert 0 < status.resumed_after_steps[0] - 16 * (len(resumed.epochs) - 1) < 16
    times = [last.training_seconds, last.data_wait_seconds, last.checkpoint_seconds]
    for seconds, kept in zip(times, [2e6, 1e6, 3e6], strict=True):
        assert kept < seconds < kept + 1e4


NATIVE = ["--strategy", "native", "--native"]
SERVER = ["--strategy", "server", "--servers", "2", "--lr-scaling", "none"]
KILLED = {  # framework, settings, launcher, the rank that is killed
    "server": ("torch", SERVER, "mpirun4", 3),
    "ddp": ("torch", [*NATIVE, "ddp"], "mpirun2", 1),
    "multiworker": ("keras", [*NATIVE, "multiworker"], "mpirun2", 1),
}


@pytest.mark.ci
@pytest.mark.parametrize("name", KILLED)
def test_a_killed_rank_ends_the_run_which_can_be_resumed(name, tmp_path):
    framework, settings, launcher, rank = KILLED[name]
    place, settings = Jobs(tmp_path, []).place(framework), [*CNN, "--batch-size", "32", *settings]
    run, endless = place / "runs/killed", [*settings, *OFTEN, *ENDLESS, "--resume-or-start", "--name", "killed"]
    process = start_command([*launcher_command(launcher), *train_command(framework, endless)], folder=place)
    wait_until(lambda: any("-step-" in folder.name for folder in checkpoint_folders(run)), process=process)
    rank_processes(process.pid)[str(rank)].kill()
    assert finish(process, within_seconds=END_SECONDS).code != 0
    wait_until(lambda: read_run(run).state != "running")  # the launcher may end before its last rank
    assert read_run(run).state in ("killed", "interrupted")
    epochs = epochs_of(run) + 2
    again = jobs_of(tmp_path, [*settings, *OFTEN, "--resume-or-start", "--epochs", str(epochs)], launcher)
    assert len(again.run(framework, "killed").epochs) == epochs


# What only rank 0 finds out under MPI (the run folder), what every rank does under Gloo (the batch).
LAUNCHED = [("torch", "mpi"), pytest.param("keras", "gloo", marks=pytest.mark.ci)]


@pytest.mark.parametrize(("framework", "launcher"), LAUNCHED, indirect=["framework"])
def test_every_rank_ends_with_2_under_a_launcher(framework, launcher, tmp_path):
    arguments, message = [*MLP, "--batch-size", "601"], "the batch is larger than each rank's shard"
    if launcher == "mpi":
        arguments, message = [*MLP, "--max-steps", "4", "--name", "taken"], "the run folder already exists"
        (tmp_path / "runs/taken").mkdir(parents=True)
        (tmp_path / "runs/taken/file").write_text("mine")
    codes = tmp_path / "codes"
    codes.mkdir()
    command = [*launcher_command(f"{launcher}2"), *recording_command(framework, arguments, codes=codes)]
    finished = run_command(command, folder=tmp_path)
    lines = our_lines(finished.stdout + finished.stderr)
    assert len(lines) == 1 and f"{framework}_impl/train.py: error: {message}" in lines[0], finished
    assert "Traceback" not in lines[0] and finished.code in (1, 2)
    assert {file.name: file.read_text() for file in codes.glob("rank?")} == {"rank0": "2\n", "rank1": "2\n"}, finished
    if launcher == "mpi":
        assert [file.read_text() for file in (tmp_path / "runs/taken").iterdir()] == ["mine"]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("framework", "launcher", "way"),
    [
        # Gloo's launcher leaves ranks 5 seconds for their last words, MPI's one: too little on a busy machine.
        ("torch", "gloo", "Ctrl-C"),
        ("keras", "gloo", "SIGTERM"),
        pytest.param("torch", "mpi", "Ctrl-C", marks=pytest.mark.long),
    ],
    indirect=["framework"],
)
def test_interrupted_under_a_launcher(framework, launcher, way, tmp_path):
    """A terminal signals all processes, `kill` one: here `launch train`."""
    launch = [sys.executable, "-m", "launch", "train", "--framework", framework, "--np", "2", "--controller", launcher]
    start = [*launcher_command(f"{launcher}2"), *train_command(framework, [])] if way == "Ctrl-C" else [*launch, "--"]
    process = start_command([*start, *MLP, *ENDLESS, "--name", "interrupted"], folder=tmp_path)
    wait_until(lambda: epochs_of(tmp_path / "runs/interrupted"), process=process)
    if way == "Ctrl-C":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGTERM)
    finished = finish(process, within_seconds=END_SECONDS)
    # Horovod's launcher, which reaps a program that it ends in two places, may report 0.
    assert finished.code not in ((124,) if way == "Ctrl-C" else (0, 124)), finished
    run = read_run(tmp_path / "runs/interrupted")
    assert run.state == "interrupted" and run.epochs
    resume = ["--resume", "runs/interrupted", "--epochs", str(len(run.epochs) + 1)]
    finished = run_command([*start, *resume], folder=tmp_path)
    assert finished.code == 0 and "run folder: runs/interrupted" in finished.stdout, finished
    assert read_run(tmp_path / "runs/interrupted").state == "finished"
