"""Extras that the project's environment does not have, in one of their own: `make extras`."""

import os
from pathlib import Path

import pytest
from processes import environment

PACKAGES = Path(__file__).resolve().parents[2] / ".venv.extras"


def environment_with_extras():
    """Return the environment of a worker that sees this environment's packages and, before them, the extras."""
    if not (PACKAGES / "onnxruntime").exists():
        pytest.skip("MLflow, ONNX and Parquet are not installed in .venv.extras: make extras")
    variables = environment()
    return variables | {"PYTHONPATH": f"{variables['PYTHONPATH']}{os.pathsep}{PACKAGES}"}
