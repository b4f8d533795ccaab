"""What a rank knows of its start by its environment variables, and what is refused by them."""

import re

import pytest

from common.config import StrategyConfig
from common.distributed.launchers import (
    HOST_ALIASES,
    check_controller,
    check_tasks,
    controller_variables,
    place_on_host,
)
from common.errors import UserError
from common.run.program import read_settings

MPI = {"OMPI_COMM_WORLD_SIZE": "2"}
GLOO = {"HOROVOD_RANK": "0", "HOROVOD_CONTROLLER": "gloo"}
YIELDING = {"OMPI_MCA_mpi_yield_when_idle": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
ON_CPUS = {"HOROVOD_CYCLE_TIME": "0.2", "HOROVOD_FUSION_THRESHOLD": "4194304", "HOROVOD_TWINS_IDLE_MS": "20"}
PATIENT = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "3600"}
BY_SRUN = {"OMPI_MCA_pmix_base_async_modex": "1", "OMPI_MCA_pmix_base_collect_data": "0"}


@pytest.mark.parametrize(
    ("variables", "nccl", "added"),
    [
        (MPI, False, YIELDING | ON_CPUS),
        ({"SLURM_STEP_ID": "0", "PMIX_RANK": "0"}, False, YIELDING | ON_CPUS | BY_SRUN),
        (MPI | dict.fromkeys(YIELDING | ON_CPUS, "7"), False, {}),  # values set by the user are kept
        # Horovod's own cycle time and buffers: for NCCL, and for Gloo, which `horovodrun --gloo` names.
        (MPI, True, YIELDING),
        ({"PMI_SIZE": "2"}, True, YIELDING),
        (GLOO, True, YIELDING | PATIENT),
        (GLOO, False, YIELDING | PATIENT | {"HOROVOD_TWINS_IDLE_MS": "20"}),
        (GLOO | {"HOROVOD_ELASTIC": "1"}, True, YIELDING),
    ],
)
def test_variables_of_the_controller(variables, nccl, added):
    assert controller_variables(variables, nccl=nccl) == added


def test_ranks_that_hold_one_copy_of_the_model_never_sleep_between_looks():
    for nccl in (False, True):
        assert controller_variables(MPI, nccl=nccl, parts=2)["HOROVOD_TWINS_IDLE_MS"] == "0"


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"HOROVOD_HOSTNAME": "localhost"}, None),  # as Horovod names hosts over Gloo
        ({HOST_ALIASES: "localhost,127.0.0.1,127.0.0.01", "HOROVOD_HOSTNAME": "127.0.0.1"}, (1, 3)),
        ({HOST_ALIASES: "localhost,127.0.0.1", "HOROVOD_HOSTNAME": "node7"}, None),
    ],
)
def test_only_names_of_this_host_decide_on_the_place_of_a_rank(variables, place):
    assert place_on_host(variables) == place


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
