"""Which tests for a GPU this machine can run: there must be one, and some need two, or a Horovod with NCCL."""

import functools
from pathlib import Path

import pytest
from gpu_runs import FRAMEWORKS, gpu_names, try_horovod

from launch.installation.node import ask_nvidia


def compute_capability():
    """Return the major version of the first GPU's: 8 for Ampere."""
    return int(ask_nvidia("--query-gpu=compute_cap", "--format=csv,noheader").partition(".")[0] or 0)


@functools.cache
def built_without_nccl(framework):
    """Return whether Horovod says so of itself; one that ends otherwise is tested, and fails."""
    done = try_horovod(framework, folder=Path.cwd())
    return done.returncode == 0 and "nccl" not in done.stdout


def can_run(item):
    needs = item.get_closest_marker("needs")
    options = needs.kwargs if needs else {}
    if len(gpu_names()) < options.get("gpus", 1):
        return False
    if options.get("capability", 0) > compute_capability():
        return False
    return not (options.get("nccl") and built_without_nccl(item.callspec.params["framework"]))


@pytest.hookimpl(trylast=True)  # after -m has selected
def pytest_collection_modifyitems(items, config):
    ours = [item for item in items if item.get_closest_marker("gpu")]
    if ours and not gpu_names():
        raise pytest.UsageError("no NVIDIA GPU was found: `nvidia-smi --list-gpus` lists none")
    unfit = [item for item in ours if not can_run(item)]
    config.hook.pytest_deselected(items=unfit)
    items[:] = [item for item in items if item not in unfit]


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    """Each framework that is installed; one alone will do."""
    return request.param
