"""A process per framework: how the command starts both, and what both do alike. Keras builds while PyTorch runs."""

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from common.data.progress import say
from common.errors import EXIT_CODE_USER_ERROR, UserError, as_user_error
from common.twins.contract import PairSource, forbid_downloads
from common.twins.records import SIDES, ArrayFolder, Comparison, TorchTrace, read_record, write_record
from common.utils.cores import usable_cores
from common.utils.environments import missing_packages, project_first

UPDATES = 10
MOST_MULTIPLY_ADDS = 10e9  # of all updates, forward and backward; above, there is one update
TASK_FILE, RESULT_FILE, ERROR_FILE = "task.json", "{}.json", "{}.error"
_KILLED = -9
_LAST_LINES = 12  # of what a process printed, where it failed for a reason that is not the user's


@dataclass(frozen=True, kw_only=True)
class Task:
    """What both processes are given, in a folder that takes what they write.

    Attributes:
        threads: compute threads.
    """

    source: PairSource
    threads: int
    folder: Path

    def open_arrays(self) -> ArrayFolder:
        """Return PyTorch's arrays."""
        return ArrayFolder(self.folder / "arrays")

    def write_result(self, side: str, result: TorchTrace | Comparison) -> None:
        """Hand over what a process has found."""
        write_record(self.folder / RESULT_FILE.format(side), result)

    def torch_result(self) -> TorchTrace:
        """Return what PyTorch's process has found, once it has ended; end if it found nothing."""
        sys.stdin.read()  # up to its end, which comes then
        file = self.folder / RESULT_FILE.format("torch")
        return read_record(file, TorchTrace) if file.exists() else sys.exit(1)


def updates_for(multiply_adds: int) -> int:
    """Return how many updates are made: fewer of a model whose passes take long.

    Args:
        multiply_adds: of a forward pass of a batch; a backward pass has twice as many.
    """
    return UPDATES if 3 * UPDATES * multiply_adds <= MOST_MULTIPLY_ADDS else 1


def process_seconds() -> float:
    """Return how long this process has run, imports included."""
    return time.time() - psutil.Process().create_time()


def run_worker(work: Callable[[Task], None], *, side: str, arguments: Sequence[str] | None = None) -> int:
    """Do a process's work; a UserError goes into a file, which the command shows."""
    folder = Path((arguments or sys.argv[1:])[0])
    forbid_downloads()
    try:
        work(read_record(folder / TASK_FILE, Task))
    except (UserError, MemoryError) as error:
        traceback.print_exc()
        (folder / ERROR_FILE.format(side)).write_text(str(as_user_error(error)))
        return EXIT_CODE_USER_ERROR
    return 0


def compare(source: PairSource, folder: Path) -> Comparison:
    """Compare two models; the folder takes arrays and what both processes print.

    Raises:
        UserError: a model cannot be used.
        RuntimeError: a process failed.
    """
    for framework in SIDES:
        if missing_packages(framework):
            raise UserError(f"both frameworks are needed. Received: no {framework} is installed. Run `make setup`")
    write_record(folder / TASK_FILE, Task(source=source, threads=usable_cores(), folder=folder))
    with ExitStack() as stack:
        torch, keras = (stack.enter_context(_started(framework, folder)) for framework in SIDES)
        say(f"running the PyTorch model of {source.name}")
        _wait(torch, "torch", folder)
        say("comparing it with the Keras model")
        _wait(keras, "keras", folder)
    return read_record(folder / RESULT_FILE.format("keras"), Comparison)


@contextmanager
def _started(framework: str, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a process; end it at the end, however that comes."""
    # In float64 oneDNN computes nothing, but TensorFlow would keep all memory that is freed.
    command = [sys.executable, "-m", f"{framework}_impl.twins.worker", str(folder), "--onednn", "off"]
    environment = {**os.environ, **project_first(), "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    entry = subprocess.DEVNULL if framework == "torch" else subprocess.PIPE  # which tells that PyTorch's has ended
    with (folder / f"{framework}.log").open("w") as log:
        process = subprocess.Popen(command, stdin=entry, stdout=log, stderr=log, env=environment)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _wait(process: "subprocess.Popen[bytes]", framework: str, folder: Path) -> None:
    """Wait for a process; raise the error with which it ended."""
    process.communicate()
    error = folder / ERROR_FILE.format(framework)
    if error.exists():
        raise UserError(error.read_text())
    name = SIDES[framework]
    if process.returncode == _KILLED:
        raise UserError(
            f"the process of {name} was killed, probably because there was not enough memory. Received: these models. "
            "Give a smaller input"
        )
    if process.returncode:
        log = (folder / f"{framework}.log").read_text(errors="replace").splitlines()[-_LAST_LINES:]
        raise RuntimeError(f"the process of {name} ended with exit code {process.returncode}:\n" + "\n".join(log))
