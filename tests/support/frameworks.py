"""What needs a framework, in other processes: no test process loads one.

Arrays of workers come from the servers of ranks (`rank_server.py`). Checks that watch how a framework starts have a
process of their own: a script `<framework>_checks.py` has a function for each and ends with `run_checks(globals())`.
Beside it a test file has a test for each of these functions.
"""

import functools
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
import pytest
from jobs import Job, do_job, start_of
from processes import environment
from rank_server import ServerError

SECONDS = 300
_CHECK = re.compile(r"^def (check_\w+)\(", re.MULTILINE)


def need(framework):
    """Skip the test where the framework is missing."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")


def call(framework, function, *arguments, folder):
    """Call a function in one process with the framework; return its value.

    Args:
        framework: torch or keras; the test is skipped where it is missing.
        function: "module:function", of a module or of a script's path.
        arguments: strings.
        folder: the current folder of the call.
    """
    need(framework)
    job = Job(function, arguments, program=function, launcher="none", seconds=SECONDS)
    (outcome,) = do_job(job, start=start_of(framework, launcher="none", arguments=()), folder=folder)
    return outcome.value


def results(worker):
    """Return the arrays that `<framework>_..._worker.write(file)` saves; it is called once."""
    arrays = _results(worker)
    assert isinstance(arrays, dict), arrays
    return arrays


@functools.cache
def _results(worker):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.npz"
        try:
            call(worker.split("_")[0], f"{worker}:write", str(file), folder=Path(folder))
        except ServerError as error:
            return str(error)
        with np.load(file) as arrays:
            return dict(arrays)


def names_of(script):
    """Return the names of a script's checks, in their order."""
    return _CHECK.findall(script.read_text())


def assert_check(script, name):
    """Fail with the check's traceback unless it holds; skip where the framework is missing."""
    need(script.name.split("_")[0])
    outcomes, output = _outcomes(script)
    assert outcomes.get(name) == "", f"{outcomes.get(name, 'the script ended before')}\n{output}"


@functools.cache
def _outcomes(script):
    """Return check -> traceback, empty if it holds; and what the script printed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(script), folder]
        done = subprocess.run(
            command, env=environment(), cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        written = Path(folder) / "outcomes.json"
        outcomes = json.loads(written.read_text()) if written.exists() else {}
        return outcomes, f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"


def run_checks(script):
    """Call every function `check_...` of the calling script with an empty folder; record how each ended."""
    folder, outcomes = Path(sys.argv[1]), {}
    for name, check in script.items():
        if name.startswith("check_"):
            place = folder / name
            place.mkdir()
            try:
                check(place)
                outcomes[name] = ""
            except Exception:
                outcomes[name] = traceback.format_exc()
            (folder / "outcomes.json").write_text(json.dumps(outcomes))
