"""Starts a process per framework and waits for both: Keras builds its model while PyTorch's runs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from common.data.progress import say
from common.errors import UserError
from common.twins.comparison import Comparison, read_comparison
from common.twins.contract import FILE_NAMES, PairSource
from common.twins.worker import COMPARISON_FILE, ERROR_FILE
from common.utils.cores import usable_cores
from common.utils.environments import missing_packages, project_first

_KILLED = -9
_LAST_LINES = 12  # of what a process printed, where it failed for a reason that is not the user's


def compare(source: PairSource, folder: Path) -> Comparison:
    """Compare two models; the folder takes arrays and what both processes print.

    Raises:
        UserError: a model cannot be used.
        RuntimeError: a process failed.
    """
    for framework in FILE_NAMES:
        if missing_packages(framework):
            raise UserError(f"both frameworks are needed. Received: no {framework} is installed. Run `make setup`")
    settings = {"source": asdict(source), "threads": usable_cores()}
    (folder / "settings.json").write_text(json.dumps(settings))
    with ExitStack() as stack:
        torch, keras = (stack.enter_context(_started(framework, folder)) for framework in FILE_NAMES)
        say(f"running the PyTorch model of {source.name}")
        torch.wait()
        _check(torch, "torch", folder)
        say("comparing it with the Keras model")
        keras.wait()
        _check(keras, "keras", folder)
    return read_comparison(folder / COMPARISON_FILE)


@contextmanager
def _started(framework: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start a process; end it at the end, however that comes."""
    command = [sys.executable, "-m", f"{framework}_impl.twins.worker", str(folder)]
    with (folder / f"{framework}.log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **project_first(), "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _check(process: "subprocess.Popen[str]", framework: str, folder: Path) -> None:
    """Raise the error with which a process ended."""
    error = folder / ERROR_FILE.format(framework)
    if error.exists():
        raise UserError(error.read_text())
    name = FILE_NAMES[framework]
    if process.returncode == _KILLED:
        raise UserError(
            f"the process of {name} was killed, probably because there was not enough memory. Received: these models. "
            "Give a smaller input"
        )
    if process.returncode:
        log = (folder / f"{framework}.log").read_text(errors="replace").splitlines()[-_LAST_LINES:]
        raise RuntimeError(f"the process of {name} ended with exit code {process.returncode}:\n" + "\n".join(log))
