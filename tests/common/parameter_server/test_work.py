"""Schedules that cannot be replayed; who gets which work, and whole runs: `end_to_end/test_server.py`."""

import pytest

from common.errors import UserError
from common.parameter_server.schedule import Schedule, load_schedule


def test_a_schedule_that_is_missing_or_too_short_is_refused(tmp_path):
    with pytest.raises(UserError, match="no schedule"):
        load_schedule(tmp_path)
    Schedule(2, workers=[0, 1], meetings=[(2, 0, 0)]).save(tmp_path)
    schedule = load_schedule(tmp_path)
    assert schedule.until(0) == Schedule(2)
    with pytest.raises(UserError, match="does not reach the checkpoint"):
        schedule.until(3)
