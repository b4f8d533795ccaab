"""The collector: paused while programs import their packages, and with nothing to look at in their end."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

from common.utils.collection import pause_collection, resume_collection

ROOT = Path(__file__).parents[3]
# Runs a program and prints at its end, after what it prints, which generations were looked through, and when.
COUNTED = """
import atexit, gc, json, runpy, sys
seen = []
gc.callbacks.append(lambda phase, info: seen.append(info["generation"]) if phase == "start" else None)
atexit.register(lambda: print(json.dumps([len(seen), gc.isenabled(), gc.get_freeze_count()])))
program, sys.argv = sys.argv[1], sys.argv[1:]
(runpy.run_path if program.endswith(".py") else runpy.run_module)(program, run_name="__main__")
"""


@pytest.mark.parametrize(
    "command", [["analysis", "ring", "--np", "2"], ["launch", "sites"], ["torch_impl/train.py", "--version"],
                ["keras_impl/train.py", "--version"]]
)  # fmt: skip
def test_programs_import_without_it_and_go_on_with_it(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, *command], capture_output=True, text=True, check=True, cwd=ROOT
    )
    looks, is_enabled, kept = json.loads(done.stdout.splitlines()[-1])
    assert is_enabled and kept > 10_000
    assert looks < 60  # in hundreds of thousands of objects they would be many times as many


def test_what_there_was_is_left_alone_and_what_comes_is_not() -> None:
    was_enabled = gc.isenabled()
    try:
        pause_collection()
        assert not gc.isenabled()
        resume_collection()
        assert gc.isenabled() and gc.get_freeze_count() > 0 and gc.get_objects(generation=2) == []
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        assert gc.collect() > 0
    finally:
        gc.unfreeze()
        (gc.enable if was_enabled else gc.disable)()
