"""One process needs neither Horovod nor MPI: it trains, resumes, predicts and exports where both are missing."""

import json
import subprocess
import sys

import pytest
from jobs import keras_in_ci
from processes import BIN, ROOT, child_environment

from common.run_folder.records import read_run

pytestmark = pytest.mark.ranks

DATA = ["--dataset", "synthetic:96x8x8x1x3", "--model", "mlp", "--batch-size", "16", "--threads", "1"]
# Importing one of these packages, or a module of them, is an error.
HIDDEN = """
import runpy, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("horovod", "mpi4py"):
            raise ImportError(f"No module named {name!r}")
sys.meta_path.insert(0, Hidden())
sys.argv = sys.argv[1:]
sys.path[0] = sys.argv[0].rpartition("/")[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def run(tmp_path, framework):
    """Return a function that runs a program of the framework where both packages are hidden."""
    (tmp_path / "hidden.py").write_text(HIDDEN)

    def start(program, *arguments, launcher=()):
        words = [*launcher, sys.executable, str(tmp_path / "hidden.py"), str(ROOT / f"{framework}_impl" / program)]
        return subprocess.run(
            [*words, *arguments], cwd=tmp_path, env=child_environment(tmp_path), capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip

    return start


@keras_in_ci
def test_one_process_trains_resumes_predicts_and_exports(run, tmp_path, framework):
    for program, *arguments in (
        ("train.py", *DATA, "--epochs", "1", "--name", "run"),
        ("train.py", "--resume", "runs/run", "--epochs", "2"),
        ("predict.py", "runs/run"),
        ("export.py", "runs/run", "--output", {"torch": "model.pt", "keras": "model.keras"}[framework]),
    ):
        done = run(program, *arguments)
        assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "runs/run/run.json").read_text())
    assert record["status"]["state"] == "finished"
    assert (record["world"]["controller"], record["world"]["launcher"]) == ("none", "none")


@keras_in_ci
def test_several_ranks_are_one_line(run):
    done = run("train.py", *DATA, launcher=[str(BIN / "mpirun"), "-np", "2", "--oversubscribe"])
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and len(lines) == 1, done.stderr
    assert "several ranks need Horovod. Received: ImportError: No module named 'horovod" in lines[0]
    assert "Run `make setup`" in lines[0]


def test_one_process_imports_neither_where_both_are_installed(tmp_path, framework):
    program = ROOT / f"{framework}_impl" / "train.py"
    show = (
        f"import runpy, sys; sys.argv = {[str(program), *DATA, '--epochs', '1', '--name', 'run']!r}\n"
        f"sys.path.insert(0, {str(program.parent)!r})\n"
        "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\nexcept SystemExit: pass\n"
        "print('imported:', sorted({'horovod', 'mpi4py'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", show], cwd=tmp_path, env=child_environment(tmp_path), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert "imported: []" in done.stdout, done.stdout + done.stderr
    assert read_run(tmp_path / "runs" / "run").state == "finished"
