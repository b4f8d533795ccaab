"""The contestants of `bench` that are commands: what they take to start, their memory, and another trainer's speed."""

import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.checks.bench_record import COMMAND, Turn
from common.errors import UserError
from common.run_folder.records import RUN_FILE
from common.utils.environments import project_first
from common.utils.paths import ROOT
from launch.bench.copied_runs import copy_runs
from launch.bench.memory import WINDOW_SECONDS, memory_of_second_rank
from launch.starting.processes import last_lines, launcher_command, started

MOST_SECONDS = 600.0  # for one command: its ranks are deadlocked
REPORT_RUNS, REPORT_SETTINGS = 10_000, 320  # 640 cells
PYDTNN = "pydtnn"
_OF_MEMORY = ("imports_memory", "training_memory")
_NOTHING = ["-c", "pass"]
_IMPORTS = {
    "torch": "import os, time, torch, horovod.torch",
    "keras": "import os, time, tensorflow, keras, horovod.tensorflow",
}
_NO_END = "os._exit(0)"  # skips the interpreter's shutdown: the time to a first update does not include it
_ONE_UPDATE = (
    *("--model", "cnn", "--dataset", "synthetic:512x28x28x1x10"),
    *("--epochs", "1", "--max-steps", "1", "--name", "run"),
)
# A test of batches as small as those of training takes no more memory than training, so the end shows that of training.
_TRAINING = (
    *("--model", "cnn", "--dataset", "mnist", "--epochs", "1", "--max-steps", "400", "--eval-batch-size", "64"),
    *("--name", "run"),
)
# The recipe of PyDTNN's README on data of MNIST's shape. The speed counts when everything is warm: ours in the second
# epoch, PyDTNN's in the second half of its one.
_RECIPE_IMAGES, _RECIPE_BATCH = 16_000, 64
_RECIPE_FILE = ROOT / "launch/recipes/pydtnn-mnist.toml"
_RECIPE = (
    *("--recipe", str(_RECIPE_FILE), "--dataset", f"synthetic:{_RECIPE_IMAGES}x28x28x1x10"),
    *("--batch-size", str(_RECIPE_BATCH), "--epochs", "2", "--no-evaluate-first", "--name", "run"),
)
_PYDTNN_RECIPE = (
    *("--model", "recipe", "--batch_size", str(_RECIPE_BATCH), "--num_epochs", "1", "--validation_split", "0.2"),
    *("--optimizer", "adam", "--learning_rate", "0.01", "--epsilon", "1e-8", "--parallel", "data"),
    *("--use_synthetic_data", "true", "--lr_schedulers", "reduce_lr_on_plateau"),  # its others write weights here
)
_PYDTNN_SPEED = re.compile(r"Training throughput \(from model, from last half of each epoch\): ([\d.]+) samples/s")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where commands run.

    Attributes:
        framework: torch or keras.
        size: ranks.
        threads: of a rank.
        onednn: as of the trainers.
        pydtnn: the Python that has PyDTNN; None: it is not among the contestants.
        folder: holds the runs and the page of a report.
    """

    framework: str
    size: int
    threads: int
    onednn: str
    pydtnn: str | None
    folder: Path


def command_turns(
    base: str,
    measured: str,
    *,
    framework: str,
    rounds: int,
    size: int,
    threads: int = 1,
    onednn: str = "on",
    pydtnn: str | None = None,
) -> Iterator[Turn]:
    """Yield the turns of two commands, A B A B.

    A round before the first is not counted: afterwards files are in memory.

    Raises:
        UserError: a command failed.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        place = Place(framework=framework, size=size, threads=threads, onednn=onednn, pydtnn=pydtnn, folder=Path(name))
        if "report" in (base, measured):
            model = ROOT / "analysis/data/results/torch-cnn-np2-r1"
            copy_runs(place.folder / "runs", model=model, runs=REPORT_RUNS, settings=REPORT_SETTINGS)
        for number in range(-1, rounds):
            for contestant in (base, measured):
                found = {"model": COMMAND, "images": 1, "steps": 1, **_measured(contestant, place)}
                if number >= 0:
                    yield Turn(contestant=contestant, round=number, ranks=size, cpu_seconds=0.0, **found)


def _measured(contestant: str, place: Place) -> dict[str, Any]:
    """Run a command; return what is measured of it, by the names of `Turn`."""
    with tempfile.TemporaryDirectory(dir=place.folder) as name:
        runs, memory = Path(name), 0
        command, log = _command(contestant, place, runs=runs), runs / "log"
        began = time.perf_counter()
        try:
            with started(command, variables=_variables(contestant, place), log=log) as process:
                if contestant in _OF_MEMORY:
                    memory = memory_of_second_rank(process, limit=MOST_SECONDS) or 0
                code = process.wait(max(0.0, began + MOST_SECONDS - time.perf_counter()))
        except subprocess.TimeoutExpired:
            raise _failed(f"did not end within {MOST_SECONDS:g} s", command, log) from None
        seconds = time.perf_counter() - began
        if code:
            raise _failed(f"ended with code {code}", command, log)
        if contestant in _OF_MEMORY and not memory:
            raise _failed("ended before its two ranks were there at once", command, log)
        match contestant:
            case "first_update":
                totals = _totals(runs)
                return {"seconds": float(totals["launch_seconds"] + totals["startup_seconds"])}
            case "recipe":
                return _at_speed(float(_totals(runs)["steady_images_per_second"]))
            case "pydtnn":
                if not (speed := _PYDTNN_SPEED.search(log.read_text(errors="replace"))):
                    raise _failed("printed no speed", command, log)
                return _at_speed(float(speed[1]))
    return {"seconds": seconds, "memory_bytes": memory}


def _totals(runs: Path) -> dict[str, Any]:
    totals: dict[str, Any] = json.loads((runs / "run" / RUN_FILE).read_text())["totals"]
    return totals


def _failed(how: str, command: list[str], log: Path) -> UserError:
    """Print a command's last lines, and return the error."""
    print(last_lines(log), file=sys.stderr)
    return UserError(
        f"a command {how}; its last lines are above. Received: {shlex.join(command)}. Fix the cause, or omit its start"
    )


def _at_speed(images_per_second: float) -> dict[str, Any]:
    """Return a turn of this speed, which its images and seconds only carry."""
    return {"model": "simplecnn", "images": _RECIPE_IMAGES, "seconds": _RECIPE_IMAGES / images_per_second}


def _command(contestant: str, place: Place, *, runs: Path) -> list[str]:
    """Return a command; `runs` is for what a trainer writes."""
    size = str(place.size)
    launched = launcher_command("mpi", size=place.size)
    mpirun = ["mpirun", "--allow-run-as-root", "-H", f"localhost:{size}", "-np", size]
    trainer = [*launched, str(ROOT / f"{place.framework}_impl" / "train.py"), "--runs-folder", str(runs),
               "--onednn", place.onednn]  # fmt: skip
    imports = _IMPORTS.get(place.framework, "")
    report = [sys.executable, "-m", "analysis", "report", str(place.folder / "runs"),
              "-o", str(place.folder / "report.html")]  # fmt: skip
    steps = str(_RECIPE_IMAGES // _RECIPE_BATCH // place.size)
    commands = {
        "mpirun": [*mpirun, sys.executable, *_NOTHING],
        "horovodrun": [*launched, *_NOTHING],
        "imports": [*launched, "-c", f"{imports}; {_NO_END}"],
        "first_update": [*trainer, *_ONE_UPDATE],
        "imports_memory": [*launched, "-c", f"{imports}; time.sleep({2 * WINDOW_SECONDS})"],
        "training_memory": [*trainer, *_TRAINING],
        PYDTNN: [*mpirun, "--bind-to", "none", str(place.pydtnn), str(ROOT / "launch/bench/pydtnn_worker.py"),
                 *_PYDTNN_RECIPE, "--steps_per_epoch", steps],
        "recipe": [*trainer, *_RECIPE, "--threads", str(place.threads)],
        "report": [*report, "--force"],
        "report_again": report,
    }  # fmt: skip
    return commands[contestant]


def _variables(contestant: str, place: Place) -> dict[str, str]:
    """Return the environment's variables of a command."""
    if contestant == "report":
        return project_first()
    if contestant != PYDTNN:
        return {}
    mpi = Path(sys.prefix, "lib", "libmpi.so.40")  # of the set-up; else its mpi4py finds the one of the system
    return {"OMP_NUM_THREADS": str(place.threads), **({"MPI4PY_LIBMPI": str(mpi)} if mpi.exists() else {})}
