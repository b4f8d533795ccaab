"""Checks that need a framework, in a process of their own: no test process loads a framework.

A script `<framework>_checks.py` has a function for each check and ends with `run_checks(globals())`. Beside it a test
file has a test for each of these functions.
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

import pytest
from rule_workers import environment
from rule_workers import results as results_of_worker

SECONDS = 300
_CHECK = re.compile(r"^def (check_\w+)\(", re.MULTILINE)


def need(framework):
    """Skip the test where the framework is missing."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")


def results(worker):
    """Return what a worker, `<framework>_..._worker`, has found; skip the test where its framework is missing."""
    need(worker.split("_")[0])
    return results_of_worker(worker)


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
