"""Work that copies of the process share."""

import os
import signal
import subprocess
import sys
import time

import pytest
from waiting import wait_until

from common.errors import UserError
from common.utils.process_state import ENDED, process_state
from common.utils.workers import in_order, side_by_side

SLEEPING = """\
import os, time
from common.utils import workers

def sleep(number):
    os.write(1, f"{os.getpid()}\\n".encode())  # in one piece, whatever the other one writes
    time.sleep(60)

workers.usable_cores = lambda: 2
workers.side_by_side(sleep, [0, 1])
"""


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr("common.utils.workers.usable_cores", lambda: 2)


def test_copies_share_the_work_and_the_results_are_in_order():
    offset, here = 10, os.getpid()

    def work(number):
        time.sleep(0.2 / (number + 1))
        return offset + number, os.getpid() == here

    assert side_by_side(work, [0, 1, 2]) == [(10, False), (11, False), (12, False)]
    assert side_by_side(work, [5]) == [(15, True)]
    assert side_by_side(work, []) == []


def test_an_error_of_the_work_arrives_and_a_copy_that_is_killed_is_reported():
    def fails(number):
        raise UserError(f"no such number. Received: {number}. Name another")

    def ends(number):
        os._exit(9)

    with pytest.raises(UserError, match=r"Received: [01]\. Name another"):
        side_by_side(fails, [0, 1])
    with pytest.raises(UserError, match="a worker process was killed"):
        side_by_side(ends, [0, 1])


def test_a_worker_that_is_killed_is_reported():
    with pytest.raises(UserError, match=r"a worker process was killed"):
        list(in_order(os._exit, [9, 9], processes=True))


def test_copies_end_with_their_parent():
    with subprocess.Popen([sys.executable, "-c", SLEEPING], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        copies = [int(parent.stdout.readline()) for _ in range(2)]
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: all(process_state(copy) in ENDED for copy in copies))
