"""The start of programs: no garbage is collected while they import their packages, and trainers load no slow ones."""

import json

import pytest
from frameworks import need
from processes import run_python

# Runs a program and prints at its end how often garbage was collected, what is and is not left alone then, and which of
# some packages it has loaded; then they are loaded.
COUNTED = """
import atexit, gc, json, runpy, sys
seen, packages = [], ("pandas", "scipy.sparse", "matplotlib.pyplot", "tensorboard", "optuna")
gc.callbacks.append(lambda phase, info: seen.append(info["generation"]) if phase == "start" else None)

def show():
    loaded = [name for name in packages if name.partition(".")[0] in sys.modules]
    print(json.dumps([len(seen), gc.isenabled(), gc.get_freeze_count(), len(gc.get_objects()), loaded]))
    import pandas, scipy.sparse, matplotlib.pyplot, tensorboard

atexit.register(show)
program, sys.argv = sys.argv[1], sys.argv[1:]
if program.endswith("train.py"):  # on its command line --version is answered before the framework is imported
    words = sys.argv[1:]
    del sys.argv[1:]
    runpy.run_path(program, run_name="trainer")["main"](words)
else:
    runpy.run_module(program, run_name="__main__")
"""


@pytest.mark.parametrize(
    "program",
    [
        "analysis ring --np 2",
        "launch sites",
        pytest.param("torch_impl/train.py --version", marks=pytest.mark.ci),
        pytest.param("keras_impl/train.py --version", marks=pytest.mark.ci),
    ],
)
def test_programs_import_without_it_and_run_with_it(program):
    if "train.py" in program:
        need(program.split("_")[0])
    done = run_python("-c", COUNTED, *program.split())
    assert done.returncode == 0 and "Error" not in done.stderr, done.stderr
    collections, is_enabled, kept, left, loaded = json.loads(done.stdout.splitlines()[-1])
    assert is_enabled and kept > 10_000 and left < 10
    assert collections < 60  # without a pause: 156 to 707
    assert loaded == [] or program.startswith("analysis")
