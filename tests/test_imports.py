"""What importing a module brings along: nothing that is slow, and no framework where none is needed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# What `common`, `launch` and `analysis` do without.
FRAMEWORKS = {"torch", "torchvision", "tensorflow", "keras", "horovod", "torch_impl", "keras_impl"}


@pytest.mark.parametrize(
    ("start", "unwanted"),
    [
        ("import launch.preflight.command, common.checks.preflight_worker", "pandas scipy matplotlib"),
        ("import common.training.entry_point, common.trained.prediction", "pandas scipy matplotlib"),
        ("import launch.__main__", "pandas scipy matplotlib optuna"),
    ],
    ids=["preflight", "trainers", "launch"],
)
def test_programs_that_start_often_load_no_statistics(start, unwanted):
    check_loads_none_of(start, unwanted)


def test_trainers_load_no_statistics_and_may_load_them_later(framework):
    start = f"import {framework}_impl.train, {framework}_impl.loop"
    then = "import pandas, scipy.sparse, matplotlib.pyplot, tensorboard"
    check_loads_none_of(start, "pandas scipy matplotlib tensorboard pooch", then=then)


def check_loads_none_of(start, unwanted, *, then=""):
    """Assert that a process that starts so imports none of the packages, and that `then` works."""
    code = f"{start}, sys; print(*sorted(set({unwanted.split()}) & set(sys.modules))); {then}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


BLOCKED = """
import importlib, pkgutil, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {forbidden!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked")

sys.meta_path.insert(0, Block())
for blocked in {forbidden!r}:
    try:
        importlib.import_module(blocked)
    except ModuleNotFoundError as error:
        assert str(error).endswith("is blocked"), error
    else:
        raise AssertionError("nothing is blocked")
import {package}
for module in pkgutil.walk_packages({package}.__path__, prefix="{package}."):
    if module.name not in ("{package}.__main__", "{package}.setup"):
        importlib.import_module(module.name)
        print(module.name)
assert not {forbidden!r} & {{name.split(".")[0] for name in sys.modules}}
"""


@pytest.mark.parametrize("package", ["common", "launch", "analysis"])
def test_every_module_can_be_imported_without_frameworks_and_horovod(package):
    code = BLOCKED.format(package=package, forbidden=FRAMEWORKS)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    paths = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / package).rglob("*.py")]
    modules = {".".join(path.parts).removesuffix(".__init__") for path in paths}
    assert set(done.stdout.split()) == modules - {package, f"{package}.__main__", f"{package}.setup"}
