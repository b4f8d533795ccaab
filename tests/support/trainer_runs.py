"""Starts trainers for `test_trainers.py`: many small runs in one start, or the programs as users start them."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from rule_workers import TESTS, environment

from common.distributed.communicator import launcher_rank, under_launcher

ROOT = TESTS.parents[1]
BIN = Path(sys.executable).parent
HANG_SECONDS = 400  # bound for a whole start, on a machine that has much else to do
END_SECONDS = 60  # bound for the end of a program after a signal to end


def launcher_command(launcher: str) -> list[str]:
    """Return the command before the program.

    Args:
        launcher: `none`, or a name and a number of ranks: `mpirun2`, and by horovodrun `mpi2`, `gloo4`. horovodrun
            imports both frameworks first; mpirun does not.
    """
    if launcher == "none":
        return []
    name, size = launcher[:-1], launcher[-1]
    if name == "mpirun":
        return [str(BIN / "mpirun"), "-np", size, "--bind-to", "none", "--oversubscribe"]
    return [str(BIN / "horovodrun"), "-np", size, f"--{name}"]


@dataclass(frozen=True)
class Job:
    """One run of a program.

    Attributes:
        name: of the job; results are found by it.
        arguments: of the program.
        program: train, predict or export, or "outputs" for the linear outputs of a run for the first test images.
        patch: what `trainer_worker.py` breaks or replaces before; several are joined by "+".
        watch: folder whose files are hashed before and after.
    """

    name: str
    arguments: list[str]
    program: str = "train"
    patch: str = ""
    watch: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a job did on one rank."""

    code: int
    stdout: str
    stderr: str
    value: Any
    untouched: bool | None


Outcomes = dict[str, list[Outcome]]


def run_jobs(framework: str, jobs: Sequence[Job], *, folder: Path, launcher: str) -> Outcomes | str:
    """Do all jobs in one start; return job -> outcome of each rank, or what was printed where the start failed.

    Args:
        framework: torch or keras.
        jobs: their paths are relative to `folder`.
        folder: current folder of the ranks.
        launcher: see `launcher_command`.
    """
    results = folder / f"results-{framework}-{launcher}-{jobs[0].name}"
    results.mkdir()
    (results / "jobs").write_text(json.dumps([asdict(job) for job in jobs]))
    worker = [sys.executable, str(TESTS / "trainer_worker.py"), framework, str(results / "jobs"), str(results)]
    finished = run_command([*launcher_command(launcher), *worker], folder=folder)
    outcomes: Outcomes = {}
    for job in jobs:
        files = sorted(results.glob(f"{job.name}.rank*.json"))
        outcomes[job.name] = [Outcome(**json.loads(file.read_text())) for file in files]
    bugs = "\n".join(
        f"{name}: {outcome.stderr}" for name, ranks in outcomes.items() for outcome in ranks if outcome.code == 1
    )
    expected = 1 if launcher == "none" else int(launcher[-1])
    if finished.code != 0 or bugs or any(len(ranks) != expected for ranks in outcomes.values()):
        done = [name for name, ranks in outcomes.items() if len(ranks) == expected]
        return f"{framework} on {launcher} ended with {finished.code} after {done}\n{finished.stderr[-3000:]}\n{bugs}"
    return outcomes


@dataclass(frozen=True)
class Finished:
    """A program that has ended."""

    code: int
    stdout: str
    stderr: str


def child_environment(folder: Path) -> dict[str, str]:
    """Environment of a trainer: a cache of its own."""
    return environment() | {"HOROVOD_TWINS_CACHE": str(folder / "cache"), "PYTHONUNBUFFERED": "1"}


def start_command(command: Sequence[str], *, folder: Path) -> subprocess.Popen[str]:
    """Start a program in a session of its own, so that all its processes can be killed together."""
    return subprocess.Popen(
        command,
        cwd=folder,
        env=child_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_command(command: Sequence[str], *, folder: Path) -> Finished:
    """Run a program to its end; one that hangs is killed with all its processes, its exit code is 124."""
    return finish(start_command(command, folder=folder), within_seconds=HANG_SECONDS)


def finish(process: subprocess.Popen[str], *, within_seconds: float) -> Finished:
    """Wait for the end of a program, as `run_command` does."""
    try:
        stdout, stderr = process.communicate(timeout=within_seconds)
        return Finished(process.returncode, stdout, stderr)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        return Finished(124, stdout, f"{stderr}\nnot ended after {within_seconds} s")


def wait_until(condition: Callable[[], bool], *, process: subprocess.Popen[str]) -> None:
    """Wait for something that a program does; fail if it ends before."""
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def train_command(framework: str, arguments: Sequence[str]) -> list[str]:
    """Return the command of a trainer as one process."""
    return [sys.executable, str(ROOT / f"{framework}_impl/train.py"), *arguments]


def rank_processes(launcher: int) -> dict[str, psutil.Process]:
    """Return rank -> process, of the trainers that a launcher has started."""
    found = {}
    for process in psutil.Process(launcher).children(recursive=True):
        words, variables = process.cmdline(), process.environ()
        is_trainer = len(words) > 1 and words[1].endswith("_impl/train.py") and "python" in words[0]
        if is_trainer and under_launcher(variables):
            found[str(launcher_rank(variables))] = process
    return found


def recording_command(framework: str, arguments: Sequence[str], *, codes: Path) -> list[str]:
    """Return the same in a shell that writes the exit code of its rank into a file of the folder `codes`."""
    script = f"""
        trap '' TERM  # a launcher kills ranks when the first has ended with an error; the code is written first
        (trap - TERM; exec {shlex.join(train_command(framework, arguments))})
        code=$?
        echo $code > {shlex.quote(str(codes))}/rank${{OMPI_COMM_WORLD_RANK:-$HOROVOD_RANK}}
        exit $code
    """
    file = codes / "rank.sh"
    file.write_text(script)
    return ["bash", str(file)]


def our_lines(text: str) -> list[str]:
    """Return the lines that a trainer wrote as an error, whatever tag a launcher has put before them."""
    return [line for line in text.splitlines() if re.search(r"_impl/\w+\.py: error: |interrupted by SIG", line)]
