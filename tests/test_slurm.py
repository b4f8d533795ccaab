"""Slurm: jobs on a real one, started here (`real_slurm`)."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from real_slurm import NODES, WAIT_SECONDS, Slurm, real_slurm, why_not

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """A cluster of two nodes for all tests of this file."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with real_slurm() as cluster:
        yield cluster


def test_the_cluster_of_the_tests_has_two_hosts(slurm: Slurm) -> None:
    assert processes_of(slurm.folder)
    assert sorted(slurm.command("srun", "--nodes=2", "--ntasks=2", "hostname").split()) == sorted(NODES)


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_nothing_is_left_of_a_cluster_with_a_job_in_it(slurm: Slurm, how: str) -> None:
    """Also where the tests are killed: then the program below has no time to end anything."""
    program = """if True:
        import os, signal, sys
        from real_slurm import real_slurm
        with real_slurm() as cluster:
            job = cluster.command("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 1000").strip()
            cluster.wait_for(job, "RUNNING")
            print(cluster.folder, flush=True)
            if sys.argv[1] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", program, how], cwd=TESTS, capture_output=True, text=True)
    folder = Path(done.stdout.strip())
    try:
        assert folder.is_absolute() and folder.exists() == (how == "killed"), done.stderr
        deadline = time.monotonic() + WAIT_SECONDS
        while processes_of(folder):
            assert how == "killed" and time.monotonic() < deadline, processes_of(folder)
            time.sleep(0.1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def processes_of(cluster: Path) -> list[psutil.Process]:
    configuration = str(cluster / "slurm.conf")
    return [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get("SLURM_CONF") == configuration
    ]
