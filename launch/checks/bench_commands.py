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
from launch.checks.copied_runs import copy_runs
from launch.starting.processes import last_lines, launcher_command, started

SIZE = 2
REPORT_RUNS, REPORT_SETTINGS = 10_000, 320  # 640 cells
_NOTHING = ["-c", "pass"]
# Without the interpreter's end, which a first update does not have.
_IMPORTS = {
    "torch": "import os, torch, horovod.torch; os._exit(0)",
    "keras": "import os, tensorflow, keras, horovod.tensorflow; os._exit(0)",
}
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
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        if "report" in (base, measured):
            model = ROOT / "analysis/data/results/torch-cnn-np2-r1"
            copy_runs(folder / "runs", model=model, runs=REPORT_RUNS, settings=REPORT_SETTINGS)
        for number in range(-1, rounds):
            for contestant in (base, measured):
                seconds = _seconds_of(contestant, framework, folder)
                if number >= 0:
                    ranks = 1 if contestant.startswith("report") else SIZE
                    yield Turn(model=COMMAND, contestant=contestant, round=number, ranks=ranks, steps=1, images=1,
                               seconds=seconds, cpu_seconds=0.0)  # fmt: skip


def _seconds_of(contestant: str, framework: str, folder: Path) -> float:
    """Return the seconds from a command's start to its end; of a trainer, to its first update, as it recorded them."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        runs = Path(name)
        command, log = _command(contestant, framework, folder=folder, runs=runs), runs / "log"
        began = time.perf_counter()
        with started(command, variables={}, log=log) as process:
            code = process.wait()
        seconds = time.perf_counter() - began
        if code:
            raise UserError(f"`{' '.join(command)}` ended with code {code}. Its last lines:\n{last_lines(log)}")
        if contestant == "first_update":
            totals = json.loads((runs / "run" / RUN_FILE).read_text())["totals"]
            return float(totals["launch_seconds"] + totals["startup_seconds"])
    return seconds


def _command(contestant: str, framework: str, *, folder: Path, runs: Path) -> list[str]:
    """Return a command; `folder` holds the runs and the page of a report, `runs` is for what a trainer writes."""
    launched = launcher_command("mpi", size=SIZE)
    report = [sys.executable, "-m", "analysis", "report", str(folder / "runs"), "-o", str(folder / "report.html")]
    commands = {
        "mpirun": ["mpirun", "--allow-run-as-root", "-H", f"localhost:{SIZE}", "-np", str(SIZE), sys.executable,
                   *_NOTHING],
        "horovodrun": [*launched, *_NOTHING],
        "imports": [*launched, "-c", _IMPORTS.get(framework, "")],
        "first_update": [*launched, str(ROOT / f"{framework}_impl" / "train.py"), "--runs-folder", str(runs),
                         *_ONE_UPDATE],
        "report": [*report, "--force"],
        "report_again": report,
    }  # fmt: skip
    return commands[contestant]
