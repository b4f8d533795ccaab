"""The recorded environment: variables that may explain a difference between runs, and no others."""

import os

import pytest
from builders import make_environment

from common.run_folder.environment import (
    RECORDED_VARIABLES,
    TUNING_VARIABLES,
    describe_environment,
    processor_of,
    tuning_of,
)


def test_variables_that_are_not_on_the_list_are_not_recorded(monkeypatch):
    for name in list(os.environ):
        monkeypatch.delenv(name)
    recorded = {"HOROVOD_CYCLE_TIME": "0.2", "OMPI_MCA_btl": "tcp", "NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "7",
                "SKYPILOT_TASK_ID": "sky-1"}  # fmt: skip
    private = ["TF_VAR_db", "HOROVOD_SECRET_KEY", "HOROVOD_DB_LOGIN", "OMPI_MCA_orte_x", "NCCL_X", "MKL_X", "HOME"]
    for name, value in recorded.items() | {(name, "swordfish") for name in private}:
        monkeypatch.setenv(name, value)
    assert describe_environment().variables == recorded
    assert set(TUNING_VARIABLES) < RECORDED_VARIABLES


def test_tuning_is_what_a_run_does_not_set_itself():
    own = {"HOROVOD_CYCLE_TIME": "0.2", "HOROVOD_FUSION_THRESHOLD": "4194304", "OMPI_MCA_mpi_yield_when_idle": "1"}
    assert tuning_of(make_environment(variables={**own, "OMPI_MCA_btl": "tcp"}), mpi=True, parts=1) == {}
    tuned = {"HOROVOD_CYCLE_TIME": "5", "OMP_NUM_THREADS": "1"}
    environment = make_environment(variables={**own, **tuned, "OMPI_MCA_mpi_yield_when_idle": "0"})
    assert tuning_of(environment, mpi=False, parts=1) == tuned
    assert tuning_of(environment, mpi=True, parts=1) == {**tuned, "OMPI_MCA_mpi_yield_when_idle": "0"}
    looking = make_environment(variables={"HOROVOD_TWINS_IDLE_MS": "0"})
    assert tuning_of(looking, mpi=True, parts=2) == {}
    assert tuning_of(looking, mpi=True, parts=1) == looking.variables


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("cpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n", "AMD EPYC (family 25, model 1)"),
        (
            "cpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Xeon(R) Gold 6230\n\nmodel name\t: other\n",
            "Xeon(R) Gold 6230",
        ),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported"),
        ("model name\t: Virtual\n", "Virtual"),
        ("", None),
    ],
)
def test_generations_of_a_processor_have_names_of_their_own(cpuinfo, name):
    assert processor_of(cpuinfo) == name
