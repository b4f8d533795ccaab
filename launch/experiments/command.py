"""`python -m launch experiment`: many runs from one settings file, in order, and on again after an interruption.

    python -m launch experiment list                       the experiments that come with the project
    python -m launch experiment run smoke --dry-run        commands, and an estimate of time, energy and money
    python -m launch experiment run FILE                   run what is missing
    python -m launch experiment status FILE                what is done, what failed, what is left

Each run is a run folder in `runs/<name of the file>/`; `launch/experiments/plan.py` tells what a file may say.
"""

import argparse
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from tabulate import tabulate

from common.distributed.console import counted
from common.errors import EXIT_CODE_INTERRUPTED, UserError, expanded, user_errors
from common.sites.table import SITES_FILE, Sites, read_sites
from launch.experiments.plan import Plan, PlannedRun, Preparation, only_matching, read_plan, shipped_experiments
from launch.experiments.report import estimate, outcome, print_commands, print_left, print_status, unfinished
from launch.experiments.runs import POLL_SECONDS, carry_out, host_of, left_over_preparation, survey, this_host
from launch.starting.launchers import launcher_at
from launch.starting.progress import Progress

EXIT_CODE_INCOMPLETE = 1
UNKNOWN_SECONDS = 60.0  # stands for a time that cannot be estimated, in the bar only


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser("experiment", help="many runs from one settings file, repeated and in order")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="show the experiments that come with the project")
    listing.set_defaults(run=lambda options: list_experiments())
    running = actions.add_parser("run", help="run what is missing")
    running.add_argument("--dry-run", action="store_true", help="print commands and estimate, run nothing")
    running.set_defaults(run=run)
    status = actions.add_parser("status", help="show what is done, what failed and what is left")
    status.add_argument("--base", metavar="CELL", help="by whose EDP all are divided (default: the first metered)")
    status.set_defaults(run=show_status)
    for action in (running, status):
        action.add_argument("file", metavar="FILE", help="a TOML file, or a name that `list` shows")
        action.add_argument(
            "--only", nargs="+", metavar="PATTERN", help="cells whose names match, e.g. '*-cnn-np[12]*'"
        )
        action.add_argument("--runs-folder", default="runs", help="where its folder is (default: %(default)s)")
        action.add_argument(
            "--site", help="where this is: who starts the ranks, what records name, for which estimates are made"
        )
        action.add_argument("--hosts", metavar="a:2,b:2", help="hosts and their slots, or a host file")
        action.add_argument("--table", type=Path, default=SITES_FILE, metavar="FILE", help="sites of your own")


def list_experiments() -> None:
    """Print a line for each shipped experiment."""
    rows = []
    for name in shipped_experiments():
        plan = read_plan(name, runs_folder=Path("runs"))
        rows.append([name, len(plan.cells), len(plan.runs), plan.about.get("title", "")])
    print(tabulate(rows, headers=["experiment", "cells", "runs", "what"], disable_numparse=True))


def run(options: argparse.Namespace) -> int:
    """Run what is missing; return 0, or 1 where something is missing still."""
    plan, sites, site = _plan(options)
    if options.dry_run:
        elsewhere = host_of(sites[site]) if options.site else None
        found = survey(replace(plan, start=None) if options.site else plan, host=elsewhere)
        print_commands(plan, found)
        print_left(plan, found, sites=sites, site=site)
        return 0
    survey(plan)  # what stands in the way is told before anything is made
    if plan.start:
        plan.start.check(np=plan.start.slots() or 1)
    with user_errors("making the experiment's folder"):
        plan.folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the ranks too, as Ctrl-C does
    try:
        with FileLock(plan.folder / ".lock", timeout=0):
            complete = _run_missing(plan, sites, site=site)
    except Timeout:
        raise UserError(
            f"this experiment is being run already. Received: {plan.folder}. Wait for it, or look at its status"
        ) from None
    except KeyboardInterrupt:
        print(f"interrupted; go on with: python -m launch {shlex.join(options.launch_arguments)}")
        return EXIT_CODE_INTERRUPTED
    return 0 if complete else EXIT_CODE_INCOMPLETE


def show_status(options: argparse.Namespace) -> int:
    """Print how the experiment stands; return 0, or 1 where something is missing."""
    plan, sites, site = _plan(options)
    found = survey(plan if options.site or options.hosts else replace(plan, start=None))
    print_status(plan, found, base=options.base)
    print_left(plan, found, sites=sites, site=site)
    return EXIT_CODE_INCOMPLETE if unfinished(found) else 0


def _plan(options: argparse.Namespace) -> tuple[Plan, Sites, str]:
    """Return the experiment with its way of starting ranks, the table of machines, and the kind of node it runs on."""
    plan = read_plan(options.file, runs_folder=expanded(options.runs_folder))
    if options.only:
        plan = only_matching(plan, options.only)
    sites = read_sites(options.table)
    start = launcher_at(options.site, hosts=options.hosts, gpus_per_node=this_host().gpus, machines=sites)
    if options.site:
        sites = Sites(
            gpus={**start.site.machines.gpus, **sites.gpus}, sites={**start.site.machines.sites, **sites.sites}
        )
    site = start.node if options.site or options.hosts else plan.protocol.site
    sites[site]  # is there such a site?
    return replace(plan, start=start), sites, site


def _run_missing(plan: Plan, sites: Sites, *, site: str) -> bool:
    """Run what is missing, and what failed before once more; return whether all is done."""
    missing = unfinished(survey(plan))
    for preparation in _needed(plan.preparations, missing, plan=plan):
        _prepare(preparation)
    found = survey(plan)
    print_left(plan, found, sites=sites, site=site)
    estimates = [estimate(plan, planned, found, sites=sites, site=site) for planned in missing]
    planned_seconds = [UNKNOWN_SECONDS if one.seconds is None else one.seconds for one in estimates]
    began, failed = time.monotonic(), []
    pause = plan.protocol.cool_down_seconds
    with Progress(sum(planned_seconds) + pause * max(0, len(missing) - 1)) as progress:
        for number, (planned, seconds) in enumerate(zip(missing, planned_seconds, strict=True), 1):
            expected = estimate(plan, planned, survey(plan), sites=sites, site=site).seconds or 0.0
            if _is_over_budget(plan, time.monotonic() - began + (pause if number > 1 else 0.0), expected):
                print(f"the budget of {plan.protocol.budget_minutes:g} minutes is spent: "
                      f"{counted(len(missing) - number + 1, 'run')} not begun")  # fmt: skip
                return False
            if number > 1 and pause:
                time.sleep(pause)
                progress.advance(pause, "cooling down")
            steps = _Steps(progress, seconds)
            ended = carry_out(plan, planned, tell=steps)
            if ended.standing != "finished":
                failed.append(ended)
            steps.end(f"{number}/{len(missing)} {planned.name}: {outcome(ended)}")
    if failed:
        print(f"{counted(len(failed), 'run')} failed; the same command runs what is missing once more")
    return not failed


class _Steps:
    """Moves the bar within one run."""

    def __init__(self, progress: Progress, seconds: float) -> None:
        self._progress, self._seconds, self._share = progress, seconds, 0.0

    def __call__(self, share: float, title: str) -> None:
        self._progress.advance(self._seconds * max(0.0, share - self._share), title)
        self._share = max(self._share, share)

    def end(self, title: str) -> None:
        self._progress.advance(self._seconds * (1.0 - self._share), title, line=True)


def _needed(preparations: list[Preparation], missing: list[PlannedRun], *, plan: Plan) -> list[Preparation]:
    """Return the preparations whose products runs that are missing name, or other needed preparations."""
    needed: list[Preparation] = []
    texts = [word for run in missing for word in run.arguments(plan.folder)]
    for preparation in reversed(preparations):
        if any(preparation.makes in text for text in texts):
            needed.insert(0, preparation)
            texts += preparation.command
    return needed


def _prepare(preparation: Preparation) -> None:
    while left_over_preparation(preparation.command):  # of a command that was killed; it may be done yet
        time.sleep(POLL_SECONDS)
    if preparation.done:
        return
    command = ["python", "-m", "common", *preparation.command]
    print(shlex.join(command), flush=True)
    code = subprocess.run([sys.executable, *command[1:]], check=False).returncode
    if code:
        raise UserError(
            f"preparing the experiment failed. Received: exit code {code} of {shlex.join(command)}. "
            "Mend what it says above, then start again"
        )


def _is_over_budget(plan: Plan, spent: float, next_seconds: float) -> bool:
    budget = plan.protocol.budget_minutes
    return budget is not None and spent + next_seconds > budget * 60
