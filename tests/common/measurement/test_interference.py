"""Interference: other processes, throttling, memory."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
from processes import ROOT
from waiting import wait_until

from common.distributed.launchers import AT_ONCE
from common.measurement import interference as isolation
from common.measurement.interference import InterferenceMeter, join, other_processes, take_sample

BUSY = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"


@contextmanager
def busy(python, **options):
    """Keep a core busy, in a session of its own."""
    process = subprocess.Popen([python, "-c", BUSY], start_new_session=True, **options)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(autouse=True)
def names_all(monkeypatch):
    """On a machine that has much else to do."""
    monkeypatch.setattr(isolation, "HEAVY_CORES", 0.01)
    monkeypatch.setattr(isolation, "MOST_NAMED", 1000)


def test_another_busy_process_is_recorded_and_those_of_the_run_are_not(tmp_path):
    """It leaves this session and process tree, as if another user had started it, and starts after the first look."""
    earlier = take_sample()
    for name in ("outsider", "own"):  # not the names of what else runs here
        (tmp_path / name).symlink_to(sys.executable)
    script = f"{tmp_path}/outsider -c '{BUSY}' >/dev/null 2>&1 & echo $!"
    outsider = subprocess.run(["setsid", "sh", "-c", script], capture_output=True, text=True, check=True, timeout=120)
    lines = []

    def is_seen():
        lines[:] = [line for line in other_processes(earlier) if line.startswith(("outsider, ", "own, "))]
        return lines

    try:
        with busy(tmp_path / "own"):
            wait_until(is_seen)
            assert lines[0].startswith("outsider, ") and lines[0].endswith(" % of a core") and len(lines) == 1
    finally:
        psutil.Process(int(outsider.stdout)).kill()


def test_runs_that_are_made_at_once_with_this_one_are_no_interference(tmp_path, monkeypatch):
    """The record counts them; other programs stay interference, also those of runs that are made alone."""
    for name in ("busy-2", "busy-1"):  # not the name of what else runs here
        (tmp_path / name).symlink_to(sys.executable)
    neighbor, stranger = (busy(tmp_path / f"busy-{count}", env=os.environ | {AT_ONCE: count}) for count in "21")
    monkeypatch.setattr(isolation, "_is_own", lambda process, here: False)
    with neighbor, stranger:
        for at_once, names in (("2", {"busy-1"}), ("1", {"busy-1", "busy-2"})):
            monkeypatch.setenv(AT_ONCE, at_once)
            lines = other_processes(take_sample())
            assert {line.partition(",")[0] for line in lines if line.startswith("busy")} == names, lines


RANK = """
import sys, psutil
from common.measurement import interference
print("started", flush=True)
others = map(psutil.Process, map(int, sys.stdin.readline().split()))
print([interference._is_own(other, psutil.Process()) for other in others], flush=True)
sys.stdin.readline()
"""


def test_ranks_with_the_same_command_line_are_of_the_run():
    """A launcher may give each rank its own session; each samples while both are alive."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    command = [sys.executable, "-c", RANK]
    ranks = [subprocess.Popen(command, env={"PYTHONPATH": str(ROOT)}, **pipes) for _ in range(2)]
    assert [rank.stdout.readline() for rank in ranks] == ["started\n"] * 2
    shown = []
    for rank in ranks:
        rank.stdin.write(f"{ranks[0].pid} {ranks[1].pid} {os.getpid()}\n")
        rank.stdin.flush()
        shown.append(rank.stdout.readline())
    for rank in ranks:
        rank.communicate("\n", timeout=60)
    assert shown == ["[True, True, False]\n"] * 2


class Seen:
    """A process as psutil shows it."""

    def __init__(self, pid, name, percent, *, seconds, age=100.0):
        self.pid, self.info = pid, {"cpu_percent": percent}
        self.name, self.create_time = lambda: name, lambda: time.time() - age
        self.cpu_times = lambda: SimpleNamespace(user=seconds / 2, system=seconds / 2)


def test_the_share_of_a_core_by_hand(monkeypatch):
    """Of a process that was there at the first look, psutil counts it; of a new one it is of its age."""
    old, new, just_started = (
        Seen(1, "make", 50.0, seconds=90.0),
        Seen(2, "cc", 0.0, seconds=30.0, age=40.0),
        Seen(3, "ld", 0.0, seconds=0.1, age=0.1),
    )
    monkeypatch.setattr(isolation.psutil, "process_iter", lambda names: [old, new, just_started])
    monkeypatch.setattr(isolation, "_is_own", lambda process, here: False)
    assert other_processes((0.0, {old})) == ["cc, 75 % of a core", "make, 50 % of a core"]


@pytest.mark.parametrize(("counts", "total"), [(["3\n", "4\n"], 7), (["3\n", "many\n"], None), ([], None)])
def test_throttling_is_counted_or_unknown(tmp_path, counts, total):
    for core, count in enumerate(counts):
        place = tmp_path / f"cpu{core}" / "thermal_throttle"
        place.mkdir(parents=True)
        (place / "core_throttle_count").write_text(count)
    assert isolation.throttle_count(tmp_path) == total


def test_the_record_of_two_ranks_of_a_host(monkeypatch):
    monkeypatch.setattr(isolation, "clocks", iter([(10.0, 1.0), (10.0, 1.0), (14.0, 7.0), (14.0, 3.0)]).__next__)
    monkeypatch.setattr(isolation, "throttle_count", iter([10, 12]).__next__)
    meters = [InterferenceMeter(first_on_host=is_first) for is_first in (True, False)]
    for meter in meters:
        meter.start()
    first = meters[0].result(peak_device_memory_bytes=5)
    second = meters[1].result(peak_device_memory_bytes=None)
    record = join([first, second])
    assert (record.busy_cores, record.throttled_cores, record.peak_device_memory_bytes) == ([1.5, 0.5], 2, [5, None])
    assert len(record.load_average_before) == 1
    for of_ranks in (record.peak_memory_bytes, record.memory_before_bytes):
        assert len(of_ranks) == 2 and min(of_ranks) >= psutil.Process().memory_info().rss * 0.5 > 1e6
    assert join([replace(first, throttled_cores=None), second]).throttled_cores is None
