"""`python -m launch experiment`: make the runs of one settings file, in order, and resume after an interruption.

    python -m launch experiment list                       the experiments that come with the project
    python -m launch experiment run smoke --dry-run        commands, and an estimate of time, energy and cost
    python -m launch experiment run FILE                   make the missing runs
    python -m launch experiment status FILE                medians so far, failed and missing runs

Each run has a run folder in `runs/<name of the file>/`; `launch/experiments/experiment_file.py` defines the file.
"""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from common.config import Config
from common.errors import EXIT_CODE_INTERRUPTED, UserError, expanded, user_errors
from common.json_records import as_json
from common.sites.table import SITES_FILE, Sites, read_sites
from common.utils.command_line import path, word
from launch.experiments.at_once import add_at_once_options, lanes_for, part_of, resources_of_lane
from launch.experiments.experiment_file import ExperimentFile, Protocol, shipped_experiments
from launch.experiments.plan import ExperimentPlan, only_matching, plan_of, read_plan
from launch.experiments.report import Estimator, print_commands
from launch.experiments.series import make_missing
from launch.experiments.survey import missing_runs, resources_of, status_of, survey, this_host
from launch.starting.analysis import run_analysis
from launch.starting.lanes import Lane
from launch.starting.launchers import launcher_at

EXIT_CODE_INCOMPLETE = 1


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser("experiment", help="make many runs from one settings file")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="show the experiments that come with the project")
    listing.set_defaults(run=lambda options: list_experiments())
    running = actions.add_parser("run", help="make the missing runs")
    running.add_argument("--dry-run", action="store_true", help="print commands and estimate, run nothing")
    add_at_once_options(running)
    running.set_defaults(run=run)
    status = actions.add_parser("status", help="show medians so far, failed and missing runs")
    status.add_argument("--base", metavar="CELL", help="divide energy and EDP by this cell's (default: first metered)")
    status.set_defaults(run=show_status)
    for action in (running, status):
        action.add_argument("file", type=word, metavar="FILE", help="a TOML file, or a name that `list` shows")
        action.add_argument(
            "--only", nargs="+", metavar="PATTERN", help="cells whose names match, e.g. '*-cnn-np[12]*'"
        )
        action.add_argument(
            "--runs-folder", type=word, default="runs", help="where its folder is (default: %(default)s)"
        )
        action.add_argument(
            "--site", help="where this is: determines the launcher, the site in the records, and the estimates"
        )
        action.add_argument("--hosts", metavar="a:2,b:2", help="hosts and their slots, or a host file")
        action.add_argument("--table", type=path, default=SITES_FILE, metavar="FILE", help="your own table of sites")


def list_experiments() -> None:
    """Print a line for each shipped experiment."""
    plans = {name: read_plan(name, runs_folder=Path("runs")) for name in shipped_experiments()}
    width = max(map(len, plans))
    for name, plan in plans.items():
        print(f"{name:{width}}  {len(plan.cells):3} cells  {len(plan.runs):3} runs  {plan.file.about.get('title', '')}")


def run(options: argparse.Namespace) -> int:
    """Make the missing runs; return 0, or 1 where some are still missing."""
    estimator = _estimator(options)
    estimator = replace(estimator, plan=part_of(estimator.plan, options))
    plan = estimator.plan
    lanes = lanes_for(plan, options)
    if plan.launcher:
        plan.launcher.check_frameworks({cell.keys.framework for cell in plan.cells})
    if options.dry_run:
        elsewhere = resources_of(estimator.sites[estimator.site]) if options.site else resources_of_lane(lanes[0])
        surveyed = survey(replace(plan, launcher=None) if options.site else plan, host=elsewhere)
        print_commands(plan, surveyed)
        estimator.print_remaining(surveyed, at_once=len(lanes))
        return 0
    survey(plan)  # reports what prevents the experiment before anything is created
    if plan.launcher:
        plan.launcher.check(np=plan.launcher.slots() or 1)
    task = "" if options.part is None else f"-{options.part}"
    code = make_in_folder(estimator, lanes, task=task, options=options)
    if code == 0 and not task:
        print(f"next: python -m analysis report {shlex.quote(str(plan.folder))} -o report.html")
    return code


def estimator_of_cells(cells: Sequence[dict[str, Any]], *, folder: Path, repeats: int, np: int) -> Estimator:
    """Return the experiment of another command on this host, for whose cells there is no file.

    Args:
        folder: of its runs.
        np: ranks of each cell.

    Raises:
        UserError: so many ranks cannot be started here.
    """
    file = ExperimentFile(
        path=folder, folder=folder, about={}, protocol=Protocol(repeats=repeats), preparations=[], cells=list(cells)
    )
    launcher = launcher_at(None, hosts=None)
    launcher.check(np=np)
    plan = replace(plan_of(file), launcher=launcher)
    return Estimator(plan, read_sites(), plan.protocol.site)


def config_in_folder(plan: ExperimentPlan) -> Config:
    """Return the settings of the first cell, whose runs are made in the experiment's folder."""
    config = plan.cells[0].config
    return replace(config, record=replace(config.record, runs_folder=str(plan.folder)))


def make_in_folder(estimator: Estimator, lanes: Sequence[Lane], *, options: argparse.Namespace, task: str = "") -> int:
    """Make the missing runs in the experiment's folder; return the exit code of the command.

    Args:
        estimator: of the experiment.
        lanes: where they are made.
        options: of the command, which is printed where it is interrupted.
        task: of an array job, of those that share the folder.

    Raises:
        UserError: another command is at it.
    """
    plan = estimator.plan
    with user_errors("making the experiment's folder"):
        plan.folder.mkdir(parents=True, exist_ok=True)
    note = plan.folder / f".part{task}" if task else None  # by which the script of a job knows what it has saved
    try:
        with FileLock(plan.folder / f".lock{task}", timeout=0):
            complete = make_missing(estimator, lanes, note=note)
    except Timeout:
        raise UserError(
            f"this experiment is already being run. Received: {plan.folder}. Wait for it, or show its status"
        ) from None
    except KeyboardInterrupt:
        settings = ["--", *options.trainer_arguments] if options.trainer_arguments else []
        print(f"interrupted; resume with: python -m launch {shlex.join([*options.launch_arguments, *settings])}")
        return EXIT_CODE_INTERRUPTED
    return 0 if complete else EXIT_CODE_INCOMPLETE


def show_status(options: argparse.Namespace) -> int:
    """Show the status of the experiment; return 0, or 1 where runs are missing."""
    estimator = _estimator(options)
    plan = estimator.plan
    surveyed = survey(plan if options.site or options.hosts else replace(plan, launcher=None))
    base = ["--base", options.base] if options.base else []
    code = run_analysis("experiment", plan.folder, "--status", "-", *base, text=as_json(status_of(surveyed)))
    if code:
        return code
    estimator.print_remaining(surveyed)
    return EXIT_CODE_INCOMPLETE if missing_runs(surveyed) else 0


def _estimator(options: argparse.Namespace) -> Estimator:
    """Return the experiment with its launcher, the table of sites, and the kind of node it runs on."""
    plan = read_plan(options.file, runs_folder=expanded(options.runs_folder))
    if options.only:
        plan = only_matching(plan, options.only)
    sites = read_sites(options.table)
    launcher = launcher_at(options.site, hosts=options.hosts, gpus_per_node=this_host().gpus, machines=sites)
    if options.site is not None:
        own = launcher.site.machines
        sites = Sites(gpus={**own.gpus, **sites.gpus}, sites={**own.sites, **sites.sites})
    site = launcher.node if options.site or options.hosts else plan.protocol.site
    sites[site]  # raises UserError for an unknown site
    return Estimator(replace(plan, launcher=launcher), sites, site)
