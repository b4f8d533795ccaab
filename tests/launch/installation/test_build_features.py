"""What Horovod's compiled files say of themselves, to the preflight and to horovodrun."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from processes import environment

from launch.installation.build_features import LIBRARIES, MARKS, build_features
from launch.installation.horovod_wheel import relocate

# A library built with Gloo and NCCL.
GLOO_AND_NCCL = b"\0N7horovod6common14GlooControllerE\0N7horovod6common13NCCLAllreduceE\0"


def printed(code):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout.strip()


def test_the_libraries_are_searched_and_the_relocated_wheel_contains_the_answers(tmp_path):
    with zipfile.ZipFile(tmp_path / "horovod.whl", "w") as wheel:
        wheel.writestr("horovod/torch/mpi_lib_v2.cpython-311.so", GLOO_AND_NCCL)
    package = tmp_path / "unpacked" / "horovod-0.28.1" / "horovod"

    def run(command):
        if command[:2] == ["wheel", "unpack"]:
            zipfile.ZipFile(command[-1]).extractall(Path(command[-2]) / "horovod-0.28.1")
            check()
        return ""

    def check():
        features = {framework: build_features(package, framework) for framework in ("torch", "tensorflow", "mxnet")}
        assert features == {"torch": ["gloo", "nccl"], "tensorflow": None, "mxnet": None}

    relocate(tmp_path / "horovod.whl", venv=tmp_path, folder=tmp_path, run=run)
    (package / "torch" / "mpi_lib_v2.cpython-311.so").unlink()  # it is not searched again
    check()


def test_horovodrun_asks_the_files_and_starts_no_process():
    """Without the edits of the wheel it would start one process per question, which imports TensorFlow, and two to ask
    for mpirun's version."""
    code = """
import multiprocessing, sys
multiprocessing.get_context = None
from horovod.common import util
from horovod.runner import launch, mpi_run
print(util.mpi_built(), util.gloo_built(), mpi_run.is_open_mpi(), "distutils" in sys.modules, util.nccl_built())
print(mpi_run.mpi_available({'PATH': '/nowhere'}))
"""
    *there, _, without_mpirun = printed(code).split()
    assert (there, without_mpirun) == (["True", "True", "True", "False"], "False")


@pytest.mark.ci
@pytest.mark.parametrize("framework", LIBRARIES)
def test_features_are_those_that_horovod_reports(framework):
    code = (
        f"import horovod.{framework} as hvd, horovod; "
        "print(horovod.__path__[0], hvd.mpi_built(), hvd.gloo_built(), bool(hvd.nccl_built()))"
    )
    folder, *reported = printed(code).split()
    features = build_features(Path(folder), framework)
    assert features is not None and [str(name in features) for name in MARKS] == reported
