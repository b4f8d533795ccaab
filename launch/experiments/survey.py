"""The run folders of an experiment: which runs are finished, which are missing, and what prevents a run."""

import functools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.config import Config, changed_settings
from common.errors import UserError
from common.run_folder.environment import TUNING_VARIABLES, Environment
from common.run_folder.experiment_status import ExperimentStatus, PlannedRunStatus, PlannedState
from common.run_folder.records import RecordedRun, Status, World, read_run
from common.sites.table import Site
from common.utils.cores import usable_cores
from launch.experiments.left_over import left_over
from launch.experiments.plan import ExperimentPlan, PlannedRun
from launch.starting.lanes import uuids_of_gpus
from launch.starting.launchers import Launcher
from launch.starting.processes import reason_in

LOGS = "logs"


@dataclass(frozen=True)
class SurveyedRun:
    """A planned run and its state.

    Attributes:
        run: its run folder; None where there is none that can be read.
        reason: why it failed or is left out.
    """

    planned: PlannedRun
    state: PlannedState
    run: RecordedRun | None = None
    reason: str = ""


@dataclass(frozen=True)
class HostResources:
    """What a host has for the cells that need it."""

    gpus: float
    cores: float


@functools.cache
def this_host() -> HostResources:
    """Return the resources of this host."""
    return HostResources(gpus=len(uuids_of_gpus()), cores=usable_cores())


def resources_of(site: Site) -> HostResources:
    """Return the resources of a site, on as many nodes as needed; if its cores are not known, enough."""
    return HostResources(gpus=math.inf if site.gpus else 0, cores=site.cores or math.inf)


def survey(plan: ExperimentPlan, *, host: HostResources | None = None) -> list[SurveyedRun]:
    """Return the state of each planned run, in the plan's order.

    Args:
        plan: the experiment.
        host: where it is to run; None: here.

    Raises:
        UserError: a run was made with other settings than the plan's, or at another site.
    """
    return [survey_run(plan, planned, host=host) for planned in plan.runs]


def survey_run(plan: ExperimentPlan, planned: PlannedRun, *, host: HostResources | None = None) -> SurveyedRun:
    """Return the state of a planned run; see `survey`."""
    folder, log = plan.folder / planned.name, log_file(plan, planned)
    if not folder.exists():
        if log.exists():  # started, but without a run folder so far
            return SurveyedRun(planned, "running" if left_over(plan, planned) else "failed", reason=reason_in(log))
        lack = _lack(plan, planned, host or this_host())
        return SurveyedRun(planned, "left out" if lack else "to do", reason=lack)
    try:
        run = read_run(folder)
    except UserError as error:  # ended while the folder was created
        return SurveyedRun(planned, "failed", reason=str(error))
    if isinstance(run.record.config, Config):
        _check_settings(run, run.record.config, planned, plan=plan)
        _check_site(run, plan)
    if run.state == "finished" or run.state == "running":
        return SurveyedRun(planned, run.state, run)
    message = run.record.status.message if isinstance(run.record.status, Status) else None
    return SurveyedRun(planned, "failed", run, reason=f"{run.state}{f': {message}' if message else ''}")


def missing_runs(surveyed: Sequence[SurveyedRun]) -> list[PlannedRun]:
    """Return the runs that are still to be made, in their order."""
    return [one.planned for one in surveyed if one.state not in ("finished", "left out")]


def status_of(surveyed: Sequence[SurveyedRun]) -> ExperimentStatus:
    """Return the states for `python -m analysis experiment`."""
    return ExperimentStatus(
        runs=[
            PlannedRunStatus(name=one.planned.name, cell=one.planned.cell.name, state=one.state, reason=one.reason)
            for one in surveyed
        ]
    )


def log_file(plan: ExperimentPlan, planned: PlannedRun) -> Path:
    """Return the file of a run's output."""
    return plan.folder / LOGS / f"{planned.name}.log"


def _lack(plan: ExperimentPlan, planned: PlannedRun, host: HostResources) -> str:
    """Return what a run needs and does not find; empty: it can run."""
    keys, slots = planned.cell.keys, plan.launcher.slots() if plan.launcher else None
    needs = [("GPUs", keys.gpus, host.gpus), ("cores", keys.cores, host.cores)]
    if slots is not None:
        needs.append(("slots", keys.np, slots))
    lacks = (f"needs {needed} {what}, there are {there}" for what, needed, there in needs if needed > there)
    return next(lacks, "")


def _check_settings(run: RecordedRun, config: Config, planned: PlannedRun, *, plan: ExperimentPlan) -> None:
    changes = [
        (name, old, new) for subject, name, old, new in changed_settings(config, planned.config) if subject != "record"
    ]
    changes += _changed_variables(run, planned, launcher=plan.launcher)
    world, wanted = run.record.world, planned.cell.keys.controller
    if isinstance(world, World) and world.size > 1 and wanted is not None and world.controller != wanted:
        changes.append(("controller", world.controller, wanted))
    remedy = "Give the changed experiment another file name, so that it has its own folder"
    if plan.file.path == plan.folder:
        remedy = "Give another --runs-folder"
    for name, old, new in changes:
        raise UserError(f"{planned.name} was run with {name} {old}. Received: {new} in {plan.file.path.name}. {remedy}")


def _changed_variables(
    run: RecordedRun, planned: PlannedRun, *, launcher: Launcher | None
) -> list[tuple[str, Any, Any]]:
    """Return name, value in the run and value now of the variables that its cell sets.

    Where runs are started, also of those of Horovod that the cell does not set, or no longer.
    """
    environment = run.record.environment
    if not isinstance(environment, Environment):
        return []
    variables, names = {**planned.cell.variables}, [*planned.cell.variables]
    if launcher:
        variables = {**os.environ, **launcher.site.environment, **variables}
        names = [name for name in TUNING_VARIABLES if name in names or name.startswith("HOROVOD_")]
    tuning = run.record.tuning
    found = [(name, environment.variables.get(name), variables.get(name)) for name in names]
    return [one for one in found if one[1] != one[2] and (one[2] is not None or one[0] in tuning)]


def _check_site(run: RecordedRun, plan: ExperimentPlan) -> None:
    """Make sure that a run of another site is not used for this one."""
    if plan.launcher and run.record.site != plan.launcher.node:
        raise UserError(
            f"{run.folder.name} was run at another site, {run.record.site}. Received: {plan.launcher.node}. "
            "Give the runs of this site their own folder by --runs-folder"
        )
