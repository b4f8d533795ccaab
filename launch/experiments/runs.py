"""The run folders of an experiment: what is done, what is left, what stands in the way; and one run, carried out."""

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from common.config import Config
from common.errors import UserError, user_errors
from common.run_folder.records import (
    EPOCHS_FILE,
    Run,
    Status,
    World,
    read_run,
)
from common.run_folder.set_aside import set_aside
from common.sites.table import Site
from common.utils.cores import usable_cores
from launch.experiments.plan import Plan, PlannedRun
from launch.installation.run import ask_nvidia
from launch.starting.processes import end_processes, reason_in, started

LOGS = "logs"
POLL_SECONDS = 0.5

Standing = Literal["finished", "failed", "running", "to do", "left out"]


@dataclass(frozen=True)
class Found:
    """A planned run and what there is of it.

    Attributes:
        run: its run folder; None where there is none that can be read.
        reason: why it failed or is left out.
    """

    planned: PlannedRun
    standing: Standing
    run: Run | None = None
    reason: str = ""


@dataclass(frozen=True)
class Host:
    """What a place has for the cells that need it."""

    gpus: float
    cores: float


@functools.cache
def this_host() -> Host:
    """Return what this host has."""
    return Host(gpus=len(ask_nvidia("--list-gpus").splitlines()), cores=usable_cores())


def host_of(site: Site) -> Host:
    """Return what a site has, of as many nodes as are wanted; of an unknown number of cores enough."""
    return Host(gpus=math.inf if site.gpus else 0, cores=site.cores or math.inf)


def survey(plan: Plan, *, host: Host | None = None) -> list[Found]:
    """Return how each planned run stands, in the plan's order.

    Args:
        plan: the experiment.
        host: where it is to run; None: here.

    Raises:
        UserError: a run was made with other settings than the plan's, or at another site.
    """
    return [find(plan, planned, host=host) for planned in plan.runs]


def find(plan: Plan, planned: PlannedRun, *, host: Host | None = None) -> Found:
    """Return how a planned run stands; see `survey`."""
    host = host or this_host()
    folder, log = plan.folder / planned.name, _log(plan, planned)
    if not folder.exists():
        if log.exists():  # it was begun, and has come no further, or not yet
            return Found(planned, "running" if left_over(plan, planned) else "failed", reason=reason_in(log))
        for what, needed, there in (("GPUs", planned.cell.gpus, host.gpus), ("cores", planned.cell.cores, host.cores)):
            if needed > there:
                return Found(planned, "left out", reason=f"needs {needed} {what}, there are {there}")
        slots = plan.start.slots() if plan.start else None
        if slots is not None and planned.cell.np > slots:
            return Found(planned, "left out", reason=f"needs {planned.cell.np} slots, there are {slots}")
        return Found(planned, "to do")
    try:
        run = read_run(folder)
    except UserError as error:  # ended while the folder was made
        return Found(planned, "failed", reason=str(error))
    if isinstance(run.record.config, Config):
        _check_settings(run, planned, file=plan.file)
        _check_place(run, plan)
    if run.state in ("finished", "running"):
        return Found(planned, run.state, run)
    message = run.record.status.message if isinstance(run.record.status, Status) else None
    return Found(planned, "failed", run, reason=f"{run.state}{f': {message}' if message else ''}")


def _check_settings(run: Run, planned: PlannedRun, *, file: Path) -> None:
    assert isinstance(run.record.config, Config)
    before, now = run.record.config.as_dict(), planned.config.as_dict()
    changes = [
        (name, before[subject][name], value)
        for subject, values in now.items()
        for name, value in values.items()
        if subject != "record" and value != before[subject][name]
    ]
    world, wanted = run.record.world, planned.cell.controller
    if isinstance(world, World) and world.size > 1 and wanted is not None and world.controller != wanted:
        changes.append(("controller", world.controller, wanted))
    for name, old, new in changes:
        raise UserError(
            f"{planned.name} was run with {name} {old}. Received: {new} in {file.name}. "
            "Give the changed experiment another file name, so that it has a folder of its own"
        )


def _check_place(run: Run, plan: Plan) -> None:
    """See that a run of another site does not pass for one of this."""
    if plan.start and run.record.site != plan.start.node:
        raise UserError(
            f"{run.folder.name} was run at another site, {run.record.site}. Received: {plan.start.node}. "
            "Give the runs of this site a folder of their own by --runs-folder"
        )


def carry_out(plan: Plan, planned: PlannedRun, *, tell: Callable[[float, str], None]) -> Found:
    """Carry out one run; return how it stands then.

    A run that an earlier start has left going is waited for. What is left of one that failed is set aside first.

    Args:
        plan: the experiment.
        planned: the run.
        tell: told now and then of the share of epochs that are done, 0 to 1, and of what happens.
    """
    limit = plan.protocol.limit_minutes
    _wait_for_left_over(plan, planned)
    found = find(plan, planned)
    if found.standing == "finished":
        return found
    log = _log(plan, planned)
    with user_errors("making the experiment's folder"):
        folder = plan.folder / planned.name
        if folder.exists() or log.exists():
            set_aside(folder, log=log)
        log.parent.mkdir(parents=True, exist_ok=True)
    began, epochs = time.monotonic(), max(1, planned.cell.config.training.epochs)
    overdue = False
    with started(plan.command(planned), variables={}, log=log) as process:
        while process.poll() is None and not overdue:
            time.sleep(POLL_SECONDS)
            done = _epochs_done(plan.folder / planned.name)
            tell(done / epochs, f"{planned.name}, epoch {min(done + 1, epochs)} of {epochs}")
            overdue = limit is not None and time.monotonic() - began > limit * 60
    found = find(plan, planned)
    if overdue:
        return Found(planned, "failed", found.run, reason=f"not ended within {limit:g} minutes (limit_minutes)")
    if found.standing == "finished":
        return found
    return Found(planned, "failed", found.run, reason=found.reason)


def _epochs_done(folder: Path) -> int:
    try:
        return len((folder / EPOCHS_FILE).read_text(encoding="utf-8").splitlines())
    except OSError:
        return 0


def _wait_for_left_over(plan: Plan, planned: PlannedRun) -> None:
    """Wait for a run that outlived the command that had started it: it may be finished yet.

    It is not waited for longer than `limit_minutes`, then its processes here are ended.
    """
    limit, began, told = plan.protocol.limit_minutes, time.monotonic(), False
    while (processes := left_over(plan, planned)) or find(plan, planned).standing == "running":
        if not told:
            print(f"{planned.name} still runs from an earlier start: waiting for it", flush=True)
            told = True
        if processes and limit is not None and time.monotonic() - began > limit * 60:
            end_processes(processes)
        time.sleep(POLL_SECONDS)


def left_over(plan: Plan, planned: PlannedRun) -> list[psutil.Process]:
    """Return the processes that carry out this run, launchers among them, from whatever folder they were started."""
    folder = plan.folder.resolve()

    def is_of_this_run(command: list[str], cwd: str) -> bool:
        words = [word for part in command for word in (part.split() if " " in part else [part])]  # sh -c "mpirun ..."
        own = [
            (Path(cwd) / words[at + 1]).resolve() == folder
            for at, word in enumerate(words[:-3])
            if word == "--runs-folder" and words[at + 2 : at + 4] == ["--name", planned.name]
        ]
        return any(own)

    return _processes(is_of_this_run)


def left_over_preparation(command: Sequence[str]) -> list[psutil.Process]:
    """Return the processes that prepare just this, from this folder."""
    here, words = str(Path.cwd()), list(command)
    return _processes(lambda found, cwd: cwd == here and found[-len(words) :] == words and "common" in found)


def _processes(is_meant: Callable[[list[str], str], bool]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        command, cwd = process.info["cmdline"], process.info["cwd"]
        if command and cwd and process.info["status"] != psutil.STATUS_ZOMBIE and is_meant(command, cwd):
            found.append(process)
    return found


def _log(plan: Plan, planned: PlannedRun) -> Path:
    return plan.folder / LOGS / f"{planned.name}.log"


def earlier_runs(found: Sequence[Found], planned: PlannedRun) -> list[Run]:
    """Return the finished runs of the same cell, metered ones apart from timed ones."""
    return [
        one.run
        for one in found
        if one.run and one.standing == "finished"
        and one.planned.cell == planned.cell and one.planned.metered == planned.metered
    ]  # fmt: skip
