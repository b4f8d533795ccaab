"""Lanes: how a host is divided, what a lane has, and what ends all of them.

Which run is made in which lane is in `launch/experiments/test_series.py`, what is refused in `tests/refusals/`.
"""

import argparse
import os

import pytest

from common.distributed.launchers import AT_ONCE, runs_at_once
from common.errors import UserError
from launch.experiments.survey import this_host
from launch.starting import lanes
from launch.starting.gpus import GPUS_SEEN
from launch.starting.lanes import (
    WHOLE_HOST,
    Lane,
    add_lane_options,
    cores_by_core,
    divide_host,
    lanes_of,
    run_in_lanes,
    uuids_of_gpus,
)


def options(*words):
    parser = argparse.ArgumentParser()
    add_lane_options(parser)
    return parser.parse_args(words)


def test_lanes_have_no_core_and_no_gpu_in_common():
    shared = divide_host(2, cores=[0, 4, 1, 5, 2], gpus=["a", "b", "c", "d"])
    assert shared == [Lane(1, 2, (0, 4), ("a", "b")), Lane(2, 2, (1, 5), ("c", "d"))]
    given = divide_host(3, cores_per_run=1, gpus_per_run=1, cores=[7, 8, 9, 10], gpus=["a", "b", "c"])
    assert [(lane.cores, lane.gpus) for lane in given] == [((7,), ("a",)), ((8,), ("b",)), ((9,), ("c",))]
    with pytest.raises(
        UserError, match=r"fewer GPUs than .* Received: --at-once 2, 1 GPU. Give .*, or --gpus-per-run 0"
    ):
        divide_host(2, cores=[0, 1], gpus=["a"])
    # Without GPUs none are hidden, and with 0 per run all.
    assert divide_host(2, cores=[0, 1], gpus=[])[0].variables == {AT_ONCE: "2"}
    hidden = divide_host(2, gpus_per_run=0, cores=[0, 1], gpus=["a"])
    assert hidden[1].variables == {AT_ONCE: "2", GPUS_SEEN: ""}
    assert divide_host(2, cores=[0, 1], gpus=["a", "b"])[1].variables == {AT_ONCE: "2", GPUS_SEEN: "b"}


def test_without_at_once_a_run_has_the_whole_host(monkeypatch):
    assert lanes_of(options()) == [WHOLE_HOST] and WHOLE_HOST.cores == ()
    variables = [WHOLE_HOST.variables, {}, *({AT_ONCE: text} for text in ("4", "", "many", "0"))]
    assert [runs_at_once(of_process) for of_process in variables] == [1, 1, 4, 1, 1, 1]
    monkeypatch.delattr(os, "sched_setaffinity")
    with pytest.raises(UserError, match=r"pins no process to cores\. Received: --at-once"):
        lanes_of(options("--at-once", "2"))


def test_hardware_threads_of_a_core_are_neighbors(tmp_path, monkeypatch):
    monkeypatch.setattr(lanes, "own_cores", lambda: frozenset(range(4)))
    assert cores_by_core(tmp_path) == [0, 1, 2, 3]  # not known
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1-3"]):
        file = tmp_path / f"cpu{cpu}/topology/thread_siblings_list"
        file.parent.mkdir(parents=True)
        file.write_text(f"{siblings}\n")
    assert cores_by_core(tmp_path) == [0, 2, 1, 3]


LISTED = """warning: infoROM is corrupted at gpu 0000:00:1E.0
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)
  MIG 1g.5gb      Device  0: (UUID: MIG-1)
  MIG 1g.5gb      Device  1: (UUID: MIG-2)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-2)
"""


@pytest.mark.parametrize(
    ("variable", "seen"),
    [
        (None, ["GPU-1", "GPU-2"]),
        ("1, 0", ["GPU-2", "GPU-1"]),
        ("1", ["GPU-2"]),
        ("MIG-2", ["MIG-2"]),
        ("", []),
        ("-1", []),
    ],
)
def test_gpus_that_this_process_does_not_see_do_not_count(monkeypatch, variable, seen):
    monkeypatch.setattr(lanes, "ask_nvidia", lambda *_: LISTED)
    monkeypatch.delenv(GPUS_SEEN, raising=False)
    if variable is not None:
        monkeypatch.setenv(GPUS_SEEN, variable)
    assert uuids_of_gpus() == seen
    this_host.cache_clear()
    assert this_host().gpus == len(seen)
    this_host.cache_clear()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UserError("no space")])
@pytest.mark.parametrize("where", ["in a job", "while waiting"])
def test_whatever_ends_the_runs_closes_them_all(error, where, monkeypatch):
    """Also where closing one is interrupted."""
    events = []

    def fail(*_):
        raise error

    def job(name, *, closing, steps):
        def run(lane):
            events.append(f"{name} in {lane.number}")
            try:
                for _ in range(steps):
                    yield
                fail()
            finally:
                events.append(f"{name} closed")
                closing()

        return run

    waits = where == "while waiting"
    monkeypatch.setattr(lanes.time, "sleep", fail if waits else lambda _: None)
    jobs = [job("a", closing=lambda: None, steps=9), job("b", closing=fail, steps=9 if waits else 2)]
    with pytest.raises(type(error)):
        run_in_lanes([*jobs, job("c", closing=fail, steps=1)], [Lane(number=1, of=2), Lane(number=2, of=2)])
    assert events == ["a in 1", "b in 2", "b closed", "a closed"]
