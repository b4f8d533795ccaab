"""What may follow `experiment NAME` in a job, and how its runs are shared out among the tasks of an array."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from common.distributed.console import counted
from common.errors import UserError
from common.utils.command_line import Parser
from launch.experiments.at_once import check_at_once
from launch.experiments.plan import ExperimentPlan, only_matching, read_plan
from launch.sites.site_files import LaunchSite
from launch.starting.lanes import add_lane_options, lanes_of


def check_experiment(words: Sequence[str], *, repeats: int, site: LaunchSite, slots: int | None) -> tuple[str, int]:
    """Return the name of an experiment, or its whole path, and how many tasks share its runs.

    Args:
        words: `experiment`, its name, and its options.
        repeats: `--repeats` of the job.
        site: where.
        slots: how many ranks fit; None: any number.

    Raises:
        UserError: something does not fit together.
    """
    arguments = words[1:]
    if not arguments or arguments[0].startswith("-"):
        raise UserError(f"the experiment has no name. Received: {shlex.join(words)}. Write: experiment smoke")
    if repeats != 1:
        raise UserError(f"an experiment sets its own repeats. Received: --repeats {repeats}. Leave it out")
    plan = read_plan(arguments[0], runs_folder=Path("runs"))
    options = _options(arguments[1:])
    if options.only:
        plan = only_matching(plan, options.only)
    site.check_frameworks({cell.keys.framework for cell in plan.cells})
    fewest = min(cell.np for cell in plan.cells)
    if slots is not None and fewest > slots:
        raise UserError(
            f"no run of the experiment fits into the job. Received: {counted(slots, 'rank')}, and runs of {fewest} "
            "or more. Give more --ranks-per-node or --nodes"
        )
    file = Path(arguments[0])
    return str(file.resolve()) if file.is_file() else arguments[0], _parts(options, plan, site=site)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what follows an experiment's name: which of its runs, and how many at once; nothing else may."""
    parser = Parser(prog="python -m launch submit -- experiment NAME", allow_abbrev=False)
    parser.add_argument("--only", nargs="+", metavar="PATTERN")
    add_lane_options(parser)
    options, others = parser.parse_known_args(arguments)
    if others:
        raise UserError(
            f"an experiment takes nothing but --only PATTERNS and --at-once N here. Received: {shlex.join(others)}. "
            "Write the rest into its file"
        )
    return options


def _parts(options: argparse.Namespace, plan: ExperimentPlan, *, site: LaunchSite) -> int:
    """Return how many tasks of an array share the runs: 1 where one command makes them all."""
    if options.at_once is None:
        lanes_of(options)  # which finds out what needs --at-once
        return 1
    check_at_once(plan)
    if site.scheduler == "local":
        return 1
    if site.scheduler != "slurm":
        raise UserError(f"{site.name} makes the runs of an experiment one after the other. Received: --at-once "
                        f"{options.at_once}. Leave it out, or submit to Slurm")  # fmt: skip
    if options.cores_per_run or options.gpus_per_run is not None:
        raise UserError("a task of Slurm's has what the job asks for. Received: cores or GPUs per run. "
                        "Give --ranks-per-node and --gpus-per-node to the job")  # fmt: skip
    if options.at_once > len(plan.runs):
        raise UserError(f"there are fewer runs than are to be made at once. Received: --at-once {options.at_once}, "
                        f"{counted(len(plan.runs), 'run')}. Give less, or leave it out")  # fmt: skip
    return int(options.at_once)
