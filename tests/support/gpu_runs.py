"""Runs of the trainers on GPUs, as users start them."""

import functools
import os
import subprocess
import sys

import numpy as np
from processes import ROOT, environment, launcher_command, train_command

from common.errors import UserError
from common.model.weights import load_weights
from common.run_folder.records import WEIGHTS_FILE, read_run
from common.utils.environments import missing_packages, other_environment
from launch.installation.environment import HOROVODS_NAMES
from launch.installation.node import ask_nvidia

LIMIT_SECONDS = 300  # of a run: TensorFlow compiles kernels for a GPU that it does not know
CPU_ONLY = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


def is_installed(framework):
    try:
        return not missing_packages(framework)
    except UserError:
        return False


FRAMEWORKS = [framework for framework in ("torch", "keras") if is_installed(framework)]


@functools.cache
def gpu_names():
    return ask_nvidia("--list-gpus").splitlines()


def start(framework, arguments, *, folder, ranks=1, **variables):
    """Run a trainer to its end; return what `subprocess.run` does."""
    command = launcher_command("none" if ranks == 1 else f"mpirun{ranks}")
    return run([*command, *train_command(framework, arguments)], folder=folder, **variables)


def try_horovod(framework, *arguments, folder, **variables):
    """Run the trial of Horovod; return what `subprocess.run` does."""
    own = other_environment(framework)
    python = str(own / "bin" / "python") if own else sys.executable
    words = [*launcher_command("mpirun1"), python, str(ROOT / "launch/horovod/trial.py"), HOROVODS_NAMES[framework]]
    return run([*words, *arguments], folder=folder, **variables)


def run(words, *, folder, **variables):
    """Run a command with the GPUs; return what `subprocess.run` does."""
    given = {name: os.environ[name] for name in CPU_ONLY if name in os.environ}
    others = {name: value for name, value in environment().items() if name not in CPU_ONLY}
    return subprocess.run(
        words,
        cwd=folder,
        env=others | given | {"HOROVOD_TWINS_CACHE": str(folder / "cache")} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )


def train(framework, name, *arguments, folder, ranks=1, **variables):
    options = [*arguments, "--name", name]
    if "--device" not in arguments:
        options += ["--device", "gpu"]
    done = start(framework, options, folder=folder, ranks=ranks, **variables)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return read_run(folder / "runs" / name)


def weights_of(run):
    return load_weights(run.folder / WEIGHTS_FILE)


def movements(run, unmoved):
    """Return name -> how training moved each tensor, in float64."""
    first = weights_of(unmoved)
    return {name: array.astype(np.float64) - first[name] for name, array in weights_of(run).items()}


def furthest(one, other):
    """Return the norm of the difference over that of the other, of the array in which this is largest."""
    return max(float(np.linalg.norm(one[name] - array) / np.linalg.norm(array)) for name, array in other.items())
