"""The recorded environment: variables that may explain a difference between runs, and no others."""

import os

import pytest

from common.run_folder.environment import RECORDED_VARIABLES, TUNING_VARIABLES, describe_environment


def test_variables_that_are_not_on_the_list_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    recorded = {"HOROVOD_CYCLE_TIME": "0.2", "OMPI_MCA_btl": "tcp", "NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "7",
                "SKYPILOT_TASK_ID": "sky-1"}  # fmt: skip
    private = ["TF_VAR_db", "HOROVOD_SECRET_KEY", "HOROVOD_DB_LOGIN", "OMPI_MCA_orte_x", "NCCL_X", "MKL_X", "HOME"]
    for name, value in recorded.items() | {(name, "swordfish") for name in private}:
        monkeypatch.setenv(name, value)
    assert describe_environment().variables == recorded
    assert set(TUNING_VARIABLES) < RECORDED_VARIABLES
