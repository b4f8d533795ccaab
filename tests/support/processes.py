"""Programs that tests start as users do: their environment, launchers, ends and exit codes."""

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import psutil

from common.distributed.launchers import launcher_rank, under_launcher
from common.run_folder.records import EPOCHS_FILE

TESTS = Path(__file__).parent
ROOT = TESTS.parents[1]
BIN = Path(sys.executable).parent
HANG_SECONDS = 400  # bound for a whole start, on a machine that has much else to do
END_SECONDS = 60  # bound for the end of a program after a signal to end


def environment():
    """Environment of a worker: this Python's executables first, the project importable, CPU only, few threads."""
    return os.environ | {
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }


def launcher_command(launcher):
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
class Finished:
    """A program that has ended."""

    code: int
    stdout: str
    stderr: str


def child_environment(folder):
    """Environment of a trainer: a cache of its own."""
    return environment() | {"HOROVOD_TWINS_CACHE": str(folder / "cache"), "PYTHONUNBUFFERED": "1"}


def start_command(command, *, folder):
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


def run_python(*words, cwd=ROOT, **variables):
    """Run Python with these words; return what `subprocess.run` does."""
    command, variables = [sys.executable, *words], environment() | variables
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=120, check=False)


def run_command(command, *, folder):
    """Run a program to its end; one that hangs is killed with all its processes, its exit code is 124."""
    return finish(start_command(command, folder=folder), within_seconds=HANG_SECONDS)


def finish(process, *, within_seconds):
    """Wait for the end of a program, as `run_command` does."""
    try:
        stdout, stderr = process.communicate(timeout=within_seconds)
        return Finished(process.returncode, stdout, stderr)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        return Finished(124, stdout, f"{stderr}\nnot ended after {within_seconds} s")


def epochs_of(run):
    """Return how many epochs a run folder has on record."""
    epochs = run / EPOCHS_FILE
    return epochs.read_text().count("\n") if epochs.exists() else 0


def train_command(framework, arguments):
    return [sys.executable, str(ROOT / f"{framework}_impl/train.py"), *arguments]


def rank_processes(launcher):
    """Return rank -> process, of the trainers that a launcher has started."""
    found = {}
    for process in psutil.Process(launcher).children(recursive=True):
        try:
            words, variables = process.cmdline(), process.environ()
        except psutil.NoSuchProcess:  # it has just ended
            continue
        is_trainer = len(words) > 1 and words[1].endswith("_impl/train.py") and "python" in words[0]
        if is_trainer and under_launcher(variables):
            found[str(launcher_rank(variables))] = process
    return found


def recording_command(framework, arguments, *, codes):
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


def call(main, *words, code=0, shows=""):
    """Call in this process what a program calls; check its exit code (None: any) and that it prints these words.

    Returns:
        All that it printed.
    """
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        ended = main([*words])
    assert code in (None, ended) and shows in printed.getvalue(), (ended, printed.getvalue())
    return printed.getvalue()


def our_lines(text):
    """Return the lines that a trainer wrote as an error, whatever tag a launcher has put before them."""
    return [line for line in text.splitlines() if re.search(r"_impl/\w+\.py: error: |interrupted by SIG", line)]
