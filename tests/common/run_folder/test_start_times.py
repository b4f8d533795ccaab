"""Times before start-up: seconds by hand, clocks that differ, and real launchers."""

import json
import sys
import time

import pytest
from processes import environment, launcher_command

from common.distributed.launchers import launcher_of
from common.run_folder.records import NotRecorded
from common.run_folder.start_times import BEGAN_AT, STARTED_AT, SUBMITTED_AT, launch_seconds, queue_seconds
from launch.starting.processes import run_filtered, started


def test_seconds_by_hand():
    variables = {SUBMITTED_AT: "1000.5", BEGAN_AT: "1060.75", STARTED_AT: "1070.000000001"}
    assert queue_seconds(variables) == 60.25
    assert launch_seconds(variables, process_began=1075.5) == pytest.approx(5.5)
    assert queue_seconds({}) is None and launch_seconds({}, process_began=1.0) is None
    assert queue_seconds({BEGAN_AT: "7"}) is None, "a script that no queue has started"
    # A start before its command is not recorded, but for a tick of the clock.
    seconds = launch_seconds({STARTED_AT: "100"}, process_began=99.5)
    assert isinstance(seconds, NotRecorded) and "rank 0's start is 0.500 s before" in seconds.not_recorded
    assert launch_seconds({STARTED_AT: "100"}, process_began=99.995) == 0.0


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({SUBMITTED_AT: "100", BEGAN_AT: "99"}, "1.000 s before HOROVOD_TWINS_SUBMITTED_AT: the clocks of two hosts"),
        ({SUBMITTED_AT: "100"}, "did not record its start"),
        ({SUBMITTED_AT: "yesterday", BEGAN_AT: "99"}, "not a time in seconds"),
        ({SUBMITTED_AT: "1", BEGAN_AT: ""}, "not a time in seconds"),
        ({SUBMITTED_AT: "nan", BEGAN_AT: "99"}, "not a time in seconds"),
        ({SUBMITTED_AT: "-inf", BEGAN_AT: "99"}, "not a time in seconds"),
        ({SUBMITTED_AT: "1764000000.%N", BEGAN_AT: "99"}, "not a time in seconds"),  # of a `date` without nanoseconds
    ],
)
def test_impossible_times_are_not_recorded(variables, words):
    seconds = queue_seconds(variables)
    assert isinstance(seconds, NotRecorded) and words in seconds.not_recorded


# As set by the launchers; installed ones are tested below.
PMIX = {"PMIX_RANK": "0", "SLURM_PROCID": "0"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"}


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        ({}, "none"),
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}, "none"),  # in a batch script
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", **PMIX}, "srun"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "PMI_RANK": "0", "PMI_SIZE": "2"}, "srun"),
        (MPIRUN, "mpirun"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", **PMIX, **MPIRUN}, "mpirun"),  # its daemons are Slurm's steps
        ({**MPIRUN, "HOROVOD_STARTED_BY": "horovodrun"}, "horovodrun"),
        ({"HOROVOD_RANK": "0", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"}, "horovodrun"),
        ({"SLURM_STEP_ID": "0", **PMIX, "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"}, "horovodrun"),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, "mpirun"),  # MPICH's
    ],
)
def test_launchers_are_recognized_by_their_variables(variables, launcher):
    assert launcher_of(variables) == launcher


WORKER = """
import json, os, sys, time
from pathlib import Path
from common.distributed.launchers import launcher_of
from common.run_folder.start_times import launch_seconds
from common.measurement.timing import process_start
launch = launch_seconds(os.environ, process_began=process_start())
Path(sys.argv[1]).write_text(json.dumps([launcher_of(os.environ), launch]))
"""


@pytest.mark.parametrize(
    "launcher", ["none", "mpirun1", pytest.param("mpi1", marks=[pytest.mark.ranks, pytest.mark.ci])]
)
def test_every_launcher_passes_the_start_time_to_rank_0(launcher, tmp_path):
    worker, result, log = tmp_path / "worker.py", tmp_path / "result", tmp_path / "log"
    worker.write_text(WORKER)
    command = [*launcher_command(launcher), sys.executable, str(worker), str(result)]
    variables = {**environment(), STARTED_AT: "1"}  # of an earlier start
    for is_logged in (False, True) if launcher == "none" else (True,):
        before = time.time()
        if is_logged:
            with started(command, variables=variables, log=log) as process:
                assert process.wait() == 0, log.read_text()
        else:
            assert run_filtered(command, environment=variables) == 0
        seen, seconds = json.loads(result.read_text())
        result.unlink()
        assert seen == {"mpirun1": "mpirun", "mpi1": "horovodrun"}.get(launcher, "none")
        assert 0 <= seconds <= time.time() - before
