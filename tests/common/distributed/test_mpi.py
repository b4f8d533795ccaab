"""What is refused where messages go by MPI. Ranks without Horovod: `end_to_end/test_server.py`."""

import re

import pytest
from processes import run_python

from common.config import StrategyConfig
from common.distributed.launchers import check_controller, check_tasks
from common.errors import UserError
from common.run.program import read_settings

MESSAGES = StrategyConfig(strategy="server", servers=1)
MPI_WITH_GLOO = {"OMPI_COMM_WORLD_SIZE": "2", "HOROVOD_CONTROLLER": "gloo"}


@pytest.mark.parametrize("variables", [{"HOROVOD_RANK": "0", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "::1"}, MPI_WITH_GLOO])
def test_gloo_is_refused_where_messages_go_by_mpi(variables):
    check_controller(StrategyConfig(), variables)
    for strategy, words in ((MESSAGES, "--strategy server "), (StrategyConfig(adasum=True), "--adasum ")):
        with pytest.raises(UserError, match=f"{words}exchanges messages over MPI"):
            check_controller(strategy, variables)
    check_controller(MESSAGES, {"OMPI_COMM_WORLD_SIZE": "2"})
    check_controller(MESSAGES, {"HOROVOD_CONTROLLER": "gloo"})  # which Horovod chooses without a launcher


def test_a_rank_that_cannot_read_its_settings_does_not_wait_for_ranks_that_can():
    code = """
import time
from common.distributed.joining import no_other_way
from common.errors import UserError
from common.run.program import read_settings
with no_other_way(None, patience_seconds=0.01):
    time.sleep(0.1)
with no_other_way(UserError("no such file"), patience_seconds=0.01):
    time.sleep(60)
"""
    ended = run_python("-c", code)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: no such file (this rank alone, because the others do not join)\n"


STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.mark.parametrize(
    "variables",
    [{}, {**STEP, "SLURM_STEP_NUM_TASKS": "1"}, {**STEP, "PMIX_RANK": "0"}, {**STEP, "OMPI_COMM_WORLD_SIZE": "2"}],
)
def test_tasks_that_know_of_each_other_are_ranks(variables):
    check_tasks(variables)


def test_tasks_of_srun_without_pmi_are_refused_in_one_line_of_the_first(monkeypatch):
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    error = read_settings([], program="torch_impl/train.py")
    assert re.fullmatch(r"[^\n]*2 tasks of srun without PMI\. Give srun --mpi=pmix [^\n]*", str(error)), error
    monkeypatch.setenv("SLURM_PROCID", "1")
    with pytest.raises(SystemExit, match="2"):
        read_settings([], program="torch_impl/train.py")
