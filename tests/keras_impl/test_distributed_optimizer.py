"""`keras_impl.distributed_optimizer`: real ranks, over Gloo and over MPI, against one process, in float64.

What is compared is in `distributed_optimizer_worker.py`.
"""

import ast
import subprocess
import sys

import pytest
from frameworks import names_of, need
from jobs import Job, do_job, start_of
from processes import ROOT, TESTS, environment

pytestmark = [pytest.mark.ranks, pytest.mark.ci]

WORKER = TESTS / "distributed_optimizer_worker.py"
# What a controller can change.
OVER_GLOO = ["check_optimizers", "check_settings_of_optimizers", "check_ways_of_exchange", "check_overflow"]


def do_on_ranks(launcher, function, folder, *, parts=1):
    need("keras")
    parts = ("--model-ranks", str(parts))
    job = Job(function, (function, parts[1]), program=f"{WORKER.stem}:run", launcher=launcher)
    outcomes = do_job(job, start=start_of("keras", launcher=launcher, arguments=parts), folder=folder)
    assert {outcome.code for outcome in outcomes} == {0}


@pytest.mark.parametrize("check", names_of(WORKER))
def test_two_ranks_over_mpi(check, tmp_path):
    do_on_ranks("mpirun2", check, tmp_path)


def test_saved_models_load_without_horovod(tmp_path):
    do_on_ranks("mpirun2", "save_models", tmp_path)
    command = [sys.executable, str(TESTS / "load_without_horovod_worker.py"), str(tmp_path)]
    output = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert output.returncode == 0, output.stderr[-6000:]
    assert output.stdout.splitlines() == [
        "keras_adam Adam keras.src.optimizers.adam 1 2",
        "loss_scale LossScaleOptimizer keras.src.optimizers.loss_scale_optimizer 1 2",
        "our_adam Adam keras_impl.update_rules 1 2",
    ]


@pytest.mark.parametrize("check", OVER_GLOO)
def test_two_ranks_over_gloo(check, tmp_path):
    do_on_ranks("gloo2", check, tmp_path)


def test_every_optimizer_on_three_ranks(tmp_path):
    """Division by two and four is exact."""
    do_on_ranks("mpirun3", "check_optimizers", tmp_path)


@pytest.mark.parametrize("function", ["sparse_on_four", "process_sets"])
def test_four_ranks(function, tmp_path):
    do_on_ranks("mpirun4", function, tmp_path, parts=2)


def test_one_process(tmp_path):
    do_on_ranks("none", "one_process", tmp_path)


def test_it_can_be_lifted_into_another_project():
    """Three short files that import nothing else of this project."""
    folder = ROOT / "keras_impl"
    assert len((folder / "distributed_optimizer.py").read_text().splitlines()) < 240
    imported = set()
    for name in ("distributed_optimizer", "gradient_exchange", "callbacks"):
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module)
    assert {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names} == {
        "horovod.tensorflow",
        "keras",
        "keras_impl.gradient_exchange",
        "numpy",
        "tensorflow",
        "tensorflow.python.ops",
    }
