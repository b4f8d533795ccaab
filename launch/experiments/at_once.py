"""Runs of an experiment side by side: in lanes of this host, or as shares that the tasks of an array job make.

python -m launch experiment run E --at-once 4               on this host, each run on cores and GPUs of its own
python -m launch experiment run E --at-once 4 --part 2      what the second of 4 tasks of a batch system makes
"""

import argparse
from dataclasses import replace
from typing import Any

from common.errors import UserError
from common.utils.command_line import whole_number
from launch.experiments.plan import ExperimentPlan
from launch.experiments.survey import HostResources
from launch.starting.lanes import Lane, add_lane_options, lanes_of
from launch.starting.launchers import Launcher


def add_at_once_options(parser: Any) -> None:
    """Add the options to argparse's parser."""
    add_lane_options(parser)
    parser.add_argument(
        "--part",
        type=whole_number,
        metavar="K",
        help="make the K-th of N shares of the runs (--at-once N): what each task of an array job does",
    )


def part_of(plan: ExperimentPlan, options: argparse.Namespace) -> ExperimentPlan:
    """Return the share of the runs that `--part` names; without it, all.

    Tasks may run on different nodes. So what is compared by pairs, the cells of one repeat, is made by one task; with
    fewer repeats than tasks, each cell is made by another task in each repeat.

    Raises:
        UserError: there is no such part.
    """
    part, parts = options.part, options.at_once
    if part is None:
        return plan
    if parts is None or part > parts:
        raise UserError(f"there is no such part. Received: --part {part}, {parts or 'no number of runs'} at once. "
                        "Give --at-once N, and --part from 1 to N")  # fmt: skip
    if max((run.repeat for run in plan.runs), default=0) >= parts:
        return replace(plan, runs=[run for run in plan.runs if (run.repeat - 1) % parts == part - 1])
    cells = [cell.name for cell in plan.cells]
    by_cell = sorted(plan.runs, key=lambda run: (cells.index(run.cell.name), run.repeat))
    own = by_cell[part - 1 :: parts]
    return replace(plan, runs=[run for run in plan.runs if run in own])


def lanes_for(plan: ExperimentPlan, options: argparse.Namespace) -> list[Lane]:
    """Return where the runs are made.

    Raises:
        UserError: they cannot be made side by side here.
    """
    if options.at_once is not None:
        check_at_once(plan)
    if options.part is not None:  # the batch system has given this task cores and GPUs of its own
        if options.cores_per_run or options.gpus_per_run is not None:
            raise UserError(f"a task has what its batch system gave it. Received: --part {options.part} and cores or "
                            "GPUs per run. Leave these out")  # fmt: skip
        return [Lane(number=options.part, of=options.at_once)]
    if options.at_once is not None and plan.launcher:
        remedy = "Leave out --hosts and --site; `launch submit --site slurm` makes an array job of it"
        check_launcher(plan.launcher, remedy=remedy)
    return lanes_of(options)


def check_at_once(plan: ExperimentPlan) -> None:
    """See whether the runs of an experiment may be made side by side.

    Raises:
        UserError: it asks for pauses, in which nothing else runs.
    """
    pause = plan.protocol.cool_down_seconds
    if pause:
        raise UserError(f"runs that are made at once have no cool-down. Received: --at-once, and cool_down_seconds = "
                        f"{pause:g} in {plan.file.path.name}. Leave out one of the two")  # fmt: skip


def check_launcher(launcher: Launcher, *, remedy: str) -> None:
    """Raise UserError unless runs are started on this host alone; `remedy`: what to do."""
    if launcher.elsewhere:
        raise UserError(f"runs at once share this host alone. Received: --at-once and {launcher.elsewhere}. {remedy}")


def resources_of_lane(lane: Lane) -> HostResources | None:
    """Return what a run has in a lane; None: the whole host."""
    if not lane.cores:
        return None
    return HostResources(gpus=len(lane.gpus or ()), cores=len(lane.cores))
