"""What Horovod's compiled files say of themselves, to the preflight and to horovodrun."""

import subprocess
import sys
from pathlib import Path

import pytest

from launch.installation.build_features import LIBRARIES, MARKS, build_features


def printed(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_build_without_mpi_or_with_nccl_and_none(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    content = b"\0N7horovod6common14GlooControllerE\0N7horovod6common13NCCLAllreduceE\0"
    (tmp_path / "torch" / "mpi_lib_v2.cpython-311.so").write_bytes(content)
    assert build_features(tmp_path, "torch") == ["gloo", "nccl"]
    assert build_features(tmp_path, "tensorflow") is None
    assert build_features(tmp_path, "mxnet") is None


def test_horovodrun_asks_the_files_and_starts_no_process() -> None:
    """Without the edit of the wheel it would start one process per question, which imports TensorFlow."""
    code = """
import multiprocessing
multiprocessing.get_context = None
from horovod.common import util
print(util.mpi_built(), util.gloo_built(), util.nccl_built())
"""
    assert printed(code).split()[:2] == ["True", "True"]


@pytest.mark.ci
@pytest.mark.parametrize("framework", LIBRARIES)
def test_features_are_those_that_horovod_reports(framework: str) -> None:
    code = (
        f"import horovod.{framework} as hvd, horovod; "
        "print(horovod.__path__[0], hvd.mpi_built(), hvd.gloo_built(), bool(hvd.nccl_built()))"
    )
    folder, *reported = printed(code).split()
    features = build_features(Path(folder), framework)
    assert features is not None and [str(name in features) for name in MARKS] == reported
