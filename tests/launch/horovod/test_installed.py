"""The Horovod that is installed: what the patches change in it, seen from outside."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from environments import ENVIRONMENT, copy_environment
from horovod.common import open_mpi_prefix as prefix
from processes import environment

from common.distributed import launchers
from launch.installation.environment import site_packages
from launch.preflight.host_checks import MARKS, horovod_build


def test_its_libraries_hold_no_absolute_path():
    libraries = sorted(site_packages(ENVIRONMENT).glob("horovod/*/*.so"))
    assert libraries, "set-up installs Horovod"
    for library in libraries:
        command = ["readelf", "-d", library]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        (runpath,) = re.findall(r"\(RUNPATH\).*\[(.+)\]", printed)
        assert all(entry.startswith("$ORIGIN/..") for entry in runpath.split(":")), f"{library}: {runpath}"


def printed(code):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout.strip()


def test_horovodrun_asks_a_file_and_starts_no_process():
    """Without the patches it would start one process per question, which imports TensorFlow, and two to ask for
    mpirun's version."""
    code = """
import multiprocessing, sys
multiprocessing.get_context = None
from horovod.common import util
from horovod.runner import launch, mpi_run
print(util.mpi_built(), util.gloo_built(), mpi_run.is_open_mpi(), "distutils" in sys.modules, util.ddl_built())
print(mpi_run.mpi_available({'PATH': '/nowhere'}))
"""
    *there, without_mpirun = printed(code).split()
    assert (there, without_mpirun) == (["True", "True", "True", "False", "False"], "False")


@pytest.mark.ci
@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_features_are_those_that_horovod_reports(framework):
    module = {"torch": "torch", "keras": "tensorflow"}[framework]
    code = f"import horovod.{module} as h; print(h.mpi_built(), h.gloo_built(), bool(h.nccl_built()))"
    features, _ = horovod_build(framework)
    assert [str(name in features) for name in MARKS] == printed(code).split()


# A start that fails


FAILS = """
import sys
import horovod.torch as hvd
try:
    hvd.init()
except ValueError as error:
    sys.stdout.write(f"ValueError: {error}\\n")
"""


def fails(*command, **variables):
    """Start ranks that cannot start; return what they print."""
    words = [*command, sys.executable, "-c", FAILS]
    done = subprocess.run(words, env=environment() | variables, capture_output=True, text=True, check=False)
    assert "Segmentation" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.ranks
@pytest.mark.ci
def test_gloo_for_a_part_is_an_error():
    """Each rank died by SIGSEGV."""
    text = fails("mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none", HOROVOD_CONTROLLER="gloo")
    assert text.count("must both be mpi or both be gloo") == text.count("ValueError: Horovod init") == 2, text


@pytest.mark.ci
def test_a_host_name_that_does_not_resolve_is_an_error():
    """The process died by SIGSEGV."""
    elsewhere = ["unshare", "-u", "sh", "-c", 'hostname nowhere.invalid && exec "$0" "$@"']
    if subprocess.run([*elsewhere, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user cannot give a process another host name")
    text = fails(*elsewhere, HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo")
    assert "Unable to find address for nowhere.invalid: " in text and "ValueError: Horovod init" in text, text


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


def initialized(environment, **variables):
    """Initialize Horovod by the Python of an environment, without variables of a launcher; return what it printed."""
    hidden = ("OPAL_PREFIX", "PYTHONPATH", *prefix.LAUNCHER_VARIABLES)
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    words = [str(environment / "bin" / "python"), "-c", PROGRAM]
    done = subprocess.run(words, env=kept | variables, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.ci
def test_a_script_alone_is_one_rank_wherever_its_environment_is(tmp_path):
    moved = copy_environment(tmp_path / "moved")
    assert initialized(moved) == "rank 0 of 1, True, True\n"
    assert initialized(ENVIRONMENT, OPAL_PREFIX=str(moved)) == "rank 0 of 1, True, True\n", "a prefix that is set stays"


def test_the_prefix_is_set_for_this_environments_mpi_alone_and_removed_after_an_error(monkeypatch):
    for name in ("OPAL_PREFIX", *prefix.LAUNCHER_VARIABLES):
        monkeypatch.delenv(name, raising=False)

    def prefix_inside(library):
        """Return OPAL_PREFIX where the process has loaded a library."""
        maps = f"7f0-7f1 r-xp 00000000 00:00 1    {library}\n7f1-7f2 rw-p 00000000 00:00 0 \n"
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", lambda _path, **_: maps)
            with prefix.open_mpi_prefix():
                return os.environ.get("OPAL_PREFIX")

    ours = (ENVIRONMENT / "lib").resolve() / "libmpi.so.40"
    assert prefix_inside(ours) == sys.prefix
    assert prefix_inside("/usr/lib/openmpi/libmpi.so.40") is None, "that of a cluster"
    assert prefix_inside("/usr/lib/libc.so.6") is None
    for name in prefix.LAUNCHER_VARIABLES:
        monkeypatch.setenv(name, "0")
        assert prefix_inside(ours) is None
        monkeypatch.delenv(name)
    monkeypatch.setattr(prefix, "_mpi_is_in", lambda environment: True)
    with pytest.raises(OSError, match="no network"), prefix.open_mpi_prefix():
        assert "OPAL_PREFIX" in os.environ
        raise OSError("no network")
    assert "OPAL_PREFIX" not in os.environ


def test_launchers_are_known_by_the_same_variables_everywhere():
    assert prefix.LAUNCHER_VARIABLES == launchers.LAUNCHER_VARIABLES
