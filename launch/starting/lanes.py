"""Lanes: disjoint parts of this host's cores and GPUs, in each of which one run is made at a time.

    lanes = lanes_of(options)                  --at-once 4 --cores-per-run 2 --gpus-per-run 1
    run_in_lanes(jobs, lanes)                  each job is a function of its lane that yields while it waits

A job starts its processes by `started(..., variables=lane.variables, cores=lane.cores)`. All lanes are advanced by one
loop in one thread, so that an interruption unwinds every job, which ends its processes.
"""

import argparse
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from common.distributed.console import counted
from common.distributed.launchers import AT_ONCE
from common.errors import UserError
from common.utils.command_line import whole_number
from common.utils.cores import cpu_quota, own_cores
from launch.installation.node import ask_nvidia
from launch.starting.gpus import GPUS_SEEN, visible_gpus

POLL_SECONDS = 0.5
_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Lane:
    """A part of this host.

    Attributes:
        number: of the lane, from 1.
        of: how many lanes there are.
        cores: that its processes are pinned to; none: they are not pinned.
        gpus: that its processes see, as CUDA_VISIBLE_DEVICES names them; None: all.
    """

    number: int = 1
    of: int = 1
    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] | None = None

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of its processes, beside those that all have."""
        seen = {} if self.gpus is None else {GPUS_SEEN: ",".join(self.gpus)}
        return {AT_ONCE: str(self.of), **seen}


# The only lane where runs follow each other: nothing is pinned, nothing hidden.
WHOLE_HOST = Lane()


def add_lane_options(parser: Any) -> None:
    """Add the options that divide this host among runs to argparse's parser, or to a group of it."""
    parser.add_argument(
        "--at-once",
        type=partial(whole_number, least=2),
        metavar="N",
        help="make N runs side by side, each on cores and GPUs of its own",
    )
    parser.add_argument(
        "--cores-per-run", type=whole_number, metavar="CORES", help="with --at-once (default: an equal share)"
    )
    parser.add_argument(
        "--gpus-per-run",
        type=partial(whole_number, least=0),
        metavar="GPUS",
        help="with --at-once (default: an equal share)",
    )


def lanes_of(options: argparse.Namespace) -> list[Lane]:
    """Return the lanes that the options of `add_lane_options` ask for; without --at-once, `WHOLE_HOST` alone.

    Raises:
        UserError: this host has too few cores or GPUs.
    """
    if options.at_once is None:
        for name, value in (("--cores-per-run", options.cores_per_run), ("--gpus-per-run", options.gpus_per_run)):
            if value is not None:
                raise UserError(f"runs follow each other, each with the whole host. Received: {name} {value} without "
                                "--at-once. Add --at-once N")  # fmt: skip
        return [WHOLE_HOST]
    return divide_host(options.at_once, cores_per_run=options.cores_per_run, gpus_per_run=options.gpus_per_run)


def divide_host(
    at_once: int,
    *,
    cores_per_run: int | None = None,
    gpus_per_run: int | None = None,
    cores: Sequence[int] | None = None,
    gpus: Sequence[str] | None = None,
) -> list[Lane]:
    """Return lanes that have no core and no GPU in common.

    Args:
        at_once: number of lanes.
        cores_per_run, gpus_per_run: of each lane; None: an equal share.
        cores: those to be divided, in the order in which they are dealt out; None: those that this process may use.
        gpus: the same for GPUs.

    Raises:
        UserError: there are too few.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise UserError("this system pins no process to cores. Received: --at-once. Make the runs one after the other")
    cores = cores_by_core() if cores is None else cores
    gpus = uuids_of_gpus() if gpus is None else gpus
    cores_each = _each(at_once, cores_per_run, there=len(cores), what="core", option="--cores-per-run")
    gpus_each = 0
    if gpus or gpus_per_run:
        gpus_each = _each(at_once, gpus_per_run, there=len(gpus), what="GPU", option="--gpus-per-run")
    return [
        Lane(
            number=lane + 1,
            of=at_once,
            cores=tuple(cores[lane * cores_each : (lane + 1) * cores_each]),
            gpus=tuple(gpus[lane * gpus_each : (lane + 1) * gpus_each]) if gpus else None,
        )
        for lane in range(at_once)
    ]


def _each(at_once: int, wanted: int | None, *, there: int, what: str, option: str) -> int:
    """Return how many of the host's cores or GPUs a lane gets."""
    if wanted is None:
        if at_once > there:
            remedy = ", or --gpus-per-run 0 for runs without GPUs" if what == "GPU" else ""
            raise UserError(f"there are fewer {what}s than runs at once. Received: --at-once {at_once}, "
                            f"{counted(there, what)}. Give --at-once {there} or less{remedy}")  # fmt: skip
        return there // at_once
    if at_once * wanted > there:
        raise UserError(f"there are too few {what}s for so many runs at once. Received: --at-once {at_once} {option} "
                        f"{wanted}, {counted(there, what)}. Give less of either")  # fmt: skip
    return wanted


def cores_by_core(folder: Path = _CPUS) -> list[int]:
    """Return the CPUs that this process may use, the hardware threads of a core one after the other.

    Where a container may use the time of some only, these are the first of them.
    """

    def first_thread(cpu: int) -> int:
        try:
            siblings = (folder / f"cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
            return int(siblings.replace("-", ",").split(",")[0])
        except (OSError, ValueError):
            return cpu

    cores, quota = sorted(own_cores(), key=lambda cpu: (first_thread(cpu), cpu)), cpu_quota()
    return cores if quota is None else cores[: max(1, math.floor(quota))]


def uuids_of_gpus() -> list[str]:
    """Return the UUIDs of this host's GPUs that this process may use; none where the driver does not answer."""
    return [gpu.uuid for gpu in visible_gpus(ask_nvidia("--list-gpus"))]


# A job is advanced until it ends; it yields whenever it would wait.
Job = Callable[[Lane], Iterator[None]]


def run_in_lanes(jobs: Iterable[Job], lanes: Sequence[Lane]) -> None:
    """Run jobs, as many at a time as there are lanes; return when all have ended.

    Whatever ends this call - an interruption, an error of a job - closes the jobs that still run.

    Args:
        jobs: the next one is asked for when a lane is free, so it may depend on those that have ended.
        lanes: where.
    """
    waiting, free = iter(jobs), list(lanes)
    running: dict[Iterator[None], Lane] = {}
    ended = object()
    with ExitStack() as ends:  # closes all jobs, also where closing one is interrupted
        while True:
            while free and (job := next(waiting, None)) is not None:
                lane = free.pop(0)
                steps = job(lane)
                ends.callback(getattr(steps, "close", lambda: None))
                running[steps] = lane
            if not running:
                return
            done = [steps for steps in running if next(steps, ended) is ended]
            free += [running.pop(steps) for steps in done]
            if not done:
                time.sleep(POLL_SECONDS)
