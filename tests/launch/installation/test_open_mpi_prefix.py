"""A script that calls `hvd.init()` without a launcher: Open MPI finds its files, and no other program notices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from environments import ENVIRONMENT, copy_environment

from common.distributed import communicator
from launch.installation.open_mpi_prefix import LAUNCHER_VARIABLES, open_mpi_prefix

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
    for environment in (ENVIRONMENT, moved, link):
        assert initialized(environment) == ["rank 0 of 1, True, True"], environment
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
