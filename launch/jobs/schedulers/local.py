"""This machine: a script in the background that outlives the terminal."""

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from common.errors import UserError, user_errors
from common.utils.whole_files import read_text
from launch.jobs.job import Job, JobRecord, JobStatus
from launch.jobs.scripts import experiment_words, preflight_words, prologue, repeats_words, run_lines
from launch.starting.launchers import launcher_at
from launch.starting.shell import line

SCRIPT = "job.sh"
LOG = "output.log"
EXIT_CODE = "exit-code"
ENDED = 128 + signal.SIGTERM
LATE = 124  # the exit code of `timeout` at the limit


def render(job: Job) -> dict[str, str]:
    """Return the script."""
    return {SCRIPT: script(job)}


def script(job: Job, *, hosts: str | None = None) -> str:
    """Return the script that runs a job, one repeat after the other, on this host or on others: "a:2,b:2"."""
    lines = [
        "#!/usr/bin/env bash",
        f"# {job.name}, {job.size} ranks on {job.site.name}; written by `python -m launch submit`.",
        "set -e",  # not -u: scripts that set up modules read variables that are not set
        "folder=$(dirname \"$(realpath \"$0\")\")",
        "trap 'echo $? > \"$folder/exit-code\"' EXIT",
        f"trap 'exit {ENDED}' TERM INT",
        *prologue(job),
        *([line(preflight_words(job, hosts=hosts))] if job.preflight else []),
        *run_lines(job, _commands(job, hosts=hosts)),
    ]  # fmt: skip
    return "\n".join([*lines, ""])


def _commands(job: Job, *, hosts: str | None) -> list[list[str]]:
    """Return the commands that run one after the other."""
    if job.experiment:
        return [experiment_words(job, hosts=hosts)]
    launcher = replace(launcher_at(job.site.reference, hosts=hosts), site=job.site)
    return repeats_words(job, start=launcher.words(np=job.size), hosts=hosts)


def submit(job: Job, folder: Path, *, keep: Callable[[str], None]) -> str:
    """Start the script; its id is that of its process, and when that began."""
    with user_errors("starting the job"), (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            ["bash", str((folder / SCRIPT).resolve())],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    return f"{process.pid}@{_began(psutil.Process(process.pid))}"


def state(record: JobRecord, folder: Path) -> JobStatus:
    """Return its status, by its process and its exit code file."""
    if _process(record):
        return JobStatus("running")
    try:
        code = int(read_text(folder / EXIT_CODE))
    except (OSError, ValueError):
        return JobStatus("failed", "it ended without leaving an exit code: it was killed")
    if code == ENDED:
        return JobStatus("cancelled")
    if code == LATE:
        return JobStatus("failed", "the time limit was reached: give more --minutes")
    return JobStatus("finished") if code == 0 else JobStatus("failed", f"exit code {code}")


def logs(record: JobRecord, folder: Path) -> list[str]:
    """Return the command that prints the log."""
    return ["cat", str(folder / LOG)]


def cancel(record: JobRecord, folder: Path) -> None:
    """End the script and all it has started: its session."""
    process = _process(record)
    if process is None:
        raise UserError(f"the job does not run any more. Received: {record.name}. There is nothing to end")
    for member in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(member.pid) == process.pid:
                member.terminate()


def shell(record: JobRecord, folder: Path) -> list[str]:
    """Its run folders are on this machine."""
    return []


def _process(record: JobRecord) -> psutil.Process | None:
    """Return the script's process; None: it has ended."""
    number, _, began = record.id.partition("@")
    with suppress(psutil.NoSuchProcess, ValueError):
        process = psutil.Process(int(number))
        if _began(process) == began and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def _began(process: psutil.Process) -> str:
    """Return when a process began, in ticks since the machine's boot, as the time of day may be corrected."""
    try:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
    except FileNotFoundError:
        return f"{process.create_time():.2f}"  # not on Linux, or the process has ended
