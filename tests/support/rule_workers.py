"""Runs one side of a comparison in a process of its own, once, and hands back the arrays it wrote."""

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parent


def environment() -> dict[str, str]:
    """Environment of a worker: this Python's executables first, the project importable, CPU only, few threads."""
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": f"{TESTS.parents[1]}{os.pathsep}{TESTS}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }


def results(worker: str, *arguments: str) -> dict[str, np.ndarray]:
    """Runs `tests/<worker>.py ... FILE`, which writes the arrays of its results to FILE (.npz); once per test run.

    Args:
        worker: name of a script beside this file.
        *arguments: what it is given before FILE.

    Returns:
        The arrays by name.

    Raises:
        AssertionError: with the worker's output, if it failed.
    """
    arrays, output = _run(worker, *arguments)
    assert arrays is not None, output
    return arrays


@functools.cache
def _run(worker: str, *arguments: str) -> tuple[dict[str, np.ndarray] | None, str]:
    """Arrays, or None after a failure, and the output: a failed worker is not started again for every test."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.npz"
        command = [sys.executable, str(TESTS / f"{worker}.py"), *arguments, str(file)]
        process = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
        output = f"{worker} ended with {process.returncode}\n{process.stdout[-3000:]}\n{process.stderr[-6000:]}"
        if process.returncode != 0:
            return None, output
        with np.load(file) as arrays:
            return dict(arrays), output


def relative_difference(value: np.ndarray, reference: np.ndarray) -> float:
    """Largest difference over the largest entry of the reference; infinite for other shapes and for no numbers."""
    if value.shape != reference.shape or not np.all(np.isfinite(value)):
        return float("inf")
    return float(np.max(np.abs(value.astype(np.float64) - reference)) / np.max(np.abs(reference)))
