"""The Pythons that CI does not have, each from an empty clone: `make pythons`. It takes 8 GB of disk for a while."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from launch.installation.needed_python import newest

ROOT = Path(__file__).resolve().parents[1]
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))

pytestmark = [pytest.mark.ranks, pytest.mark.long, pytest.mark.timeout(7200)]


def python_of(version):
    """Return a Python of this version, or skip."""
    managed = sorted(map(str, PYENV.glob(f"versions/{version}.*/bin/python{version}")))
    found = newest((version,)) or managed
    if not found:
        pytest.skip(f"there is no Python {version} with venv and headers")
    return found[0]


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_an_empty_clone_sets_up_trains_and_passes_the_unit_tests(version, tmp_path):
    clone = tmp_path / "clone"
    python = python_of(version)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(*words):
        done = subprocess.run(words, cwd=clone, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    try:
        run("make", "setup", f"PYTHON={python}")
        for framework in ("torch", "keras"):
            assert "accuracy 9" in run("make", "train", f"FRAMEWORK={framework}", "ARGS=--epochs 1")
        # Whose environment stays, though `python3` may be another.
        run("make", "test", "ARGS=-m unit")
        ranks = [f"tests/end_to_end/test_{name}.py" for name in ("minimal", "elastic")]
        assert " passed" in run("env", "TWINS_NO_SKIP=1", ".venv/bin/python", "-m", "pytest", "-q", "-n", "0", *ranks)
        assert run(".venv/bin/python", "--version").startswith(f"Python {version}.")
    finally:
        shutil.rmtree(clone)
