"""Interference: other processes, throttling, memory."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from common.measurement import interference as isolation
from common.measurement.interference import (
    Interference,
    InterferenceMeter,
    join,
    other_processes,
    take_sample,
)
from common.utils.at_once import AT_ONCE

BUSY = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"


def test_another_busy_process_is_recorded_and_those_of_the_run_are_not():
    """The busy process leaves this session and process tree, as if another user had started it."""
    outsider = subprocess.run(
        ["setsid", "sh", "-c", f"{sys.executable} -c '{BUSY}' >/dev/null 2>&1 & echo $!"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    own = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        busy = psutil.Process(int(outsider.stdout))
        deadline = time.monotonic() + 30
        while not (seen := [line for line in other_processes(take_sample()) if line.startswith(busy.name())]):
            assert time.monotonic() < deadline
        assert all(line.endswith(" % of a core") for line in seen)
        assert busy.pid not in isolation._own_processes()
        assert own.pid in isolation._own_processes()
    finally:
        own.kill()
        own.wait()
        busy.kill()


def test_runs_that_are_made_at_once_with_this_one_are_no_interference(tmp_path, monkeypatch):
    """The record counts them; other programs stay interference, also those of runs that are made alone."""
    processes = []
    for name, count in (("busy-2", "2"), ("busy-1", "1")):  # not the name of what else runs here
        (tmp_path / name).symlink_to(sys.executable)
        program = [str(tmp_path / name), "-c", BUSY]
        processes.append(subprocess.Popen(program, env=os.environ | {AT_ONCE: count}, start_new_session=True))
    neighbor = processes[0]
    try:
        monkeypatch.setattr(isolation, "_own_processes", set)
        monkeypatch.setattr(isolation, "HEAVY_CORES", 0.01)
        monkeypatch.setattr(isolation, "MOST_NAMED", 1000)
        for at_once, names in (("2", {"busy-1"}), ("1", {"busy-1", "busy-2"})):
            monkeypatch.setenv(AT_ONCE, at_once)
            lines = other_processes(take_sample())
            assert {line.partition(",")[0] for line in lines if line.startswith("busy")} == names, lines
        assert isolation._is_neighbor(neighbor.pid) is False
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_ranks_with_the_same_command_line_are_of_the_run(tmp_path):
    """A launcher may give each rank its own session."""
    script = tmp_path / "rank.py"
    script.write_text(
        "import sys\n"
        "from common.measurement import interference\n"
        "print('started', flush=True)\n"
        "sys.stdin.readline()\n"
        "print(interference._own_processes(), flush=True)\n"
        "sys.stdin.readline()\n"
    )
    command = [sys.executable, str(script)]
    ranks = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
                         env={"PYTHONPATH": str(Path(__file__).parents[3])})
        for _ in range(2)
    ]  # fmt: skip
    shown = []
    for line in ("started", "processes"):  # each rank samples while both are alive
        for rank in ranks:
            assert rank.stdin and rank.stdout
            if line == "processes":
                rank.stdin.write("\n")
                rank.stdin.flush()
            shown.append(rank.stdout.readline())
    for rank in ranks:
        rank.communicate("\n", timeout=60)
    assert shown[:2] == ["started\n"] * 2
    assert all(str(rank.pid) in text for rank in ranks for text in shown[2:])


@pytest.mark.parametrize(
    ("program", "local_rank", "is_taken"), [("train.py", "0", True), ("train.py", "1", False), ("other.py", "0", False)]
)
def test_the_first_trainer_of_a_host_looks_at_it_as_this_is_imported(program, local_rank, is_taken):
    code = f"import sys\nsys.argv = [{program!r}]\nfrom common.measurement import interference\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print(interference._early is not None)"],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3],
        env=os.environ | {"OMPI_COMM_WORLD_LOCAL_RANK": local_rank}, timeout=120,
    )  # fmt: skip
    assert done.stdout == f"{is_taken}\n"


def test_nothing_is_waited_for_after_an_early_look(monkeypatch):
    waits = []
    monkeypatch.setattr(isolation.time, "sleep", waits.append)
    at, spent = take_sample()
    monkeypatch.setattr(isolation, "_early", (at - 5, spent))
    InterferenceMeter(first_on_host=True).start()
    InterferenceMeter(first_on_host=True).start()  # a second run in the same process
    assert waits[0] == 0 < waits[1] <= isolation.SAMPLE_SECONDS


def test_a_process_that_starts_after_the_first_look_is_judged_by_its_own_time():
    earlier = take_sample()
    busy = subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True)
    own = isolation._own_processes
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(isolation, "_own_processes", lambda: own() - {busy.pid})
            patch.setattr(isolation, "MOST_NAMED", 1000)
            deadline, name = time.monotonic() + 30, psutil.Process(busy.pid).name()
            while not [line for line in other_processes(earlier) if line.startswith(name)]:
                assert time.monotonic() < deadline
    finally:
        busy.kill()
        busy.wait()


def test_the_share_of_a_core_by_hand():
    share = isolation._share
    assert share(3.0, before=(1.0, "make"), age=100.0, between=4.0) == 0.5
    assert share(3.0, before=None, age=4.0, between=8.0) == 0.75
    assert share(0.1, before=None, age=0.1, between=8.0) is None


def throttled(folder, *counts):
    for core, count in enumerate(counts):
        place = folder / f"cpu{core}" / "thermal_throttle"
        place.mkdir(parents=True)
        (place / "core_throttle_count").write_text(count)
    return folder


def test_throttling_is_counted_or_unknown(tmp_path):
    assert isolation.throttle_count(throttled(tmp_path / "hot", "3\n", "4\n")) == 7
    assert isolation.throttle_count(throttled(tmp_path / "odd", "3\n", "many\n")) is None
    assert isolation.throttle_count(tmp_path / "none") is None


def part(memory, *, load=None, throttled=0, device=None):
    """What a rank measures; `load`: of the host, measured by its first rank."""
    return Interference(
        load_average_before=[] if load is None else [load],
        other_processes_before=["make, 87 % of a core"] if load == 1.5 else [],
        throttled_cores=throttled,
        peak_memory_bytes=[memory],
        peak_device_memory_bytes=[device],
        busy_cores=[memory / 200],
    )


def test_the_record_by_hand():
    ranks = [part(100, load=1.5, throttled=2), part(200, device=7), part(300, load=0.5, throttled=5)]
    assert join(ranks) == Interference(
        load_average_before=[1.5, 0.5],
        other_processes_before=["make, 87 % of a core"],
        throttled_cores=7,
        peak_memory_bytes=[100, 200, 300],
        peak_device_memory_bytes=[None, 7, None],
        busy_cores=[0.5, 1.0, 1.5],
    )
    assert join([*ranks[:2], part(300, load=0.5, throttled=None)]).throttled_cores is None


@pytest.mark.parametrize("first", [True, False])
def test_a_rank_reports_its_memory_and_the_first_its_host(first, monkeypatch):
    monkeypatch.setattr(isolation, "clocks", iter([(10.0, 1.0), (14.0, 7.0)]).__next__)
    monkeypatch.setattr(isolation, "throttle_count", iter([10, 12]).__next__)
    meter = InterferenceMeter(first_on_host=first)
    meter.start()
    found = meter.result(peak_device_memory_bytes=5)
    assert found.busy_cores == [1.5] and found.peak_device_memory_bytes == [5]
    assert found.peak_memory_bytes[0] >= psutil.Process().memory_info().rss * 0.5 > 1e6
    assert len(found.load_average_before) == (1 if first else 0)
    assert found.throttled_cores == (2 if first else 0)
