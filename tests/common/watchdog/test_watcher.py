"""A watcher on a host whose clock is the test's: suspended at any moment, it blames no rank for the pause."""

import json
import os
import subprocess
from dataclasses import asdict

import pytest

from common.watchdog import watcher
from common.watchdog.board import ACTIVITIES, board_in
from common.watchdog.verdict import SILENT_SECONDS, Report

SECRET = "0" * 32
STALL_SECONDS = 1.0
TICKS = 6


class Host:
    """The clock and the port of a watcher. Its own rank and the two others move in each tick.

    Args:
        suspended_before: at which look at the clock the host has just been suspended; 0: never.
        state: of the processes of the other ranks.
    """

    def __init__(self, rank, board, *, suspended_before=0, state="S"):
        self.others, self.board, self.state = sorted({0, 1, 2} - {rank}), board, state
        self.suspended_before, self.looks, self.now = suspended_before, 0, 100.0
        self.messages, self.ticks = [], 0
        self.watcher = None
        self.move()

    def monotonic(self):
        self.looks += 1
        if self.looks == self.suspended_before:
            self.now += SILENT_SECONDS + 2
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def sendto(self, message, address):
        pass

    def select(self, ports, _, __, seconds):
        if self.messages:
            return ports, [], []
        self.now += seconds
        self.ticks += 1
        if self.ticks == TICKS:
            self.watcher.has_successor.set()
        self.move()
        return [], [], []

    def recvfrom(self, *_):
        return self.messages.pop(), ("127.0.0.1", 1)

    def move(self):
        self.board.moved_at = self.now
        for rank in self.others:
            report = Report(
                host="node",
                process=7,
                activity="training",
                updates=3,
                idle_seconds=0.0 if self.state == "S" else 9.0,
                slowest_seconds=0.1,
                state=self.state,
                stack="somewhere",
            )
            content = {"rank": rank, "report": asdict(report), "verdict": ["", []]}
            self.messages.append((SECRET + json.dumps(content)).encode())


@pytest.fixture
def watched(monkeypatch):
    """Return a function that lets a watcher watch for some ticks, and returns its host."""
    descriptor, stack = os.memfd_create("board"), os.memfd_create("stack")
    board = board_in(descriptor)
    board.activity_number, board.slowest_seconds = ACTIVITIES.index("training"), 0.1
    with subprocess.Popen(["sleep", "100"]) as process:

        def watch(rank, **options):
            host = Host(rank, board, **options)
            monkeypatch.setattr(watcher, "time", host)
            monkeypatch.setattr(watcher, "select", host)
            host.watcher = watcher.Watcher(
                port=host,
                rank=rank,
                process=process.pid,
                program="train.py",
                peers=[(["127.0.0.1"], 1)] * 3,
                secret=SECRET,
                action="wait",
                elastic=False,
                stall_seconds=STALL_SECONDS,
                board=descriptor,
                stack=stack,
                tick_seconds=0.2,
            )
            host.watcher.run()
            return host

        yield watch
        process.kill()
    os.close(descriptor)
    os.close(stack)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_nobody_is_blamed_wherever_in_a_tick_the_job_was_suspended(rank, watched, capfd):
    looks = watched(rank).looks
    assert looks > 5 * TICKS
    for look in range(1, looks + 1):
        watched(rank, suspended_before=look)
        assert capfd.readouterr().err == "", f"suspended before look {look} of {looks}"


def test_the_stopped_ones_are_named_after_a_suspension_too(watched, capfd):
    watched(0, suspended_before=20, state="T")
    assert "rank 1 (host node, process 7) is stopped, in training" in capfd.readouterr().err
