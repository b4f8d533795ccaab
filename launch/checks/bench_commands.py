"""The contestants of `bench` that are commands: what it takes to start, from the command on."""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from common.checks.bench_record import COMMAND, Turn
from common.errors import UserError
from common.run_folder.records import RUN_FILE
from common.utils.paths import ROOT
from launch.starting.processes import last_lines, launcher_command, started

SIZE = 2
_NOTHING = ["-c", "pass"]
_IMPORTS = {"torch": "import torch, horovod.torch", "keras": "import tensorflow, keras, horovod.tensorflow"}
_ONE_UPDATE = (
    *("--model", "cnn", "--dataset", "synthetic:512x28x28x1x10"),
    *("--epochs", "1", "--max-steps", "1", "--name", "run"),
)


def command_turns(base: str, measured: str, *, framework: str, rounds: int) -> Iterator[Turn]:
    """Yield the turns of two commands, A B A B, each as one image in the seconds that it took.

    A round before the first is not counted: afterwards files are in memory.

    Raises:
        UserError: a command failed.
    """
    for number in range(-1, rounds):
        for contestant in (base, measured):
            seconds = _seconds_of(contestant, framework)
            if number >= 0:
                yield Turn(model=COMMAND, contestant=contestant, round=number, ranks=SIZE, steps=1, images=1,
                           seconds=seconds, cpu_seconds=0.0)  # fmt: skip


def _seconds_of(contestant: str, framework: str) -> float:
    """Return the seconds from a command's start to its end; of a trainer, to its first update, as it recorded them."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        command, log = _command(contestant, framework, runs=folder), folder / "log"
        began = time.perf_counter()
        with started(command, variables={}, log=log) as process:
            code = process.wait()
        seconds = time.perf_counter() - began
        if code:
            raise UserError(f"`{' '.join(command)}` ended with code {code}. Its last lines:\n{last_lines(log)}")
        if contestant == "first_update":
            totals = json.loads((folder / "run" / RUN_FILE).read_text())["totals"]
            return float(totals["launch_seconds"] + totals["startup_seconds"])
    return seconds


def _command(contestant: str, framework: str, *, runs: Path) -> list[str]:
    launched = launcher_command("mpi", size=SIZE)
    commands = {
        "mpirun": ["mpirun", "--allow-run-as-root", "-H", f"localhost:{SIZE}", "-np", str(SIZE), sys.executable],
        "horovodrun": launched,
        "imports": launched,
        "first_update": [*launched, str(ROOT / f"{framework}_impl" / "train.py"), "--runs-folder", str(runs)],
    }
    arguments = {"imports": ["-c", _IMPORTS.get(framework, "")], "first_update": [*_ONE_UPDATE]}
    return [*commands[contestant], *arguments.get(contestant, _NOTHING)]
