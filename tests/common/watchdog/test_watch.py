"""Watchers beside real processes: a stopped one is named once, ended or killed; nothing is left behind.

The ranks are small processes without any framework (`tests/support/watched_worker.py`), connected by files.
"""

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from subprocess import PIPE
from unittest.mock import Mock

import psutil
import pytest
from processes import TESTS, environment
from waiting import wait_until

from common.config import FaultConfig
from common.distributed.communicator import Communicator
from common.utils.process_state import parent_of
from common.watchdog import verdict, watch
from common.watchdog.startup import flags
from common.watchdog.watcher import end_launcher

WAIT_SECONDS = 60.0


class Ranks:
    """Processes that tell their watchers every 0.1 s that they have made an update."""

    def __init__(self, folder, *, size, action, in_trouble="", trouble="stuck"):
        self.output = folder / "output"
        command = [sys.executable, str(TESTS / "watched_worker.py"), str(folder)]
        with self.output.open("w") as output:
            self.processes = [
                subprocess.Popen(
                    [*command, str(rank), str(size), action, in_trouble, trouble],
                    env={**environment(), "HOROVOD_RANK": str(rank)},
                    stderr=output,
                )
                for rank in range(size)
            ]
        self.wait(lambda: len(list(folder.glob("started-*"))) == size)
        self.watchers = [watcher for process in self.processes for watcher in children(process)]

    def wait(self, condition):
        wait_until(condition, within_seconds=WAIT_SECONDS, shown=self.printed)

    def printed(self):
        return self.output.read_text()

    def naming(self, process):
        """Return how many lines name a process."""
        return sum(f"process {process.pid})" in line for line in self.printed().splitlines())

    def codes(self):
        return [process.poll() for process in self.processes]


@contextmanager
def running(folder, *, size=3, action="wait", **options):
    ranks = Ranks(folder, size=size, action=action, **options)
    try:
        yield ranks
    finally:
        for process in ranks.processes:
            process.kill()
            process.wait()
        for watcher in ranks.watchers:  # those that a test has stopped do not see that their rank has ended
            with suppress(psutil.NoSuchProcess):
                watcher.send_signal(signal.SIGCONT)
        ranks.wait(lambda: not any(lives(watcher) for watcher in ranks.watchers))


def children(process):
    return psutil.Process(process.pid).children(recursive=True)


def lives(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def updates_made(process):
    """Return a number that grows by one or more with each update of a rank."""
    return psutil.Process(process.pid).num_ctx_switches().voluntary


def port_of(watcher):
    (port,) = {connection.laddr.port for connection in watcher.net_connections("udp")}
    return port


@pytest.mark.ci
def test_a_stopped_rank_is_named_once_and_again_when_it_stops_again(tmp_path):
    with running(tmp_path) as ranks:
        assert len(ranks.watchers) == 3
        _, first, second = ranks.processes
        first.send_signal(signal.SIGSTOP)
        ranks.wait(lambda: ranks.naming(first) == 1)
        line, kernel, *_ = ranks.printed().splitlines()
        assert f"rank 1 (host {os.uname().nodename}, process {first.pid}) is stopped, in training" in line
        assert line.endswith(": waiting on")
        assert "rank 1: in the kernel: state T" in kernel
        second.send_signal(signal.SIGSTOP)  # whose limit passes before it is named: the first is not named meanwhile
        ranks.wait(lambda: ranks.naming(second) == 1)
        assert ranks.naming(first) == 2, "with the second, in one line"
        before = updates_made(first)
        first.send_signal(signal.SIGCONT)
        second.send_signal(signal.SIGCONT)
        ranks.wait(lambda: updates_made(first) > before + 3)
        first.send_signal(signal.SIGSTOP)
        ranks.wait(lambda: ranks.naming(first) == 3)
        assert ranks.codes() == [None] * 3


def test_all_ranks_end_where_one_hangs_and_the_stopped_one_is_killed(tmp_path):
    with running(tmp_path, action="end") as ranks:
        ranks.processes[2].send_signal(signal.SIGSTOP)
        ranks.wait(lambda: None not in ranks.codes())
        assert ranks.codes() == [3, 3, -signal.SIGKILL]
        for rank in (0, 1):
            assert json.loads((tmp_path / f"ended-{rank}").read_text())["reason"].startswith("rank 2 (")


@pytest.mark.ci
def test_the_lowest_that_lives_speaks_when_the_first_host_is_gone(tmp_path):
    with running(tmp_path) as ranks:
        before = updates_made(ranks.processes[0])
        ranks.wait(lambda: updates_made(ranks.processes[0]) > before + 9)  # the watchers have heard of each other
        gone = [*children(ranks.processes[0]), ranks.processes[0]]
        for process in gone:
            process.send_signal(signal.SIGSTOP)
        ranks.wait(lambda: "rank 0" in ranks.printed())
        assert "does not answer: nothing was received from its host" in ranks.printed()
        for process in gone:
            process.send_signal(signal.SIGCONT)


@pytest.mark.ci
def test_a_job_that_was_suspended_goes_on(tmp_path):
    """With ranks and watchers, whose clocks go on meanwhile, longer than any of them may be silent or not move."""
    with running(tmp_path, action="end") as ranks:
        before = updates_made(ranks.processes[0])
        ranks.wait(lambda: updates_made(ranks.processes[0]) > before + 9)  # the watchers have heard of each other
        suspended = [*ranks.processes, *ranks.watchers]
        for process in suspended:
            process.send_signal(signal.SIGSTOP)
        time.sleep(verdict.SILENT_SECONDS + 2)
        for process in suspended:
            process.send_signal(signal.SIGCONT)
        before = updates_made(ranks.processes[0])
        ranks.wait(lambda: updates_made(ranks.processes[0]) > before + 30)
        assert ranks.printed() == "" and ranks.codes() == [None] * 3


@pytest.mark.ci
def test_a_rank_that_has_waited_for_a_dropped_one_goes_on(tmp_path):
    with running(tmp_path, size=2, action="drop", in_trouble="1", trouble="waits") as ranks:
        ranks.processes[0].send_signal(signal.SIGSTOP)
        ranks.wait(lambda: ranks.codes()[0] is not None)
        before = updates_made(ranks.processes[1])
        ranks.wait(lambda: None not in ranks.codes() or updates_made(ranks.processes[1]) > before + 60)
        assert ranks.codes() == [-signal.SIGKILL, None]
        assert ranks.naming(ranks.processes[1]) == 0


def test_a_rank_that_is_stuck_in_its_data_shows_its_stack(tmp_path):
    with running(tmp_path, in_trouble="1") as ranks:
        ranks.wait(lambda: "makes no progress, in loading data" in ranks.printed())
        ranks.wait(lambda: "watched_worker.py" in ranks.printed())
        assert "rank 1 (host" in ranks.printed()
        assert "in stuck_in_data" in ranks.printed()


def test_rank_0_ends_the_run_when_another_one_has_failed(tmp_path):
    with running(tmp_path, in_trouble="2", trouble="fails") as ranks:
        ranks.wait(lambda: ranks.codes() == [3, None, None])
        assert json.loads((tmp_path / "ended-0").read_text())["reason"] == "failed: too large"


def test_a_stranger_is_not_listened_to(tmp_path):
    with running(tmp_path, size=2) as ranks, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        report = verdict.Report(
            host="node", process=7, activity="training", updates=3, idle_seconds=99.0, slowest_seconds=0.1, state="T"
        )
        content = json.dumps({"rank": 1, "report": asdict(report), "verdict": ["nonsense", [0]]})
        sent = []

        def send():
            for line in (f"{'0' * 32}{content}", content, "nonsense", ""):
                stranger.sendto(line.encode(), ("127.0.0.1", port_of(ranks.watchers[0])))
            sent.append(content)
            return len(sent) > 100

        ranks.wait(send)
        assert ranks.printed() == "" and ranks.codes() == [None, None] and lives(ranks.watchers[0])


@pytest.mark.ci
def test_a_watcher_outlives_what_a_launcher_sends_but_not_its_rank(tmp_path):
    with running(tmp_path, size=2) as ranks:
        watcher = ranks.watchers[0]
        for number in (signal.SIGTERM, signal.SIGINT):
            watcher.send_signal(number)
        ranks.processes[1].send_signal(signal.SIGSTOP)
        ranks.wait(lambda: ranks.naming(ranks.processes[1]) == 1)
        ranks.processes[0].kill()
        ranks.processes[0].wait()
        ranks.wait(lambda: not lives(watcher))


def test_a_watcher_whose_rank_ends_before_it_has_started_says_nothing():
    unread, output = os.pipe()
    os.close(unread)
    command = [sys.executable, "-c", "from common.watchdog.watcher import main; main()"]
    options = {"env": environment(), "stdin": subprocess.DEVNULL, "stdout": output, "stderr": PIPE}
    done = subprocess.run(command, **options, timeout=WAIT_SECONDS)
    os.close(output)
    assert (done.returncode, done.stderr) == (0, b"")


IMPORTING = """
import time
import common.watchdog.startup
print("started", flush=True)
time.sleep(60)
"""


STOPPED_AT_ONCE = """
import os, signal, subprocess

class Stopping(subprocess.Popen):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        os.kill(os.getpid(), signal.SIGSTOP)

subprocess.Popen = Stopping
import common.watchdog.startup
"""


@pytest.mark.ci
def test_a_rank_that_is_stopped_as_soon_as_it_has_a_watcher_is_ended(tmp_path):
    (tmp_path / "train.py").write_text(STOPPED_AT_ONCE)
    command = [sys.executable, str(tmp_path / "train.py"), "--on-stall", "end", "--stall-seconds", "1"]
    with subprocess.Popen(command, env={**environment(), "HOROVOD_RANK": "1"}, stderr=PIPE, text=True) as rank:
        try:
            assert rank.wait(WAIT_SECONDS) == -signal.SIGKILL
        finally:
            rank.kill()
        assert f"rank 1 (host {os.uname().nodename}, process {rank.pid}) is stopped, in imports" in rank.stderr.read()


def test_an_interrupted_import_has_no_traceback(tmp_path):
    (tmp_path / "train.py").write_text(IMPORTING)
    command = [sys.executable, str(tmp_path / "train.py")]
    with subprocess.Popen(command, env=environment(), stdout=PIPE, stderr=PIPE, text=True) as rank:
        assert rank.stdout.readline() == "started\n"
        rank.send_signal(signal.SIGINT)
        assert rank.communicate(timeout=WAIT_SECONDS) == ("", "")
    assert rank.returncode == -signal.SIGINT


@pytest.mark.parametrize(("name", "is_ended"), [("mpirun", True), ("bash", False)])
def test_mpirun_is_ended_where_it_waits_on(name, is_ended, tmp_path):
    """As for its daemon on a host that does not answer; what else may have started ranks is left alone."""
    program = tmp_path / name
    shutil.copy("/bin/sleep", program)
    process = subprocess.Popen([program, "100"])
    try:
        assert parent_of(process.pid) == os.getpid()
        wait_until(Path(f"/proc/{process.pid}/cmdline").read_bytes)
        end_launcher(process.pid, patience_seconds=0.3)
        if is_ended:
            assert process.wait(10) == -signal.SIGKILL
        else:
            assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    end_launcher(process.pid, patience_seconds=0.3)  # nobody is there


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [("no process", "Too many open files"), ("its program ends", "it has ended at once"), ("killed later", "")],
)
def test_a_rank_whose_watcher_cannot_start_or_ends_trains_without(trouble, reason, monkeypatch, capfd):
    monkeypatch.setenv("HOROVOD_RANK", "0")
    monkeypatch.setattr(watch, "_has_warned", False)
    if trouble == "no process":
        monkeypatch.setattr(watch.subprocess, "Popen", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    elif trouble == "its program ends":
        monkeypatch.setattr(watch, "_PROGRAM", "pass  # {root}")
    without_watcher = (([], 0), "")  # of the other rank
    comm = Communicator(
        rank=0, size=2, local_rank=0, local_size=2, controller="gloo", allgather=lambda own: [own, without_watcher]
    )
    try:
        watch.watch_startup(FaultConfig())
        watch.take_settings(FaultConfig())
        watch.start_watch(FaultConfig(), comm=comm, end=print, fail=print)
        assert (watch._current is None) == (trouble != "killed later")
        if watch._current:
            watch._current.process.kill()
            watch._current.process.wait(WAIT_SECONDS)
            watch.take_settings(FaultConfig())
            watch.take_settings(FaultConfig())
    finally:
        watch.stop_watch()
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("warning: rank 0 trains without its watcher process. Received: ")
    assert reason in line


def test_until_the_settings_are_read_flags_count():
    assert flags(["--on-stall", "end", "--stall-seconds=7", "--epochs", "3"]).stall_seconds == 7
    assert flags(["--elastic"]).stall_action == "drop"
    for wrong in (["--on-stall", "panic"], ["--stall-seconds", "soon"], ["--on-stall"]):
        assert flags(wrong) == FaultConfig()
