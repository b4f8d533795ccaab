"""Schedules that cannot be replayed; who gets which work, and whole runs: `end_to_end/test_server.py`."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from builders import make_config, make_task
from fake_ranks import alone

from common.errors import UserError
from common.parameter_server.schedule import SCHEDULE_FILE, Schedule, load_schedule
from common.strategies.served_run import ServedRun


def test_a_schedule_that_is_missing_or_too_short_is_refused(tmp_path):
    with pytest.raises(UserError, match="no schedule"):
        load_schedule(tmp_path)
    Schedule(2, workers=[0, 1], meetings=[(2, 0, 0)]).save(tmp_path)
    schedule = load_schedule(tmp_path)
    assert schedule.until(0) == Schedule(2)
    with pytest.raises(UserError, match="does not reach the checkpoint"):
        schedule.until(3)


def test_a_schedule_that_cannot_be_written_is_one_line(tmp_path):
    task = make_task(make_config(tmp_path, strategy={"strategy": "server", "servers": 1, "staleness": "none"}))
    comm = replace(alone(), server_hosts=("a",))
    served = ServedRun(task, comm=comm, first_step=0, folder=tmp_path, load=lambda weights: None)
    served.client = SimpleNamespace(
        items=lambda first, stop: iter(range(first, stop)), meet=lambda: np.zeros(1), answers=lambda: [([(0, 0)], [0])]
    )
    (tmp_path / SCHEDULE_FILE).mkdir()
    with pytest.raises(UserError, match=f"writing the schedule failed.*{SCHEDULE_FILE}"):
        list(served.items(0, 1))
