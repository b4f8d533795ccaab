"""`minimal.py` of both frameworks: started as its docstring says, and two ranks train as one process does."""

import ast
import re
import sys
import zipfile

import h5py
import numpy as np
import pytest
from processes import ROOT, launcher_command, run_command

SCRIPTS = {framework: ROOT / f"{framework}_impl" / "minimal.py" for framework in ("torch", "keras")}
ALONE = ["--batch-size", "64", "--learning-rate", "0.02"]  # twice the defaults, which are per rank


def run(framework, *arguments, folder, launcher="none", script=None):
    """Run a script to its end; assert that it succeeded and printed one accuracy."""
    command = [sys.executable, str(script or SCRIPTS[framework]), *arguments]
    done = run_command([*launcher_command(launcher), *command], folder=folder)
    assert done.code == 0, done.stderr[-3000:]
    assert accuracy(done) > 0.98
    assert re.findall(r"epoch (\d)/3: loss 0\.\d{4}, [\d,]+ images/s", done.stdout) == ["1", "2", "3"]
    return done


def accuracy(done):
    """Return the one accuracy that was printed. A launcher may print its tags before, after and between lines."""
    (found,) = re.findall(r"test accuracy: (0\.\d{4})", done.stdout)
    return float(found)


def weights(file):
    """Return the arrays of a saved PyTorch state or Keras model."""
    if file.suffix == ".pt":
        import torch  # takes seconds: not where tests are only collected

        return {name: array.numpy() for name, array in torch.load(file).items()}
    arrays = {}
    with zipfile.ZipFile(file) as archive, archive.open("model.weights.h5") as member, h5py.File(member) as content:
        content["layers"].visititems(
            lambda name, item: arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
        )
    return arrays


@pytest.mark.ranks
@pytest.mark.ci
@pytest.mark.parametrize(("framework", "launcher"), [("torch", "mpi2"), ("keras", "mpirun2")])
def test_two_ranks_train_as_one_process_with_twice_the_batch(framework, launcher, tmp_path):
    suffix = {"torch": ".pt", "keras": ".keras"}[framework]
    one, two = tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"
    alone = run(framework, *ALONE, "--dtype", "float64", "--output", str(one), folder=tmp_path)
    ranks = run(framework, "--dtype", "float64", "--output", str(two), folder=tmp_path, launcher=launcher)
    expected, received = weights(one), weights(two)
    assert sum(array.size for array in expected.values()) == 500 * 256 + 256 + 256 * 10 + 10
    assert expected.keys() == received.keys()
    for name, array in expected.items():
        assert array.dtype == np.float64
        np.testing.assert_allclose(received[name], array, rtol=0, atol=1e-12, err_msg=name)
    assert accuracy(alone) == accuracy(ranks)


@pytest.mark.ci
@pytest.mark.parametrize("framework", SCRIPTS)
def test_no_file_is_overwritten(framework, tmp_path):
    there = tmp_path / "there"
    there.write_text("mine")
    done = run_command([sys.executable, str(SCRIPTS[framework]), "--output", str(there)], folder=tmp_path)
    assert done.code == 2
    assert done.stderr.splitlines()[-1].endswith(f"Received: {there}, which exists")
    assert there.read_text() == "mine"


@pytest.mark.parametrize("framework", SCRIPTS)
def test_it_needs_nothing_of_the_project_but_the_optimizer(framework):
    text = SCRIPTS[framework].read_text()
    modules = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    ours = {module for module in modules if module and (ROOT / module.split(".")[0]).is_dir()}
    assert ours == {"torch": set(), "keras": {"keras_impl.horovod_keras3"}}[framework]
