"""Compares many model files in one process per framework, as `python -m common twins` does one pair in two."""

import os
import subprocess
import sys
from pathlib import Path

from frameworks import need

from common.twins.contract import PairSource
from common.twins.processes import RESULT_FILE, TASK_FILE, Task
from common.twins.records import Comparison, read_record, write_record
from common.utils.environments import project_first

# Ends as the command does: a user's error is in a file, anything else is a bug.
_PROGRAM = """
import sys, traceback
from {framework}_impl.twins import worker
for folder in sys.argv[1:]:
    try:
        worker.main([folder])
    except Exception:
        traceback.print_exc()
        open(folder + "/bug", "w").write(traceback.format_exc())
"""


def compared(sources: dict[str, PairSource], folder: Path, *, threads: int = 1) -> dict[str, Comparison | str]:
    """Return name -> the comparison, or the user error; skip the test where a framework is missing."""
    for framework in ("torch", "keras"):
        need(framework)
    folders = {name: folder / name for name in sources}
    for name, source in sources.items():
        folders[name].mkdir(parents=True)
        write_record(folders[name] / TASK_FILE, Task(source=source, threads=threads, folder=folders[name]))
    for framework in ("torch", "keras"):
        left = [str(one) for one in folders.values() if not (one / "torch.error").exists()]
        program = _PROGRAM.format(framework=framework)
        command = [sys.executable, "-c", program, *left]
        environment = {**os.environ, **project_first(), "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, text=True, capture_output=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr[-3000:]
    return {name: _outcome(one) for name, one in folders.items()}


def _outcome(folder: Path) -> Comparison | str:
    for error in sorted(folder.glob("*.error")):
        return error.read_text()
    assert not (folder / "bug").exists(), f"{folder.name}: {(folder / 'bug').read_text()}"
    return read_record(folder / RESULT_FILE.format("keras"), Comparison)


def written(folder: Path, name: str, text: str) -> PairSource:
    """Write a model file; return its source."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.py"
    file.write_text(text)
    return PairSource(file=str(file))


def planted_source(file: Path, plant: str, folder: Path) -> PairSource:
    """Return the source of a file of `planted/` with one of its differences."""
    text = file.read_text()
    assert 'PLANT = ""\n' in text
    return written(folder, f"{file.stem}-{plant or 'none'}", text.replace('PLANT = ""\n', f'PLANT = "{plant}"\n', 1))
