"""Lanes: how a host is divided, what processes in a lane have, and the loop that advances all jobs."""

import argparse
import os
import sys

import pytest

from common.errors import UserError
from common.utils.at_once import AT_ONCE, runs_at_once
from launch.experiments.survey import this_host
from launch.starting import lanes
from launch.starting.lanes import (
    GPUS_SEEN,
    WHOLE_HOST,
    Lane,
    add_lane_options,
    cores_by_core,
    divide_host,
    lanes_of,
    run_in_lanes,
    visible_gpus,
)
from launch.starting.processes import started


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lanes, "POLL_SECONDS", 0.001)


def options(*words):
    parser = argparse.ArgumentParser()
    add_lane_options(parser)
    return parser.parse_args(words)


# How a host is divided


def test_lanes_have_no_core_and_no_gpu_in_common():
    found = divide_host(2, cores=[0, 4, 1, 5, 2], gpus=["a", "b", "c", "d"])
    assert found == [Lane(1, 2, (0, 4), ("a", "b")), Lane(2, 2, (1, 5), ("c", "d"))]
    given = divide_host(3, cores_per_run=1, gpus_per_run=1, cores=[7, 8, 9, 10], gpus=["a", "b", "c"])
    assert [(lane.cores, lane.gpus) for lane in given] == [((7,), ("a",)), ((8,), ("b",)), ((9,), ("c",))]


def test_without_gpus_none_are_hidden_and_with_0_per_run_all():
    assert divide_host(2, cores=[0, 1], gpus=[])[0].variables == {AT_ONCE: "2"}
    hidden = divide_host(2, gpus_per_run=0, cores=[0, 1], gpus=["a"])
    assert hidden[1].variables == {AT_ONCE: "2", GPUS_SEEN: ""}
    assert divide_host(2, cores=[0, 1], gpus=["a", "b"])[1].variables == {AT_ONCE: "2", GPUS_SEEN: "b"}


@pytest.mark.parametrize(
    ("at_once", "given", "words"),
    [
        (4, {}, "fewer cores than runs at once. Received: --at-once 4, 3 cores. Give --at-once 3 or less"),
        (2, {"cores_per_run": 2}, "too few cores .* Received: --at-once 2 --cores-per-run 2, 3 cores. Give less"),
        (2, {"gpus": ["a"]}, "fewer GPUs than .* Received: --at-once 2, 1 GPU. Give .* or --gpus-per-run 0"),
        (2, {"gpus_per_run": 1, "gpus": ["a"]}, "too few GPUs .* --at-once 2 --gpus-per-run 1, 1 GPU. Give less"),
        (2, {"gpus_per_run": 1}, "too few GPUs .* --gpus-per-run 1, 0 GPUs"),
    ],
)
def test_a_host_that_is_too_small_is_one_line(at_once, given, words):
    with pytest.raises(UserError, match=words) as error:
        divide_host(at_once, **{"cores": [0, 1, 2], "gpus": [], **given})
    assert "\n" not in str(error.value)


def test_without_at_once_a_run_has_the_whole_host(monkeypatch):
    assert lanes_of(options()) == [WHOLE_HOST]
    assert WHOLE_HOST.variables == {AT_ONCE: "1"} and WHOLE_HOST.cores == ()
    for words in (["--cores-per-run", "1"], ["--gpus-per-run", "0"]):
        with pytest.raises(UserError, match=rf"{' '.join(words)} without --at-once"):
            lanes_of(options(*words))
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
    assert visible_gpus() == seen
    this_host.cache_clear()
    assert this_host().gpus == len(seen)
    this_host.cache_clear()


def test_the_number_of_runs_at_once_comes_from_the_environment():
    assert [runs_at_once({AT_ONCE: text}) for text in ("4", "1", "", "many", "0")] == [4, 1, 1, 1, 1]
    assert runs_at_once({}) == 1


# What a process in a lane has


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two cores are needed")
def test_processes_have_the_cores_of_their_lane_and_this_one_keeps_its_own(tmp_path):
    before = os.sched_getaffinity(0)
    program = f"import os; print(*os.sched_getaffinity(0), os.environ.get({AT_ONCE!r}), os.environ.get({GPUS_SEEN!r}))"
    for lane in divide_host(2, cores=sorted(before)[:2], gpus=["a", "b"]):
        log = tmp_path / "log"
        command = [sys.executable, "-c", program]
        with started(command, variables=lane.variables, log=log, cores=lane.cores) as process:
            assert os.sched_getaffinity(0) == before
            assert process.wait() == 0
        assert log.read_text().split() == [str(lane.cores[0]), "2", "ab"[lane.number - 1]]
    with pytest.raises(UserError, match="is not installed"), started(["no-program"], variables={}, log=log, cores=[0]):
        pass
    assert os.sched_getaffinity(0) == before


# The loop


class Events:
    """What happened, in its order."""

    def __init__(self):
        self.all = []

    def job(self, name, *, steps, error=None):
        """Return a job that ends after so many steps, or with an error."""

        def run(lane):
            self.all.append(f"{name} in {lane.number}")
            try:
                for _ in range(steps):
                    yield
                if error:
                    raise error
                self.all.append(f"{name} done")
            except GeneratorExit:
                self.all.append(f"{name} closed")
                raise

        return run


TWO = [Lane(number=1, of=2), Lane(number=2, of=2)]


def test_a_lane_takes_the_next_job_when_its_own_has_ended():
    events = Events()
    run_in_lanes([events.job("a", steps=5), events.job("b", steps=1), events.job("c", steps=1)], TWO)
    assert events.all == ["a in 1", "b in 2", "b done", "c in 2", "c done", "a done"]


def test_jobs_are_asked_for_one_by_one():
    events = Events()

    def jobs():
        while len(events.all) < 6:
            yield events.job(f"after {len(events.all)}", steps=1)

    run_in_lanes(jobs(), [WHOLE_HOST])
    assert events.all == [
        "after 0 in 1", "after 0 done", "after 2 in 1", "after 2 done", "after 4 in 1", "after 4 done",
    ]  # fmt: skip
    run_in_lanes([], TWO)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UserError("no space")])
def test_whatever_ends_it_closes_all_jobs(error):
    events = Events()
    with pytest.raises(type(error)):
        run_in_lanes([events.job("a", steps=9), events.job("b", steps=2, error=error), events.job("c", steps=1)], TWO)
    assert events.all == ["a in 1", "b in 2", "a closed"]


def test_an_interruption_while_waiting_closes_all_also_when_closing_is_interrupted(monkeypatch):
    events = Events()

    def stubborn(lane):
        try:
            yield from events.job("b", steps=9)(lane)
        finally:
            raise KeyboardInterrupt

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(lanes.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_in_lanes([events.job("a", steps=9), stubborn], TWO)
    assert events.all == ["a in 1", "b in 2", "b closed", "a closed"]
