"""One environment per framework: ranks switch to their framework's under both controllers, and refuse a broken one."""

import json
import os
import shutil

import pytest
from environments import copy_environment
from processes import ROOT, child_environment, run_command

pytestmark = [pytest.mark.ranks, pytest.mark.ci]
TRAINING = ["--model", "mlp", "--dataset", "synthetic", "--epochs", "1", "--name", "run"]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project with `.venv-torch`, which has no TensorFlow, and `.venv-keras`, which has no PyTorch."""
    root = tmp_path_factory.mktemp("two") / "project"
    for name in ("common", "torch_impl", "keras_impl"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for framework, other in (("torch", "keras"), ("keras", "torch")):
        environment = copy_environment(root / f".venv-{framework}", without=other)
        (environment / "horovod-twins").mkdir()
        (environment / "horovod-twins" / "stamp.json").write_text("{}")
    (root / ".venv").symlink_to(".venv-torch")
    return root


def run(project, framework, *launcher, folder, started_in=".venv"):
    """Train by `python` and the launcher of an environment of the project."""
    programs = project / started_in / "bin"
    variables = child_environment(folder) | {
        "PYTHONPATH": str(project),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    settings = ["env", *(f"{name}={value}" for name, value in variables.items())]
    return run_command(
        [*settings, *launcher, "python", str(project / f"{framework}_impl/train.py"), *TRAINING], folder=folder
    )


@pytest.mark.parametrize(
    ("framework", "started_in", "controller"),
    [("keras", ".venv", "gloo"), ("torch", ".venv-keras", "mpi")],
)
def test_ranks_run_in_the_environment_of_their_framework(project, framework, started_in, controller, tmp_path):
    horovodrun = ("horovodrun", "-np", "2", f"--{controller}")
    done = run(project, framework, *horovodrun, folder=tmp_path, started_in=started_in)
    assert done.code == 0, done.stderr[-3000:]
    record = json.loads((tmp_path / "runs" / "run" / "run.json").read_text())
    assert (record["world"]["size"], record["world"]["controller"]) == (2, controller)
    installed = record["environment"]["packages"].keys() & {"torch", "keras"}
    assert installed == {framework}


def test_an_incomplete_environment_ends_all_ranks(project, tmp_path):
    stamp = project / ".venv-keras" / "horovod-twins" / "stamp.json"
    stamp.rename(stamp.with_name("away"))
    try:
        done = run(project, "keras", "horovodrun", "-np", "2", "--mpi", folder=tmp_path)
    finally:
        stamp.with_name("away").rename(stamp)
    assert done.code not in (0, 124)
    assert (
        f"the environment is incomplete. Received: {stamp.parents[1]} without horovod-twins/stamp.json" in done.stderr
    )
