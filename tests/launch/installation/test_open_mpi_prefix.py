"""A script that calls `hvd.init()` without a launcher: Open MPI finds its files, and no other program notices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from environments import ENVIRONMENT, copy_environment

from common.distributed import communicator
from launch.installation import open_mpi_prefix

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
    hidden = ("OPAL_PREFIX", "PYTHONPATH", *open_mpi_prefix.LAUNCHER_VARIABLES)
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


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """This environment in another folder."""
    return copy_environment(tmp_path_factory.mktemp("moved") / "environment")


@pytest.mark.ci
def test_a_script_alone_is_one_rank():
    assert initialized(ENVIRONMENT) == ["rank 0 of 1, True, True"]


@pytest.mark.ci
def test_after_the_environment_has_moved(moved):
    assert initialized(moved) == ["rank 0 of 1, True, True"]


@pytest.mark.ci
def test_an_environment_behind_a_link(tmp_path):
    (tmp_path / "link").symlink_to(ENVIRONMENT)
    assert initialized(tmp_path / "link") == ["rank 0 of 1, True, True"]


@pytest.mark.ci
def test_a_prefix_that_is_set_is_kept(moved):
    assert initialized(ENVIRONMENT, OPAL_PREFIX=str(moved)) == ["rank 0 of 1, True, True"]


@pytest.mark.ranks
@pytest.mark.ci
def test_under_a_launcher_nothing_changes():
    mpirun = [str(ENVIRONMENT / "bin" / "mpirun"), "-np", "2", "--oversubscribe", "--bind-to", "none"]
    assert initialized(ENVIRONMENT, *mpirun) == [f"rank {rank} of 2, True, True" for rank in range(2)]


# The decision, without an MPI


@pytest.fixture
def bare(monkeypatch):
    """A process alone, whose MPI library is that of its environment."""
    for name in ("OPAL_PREFIX", *open_mpi_prefix.LAUNCHER_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(open_mpi_prefix, "_mpi_is_in", lambda environment: environment == Path(sys.prefix))
    return monkeypatch


def prefix_inside():
    """Return OPAL_PREFIX inside the context."""
    with open_mpi_prefix.open_mpi_prefix():
        return os.environ.get("OPAL_PREFIX")


@pytest.mark.usefixtures("bare")
def test_it_is_set_inside_only_and_removed_after_an_error():
    assert prefix_inside() == sys.prefix
    assert "OPAL_PREFIX" not in os.environ
    with pytest.raises(OSError, match="no network"), open_mpi_prefix.open_mpi_prefix():
        raise OSError("no network")
    assert "OPAL_PREFIX" not in os.environ


@pytest.mark.parametrize("name", open_mpi_prefix.LAUNCHER_VARIABLES)
def test_it_is_not_set_under_a_launcher(bare, name):
    bare.setenv(name, "0")
    assert prefix_inside() is None


def test_it_is_not_set_for_an_mpi_of_the_cluster(bare, tmp_path):
    bare.undo()
    for name in ("OPAL_PREFIX", *open_mpi_prefix.LAUNCHER_VARIABLES):
        bare.delenv(name, raising=False)
    maps = "7f0-7f1 r-xp 00000000 00:00 1    {}/libmpi.so.40\n7f1-7f2 rw-p 00000000 00:00 0 \n"
    for folder, expected in [(Path("/usr/lib/openmpi"), None), (ENVIRONMENT / "lib", sys.prefix)]:
        bare.setattr(Path, "read_text", lambda _path, folder=folder, **_: maps.format(folder.resolve()))
        assert prefix_inside() == expected
    bare.setattr(Path, "read_text", lambda _path, **_: "7f1-7f2 rw-p 00000000 00:00 0 \n")
    assert prefix_inside() is None


def test_launchers_are_known_by_the_same_variables_everywhere():
    assert open_mpi_prefix.LAUNCHER_VARIABLES == communicator.LAUNCHER_VARIABLES
