"""What Horovod's compiled files say of themselves, to the preflight and to horovodrun."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from launch.installation.build_features import LIBRARIES, MARKS, build_features
from launch.installation.horovod_wheel import relocate


def printed(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


# A library built with Gloo and NCCL.
GLOO_AND_NCCL = b"\0N7horovod6common14GlooControllerE\0N7horovod6common13NCCLAllreduceE\0"


def test_a_build_without_mpi_or_with_nccl_and_none(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "mpi_lib_v2.cpython-311.so").write_bytes(GLOO_AND_NCCL)
    assert build_features(tmp_path, "torch") == ["gloo", "nccl"]
    assert build_features(tmp_path, "tensorflow") is None
    assert build_features(tmp_path, "mxnet") is None


def test_the_relocated_wheel_contains_the_answers_and_they_are_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "horovod.whl", "w") as wheel:
        wheel.writestr("horovod/torch/mpi_lib_v2.so", GLOO_AND_NCCL)

    def run(command):
        if command[:2] == ["wheel", "unpack"]:
            zipfile.ZipFile(command[-1]).extractall(Path(command[-2]) / "horovod-0.28.1")
        return ""

    relocate(tmp_path / "horovod.whl", venv=tmp_path, folder=tmp_path, run=run)
    package = tmp_path / "unpacked" / "horovod-0.28.1" / "horovod"
    (package / "torch" / "mpi_lib_v2.so").unlink()  # it is not searched again
    assert build_features(package, "torch") == ["gloo", "nccl"]
    assert build_features(package, "tensorflow") is None
    assert build_features(package, "mxnet") is None


def test_horovodrun_asks_the_files_and_starts_no_process():
    """Without the edits of the wheel it would start one process per question, which imports TensorFlow, and two to ask
    for mpirun's version."""
    code = """
import multiprocessing, sys
multiprocessing.get_context = None
from horovod.common import util
from horovod.runner import launch, mpi_run
print(util.mpi_built(), util.gloo_built(), mpi_run.is_open_mpi(), "distutils" in sys.modules, util.nccl_built())
"""
    assert printed(code).split()[:4] == ["True", "True", "True", "False"]


def test_a_missing_mpirun_is_reported():
    code = "from horovod.runner import mpi_run; print(mpi_run.mpi_available({'PATH': '/nowhere'}))"
    assert printed(code) == "False"


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
