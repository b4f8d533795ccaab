"""The garbage collector: paused while programs import their packages, with nothing to go through at their end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from frameworks import need

ROOT = Path(__file__).parents[3]
# Runs a program and prints at its end how often garbage was collected, and what is and is not left alone then.
COUNTED = """
import atexit, gc, json, runpy, sys
seen = []
gc.callbacks.append(lambda phase, info: seen.append(info["generation"]) if phase == "start" else None)
atexit.register(lambda: print(json.dumps([len(seen), gc.isenabled(), gc.get_freeze_count(), len(gc.get_objects())])))
program, sys.argv = sys.argv[1], sys.argv[1:]
(runpy.run_path if program.endswith(".py") else runpy.run_module)(program, run_name="__main__")
"""


@pytest.mark.parametrize(
    "command",
    [
        ["analysis", "ring", "--np", "2"],
        pytest.param(["torch_impl/train.py", "--version"], marks=pytest.mark.ci),
        pytest.param(["launch", "sites"], marks=pytest.mark.ci),
        pytest.param(["keras_impl/train.py", "--version"], marks=pytest.mark.ci),
    ],
)
def test_programs_import_without_it_and_run_with_it(command):
    if command[0].endswith("train.py"):
        need(command[0].split("_")[0])
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, *command], capture_output=True, text=True, check=True, cwd=ROOT, timeout=120
    )
    collections, is_enabled, kept, left = json.loads(done.stdout.splitlines()[-1])
    assert is_enabled and kept > 10_000 and left < 10
    assert collections < 60  # without a pause: 156 to 707
