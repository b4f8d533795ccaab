"""Start programs and end them; pass on what they print, less the noise of libraries."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TextIO

import psutil

from common.errors import UserError
from common.run_folder.start_times import STARTED_AT, timestamp
from common.utils.environments import missing_packages

DEFAULT_RANKS = 2
PROGRAMS = {"torch": "torch_impl/train.py", "keras": "keras_impl/train.py"}
PATIENCE_SECONDS = 10.0  # between SIGTERM and SIGKILL
PROGRAM_SECONDS = 20.0  # for a program that only prints something

# What libraries print at every start and no setting turns off.
_NOISE = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\)"
    r"|oneDNN custom operations are on"
    r"|This TensorFlow binary is optimized to use available CPU instructions"
    r"|To enable the following instructions"
    r"|Forwarding signal \d+ to job"
    r"|Horovod background loop uncaught exception: .*(?:Connection (?:closed|reset) by peer|Broken pipe)"
)
_FIRST_RANK = re.compile(r"^\[(?:\d+,)?0\]<(?:stdout|stderr)>:")


def require_frameworks(frameworks: Iterable[str]) -> None:
    """Raise UserError if the packages of a framework are not installed here."""
    for framework in frameworks:
        if missing_packages(framework):
            raise UserError(
                f"the framework is not installed. Received: {framework}. Run `make setup FRAMEWORKS={framework}`"
            )


def run_filtered(command: Sequence[str], *, environment: Mapping[str, str]) -> int:
    """Run a program and print its lines without noise and without rank 0's tag; return its exit code.

    Ctrl-C and SIGTERM go to the program, which ends its ranks; this process ends after it.
    """
    return run_to_end(command, environment=environment).code


@dataclass(frozen=True)
class Ended:
    """How a program ended; `was_interrupted`: Ctrl-C or SIGTERM came meanwhile."""

    code: int
    was_interrupted: bool


def run_to_end(command: Sequence[str], *, environment: Mapping[str, str]) -> Ended:
    """Run a program as `run_filtered` does; return how it ended."""
    process = subprocess.Popen(
        command,
        env={**environment, **timestamp(STARTED_AT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    assert process.stdout and process.stderr
    with _signals_left_to(process) as signals:
        readers = [
            threading.Thread(target=_pass_on, args=(process.stdout, sys.stdout)),
            threading.Thread(target=_pass_on, args=(process.stderr, sys.stderr)),
        ]
        for reader in readers:
            reader.start()
        code = process.wait()
        for reader in readers:
            reader.join()
    return Ended(code if code >= 0 else 128 - code, was_interrupted=bool(signals))


def clean_line(line: str) -> str | None:
    """Return a line as it is shown, None for noise."""
    return None if _NOISE.search(line) else _FIRST_RANK.sub("", line)


def _pass_on(source: IO[str], target: TextIO) -> None:
    # Where nobody reads any more (`| head`), the program must learn of it too: a pipe that nobody reads would block it.
    with source, suppress(BrokenPipeError):
        for line in source:
            shown = clean_line(line)
            if shown is not None:
                target.write(shown)
                target.flush()


@contextmanager
def _signals_left_to(process: subprocess.Popen[str]) -> Iterator[list[int]]:
    """A terminal sends Ctrl-C to both processes: this one waits. SIGTERM comes to this one alone: it is passed on.

    Yields:
        A list of the signals that have come.
    """
    come: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        come.append(number)
        if number == signal.SIGTERM:
            _terminate(process)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield come
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM to the program and to what it has started in its process group.

    For MPI, horovodrun becomes a shell that waits for mpirun: signaled alone, the shell would end, mpirun not.
    """
    group = os.getpgrp()
    with suppress(psutil.NoSuchProcess):
        program = psutil.Process(process.pid)
        for member in [program, *program.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getpgid(member.pid) == group:
                    member.send_signal(signal.SIGTERM)


def trainer_environment() -> dict[str, str]:
    """Return the environment of trainers: this interpreter's programs first, TensorFlow's start-up lines off."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}


# Name -> what is received, and what to do.
_NOT_OF_THE_SETUP = {
    "srun": ("a machine without Slurm", "Give the command on a node of the cluster, or another --site"),
    "ssh": ("several hosts", "Install OpenSSH's client"),
}


def require_program(name: str) -> None:
    """See whether a program is there.

    Raises:
        UserError: it is not.
    """
    if not has_program(name):
        raise not_installed(name)


def has_program(name: str) -> bool:
    """Return whether trainers would find a program."""
    return shutil.which(name, path=trainer_environment()["PATH"]) is not None


def not_installed(name: str) -> UserError:
    """Return the user error for a missing program, most of which the set-up installs."""
    received, remedy = _NOT_OF_THE_SETUP.get(name, (sys.executable, "Run `make setup` and use its .venv"))
    return UserError(f"{name} is not installed. Received: {received}. {remedy}")


def launcher_command(launcher: str, *, size: int) -> list[str]:
    """Return the command before a worker's path: of a process alone (none), or by horovodrun."""
    if launcher == "none":
        return [sys.executable]
    return ["horovodrun", "-np", str(size), f"--{launcher}", sys.executable]


def output_of(*command: str) -> str:
    """Return what a program prints.

    Raises:
        UserError: it is not there, failed, or did not end.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PROGRAM_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"cannot run `{shlex.join(command)}`: {error}") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise UserError(f"`{shlex.join(command)}` ended with {done.returncode}: {lines[-1]}")
    return done.stdout or done.stderr  # srun writes its lists there


@contextmanager
def _pinned(cores: Collection[int]) -> Iterator[None]:
    """Pin this thread meanwhile: a process has the cores of the thread that starts it."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def started(
    command: Sequence[str], *, variables: Mapping[str, str], log: Path, cores: Collection[int] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ranks meanwhile, their output going to a file; whatever ends this command ends them too.

    Args:
        command: what starts them.
        variables: of their environment, beside those of this process.
        log: of their output.
        cores: that they are pinned to; none: they may use those of this process.
    """
    with log.open("wb") as output:
        try:
            with _pinned(cores):
                process = subprocess.Popen(
                    command,
                    env={**trainer_environment(), **variables, **timestamp(STARTED_AT)},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
        except FileNotFoundError:
            raise not_installed(command[0]) from None
        try:
            yield process
        finally:
            _end(process)


def last_lines(log: Path) -> str:
    """Return the last lines of a log of ranks, without noise."""
    lines = (clean_line(line) for line in log.read_text(errors="replace").splitlines()[-30:])
    return "\n".join(line for line in lines if line)


def reason_in(log: Path) -> str:
    """Return the line of a log that says why the ranks ended.

    The last user error; else the first exception, after which launchers print their own; else the
    last line that is no rule of hyphens.
    """
    lines = last_lines(log).splitlines()
    errors = [line for line in lines if "error: " in line]
    raised = [line for line in lines if "Error: " in line]
    words = [line for line in lines if any(letter.isalpha() for letter in line)]
    return (errors[-1:] or raised[:1] or words[-1:] or ["no output"])[0]


def end_processes(processes: Sequence[psutil.Process]) -> None:
    """End processes, all at once, by force where they do not end by themselves."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(processes, timeout=PATIENCE_SECONDS)[1]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the ranks and what started them, all at once: mpirun outlives a horovodrun that is signaled alone."""
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(process.pid)
        end_processes([first, *first.children(recursive=True)])
    process.wait()
