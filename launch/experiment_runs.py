"""The run folders of an experiment: what is done, what is left, what stands in the way; and one run, carried out."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from common.config import Config
from common.environment import usable_cores
from common.errors import UserError
from common.records import EPOCHS_FILE, Run, Status, errors_for_people, read_run
from launch.experiment_plan import Plan, PlannedRun
from launch.processes import last_lines, started
from launch.setup_run import ask_nvidia

LOGS = "logs"
SET_ASIDE = "set-aside"
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


def survey(plan: Plan) -> list[Found]:
    """Return how each planned run stands, in the plan's order.

    Raises:
        UserError: a run was made with other settings than the plan's.
    """
    return [find(plan, planned) for planned in plan.runs]


@functools.cache
def _gpus() -> int:
    return len(ask_nvidia("--list-gpus").splitlines())


def find(plan: Plan, planned: PlannedRun) -> Found:
    """Return how a planned run stands; see `survey`."""
    folder, log = plan.folder / planned.name, _log(plan, planned)
    if not folder.exists():
        if log.exists():  # it was begun, and has come no further, or not yet
            return Found(planned, "running" if left_over(plan, planned) else "failed", reason=_reason_in(log))
        for what, needed, there in (
            ("GPUs", planned.cell.gpus, _gpus()),
            ("cores", planned.cell.cores, usable_cores()),
        ):
            if needed > there:
                return Found(planned, "left out", reason=f"needs {needed} {what}, here are {there}")
        return Found(planned, "to do")
    try:
        run = read_run(folder)
    except UserError as error:  # ended while the folder was made
        return Found(planned, "failed", reason=str(error))
    if isinstance(run.record.config, Config):
        _check_settings(run.record.config, planned.config, planned, file=plan.file)
    if run.state in ("finished", "running"):
        return Found(planned, run.state, run)
    message = run.record.status.message if isinstance(run.record.status, Status) else None
    return Found(planned, "failed", run, reason=f"{run.state}{f': {message}' if message else ''}")


def _check_settings(old: Config, new: Config, planned: PlannedRun, *, file: Path) -> None:
    before, now = old.as_dict(), new.as_dict()
    for subject, values in now.items():
        for name, value in values.items():
            if subject != "record" and value != before[subject][name]:
                raise UserError(
                    f"{planned.name} was run with {name} {before[subject][name]}. Received: {value} in {file.name}. "
                    "Give the changed experiment another file name, so that it has a folder of its own"
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
    _wait_for_left_over(plan, planned, tell=tell)
    found = find(plan, planned)
    if found.standing == "finished":
        return found
    log = _log(plan, planned)
    with errors_for_people("making the experiment's folder"):
        _set_aside(plan, planned)
        log.parent.mkdir(parents=True, exist_ok=True)
    began, epochs = time.monotonic(), max(1, planned.cell.config.training.epochs)
    overdue = False
    with started(planned.command(plan.folder), variables={}, log=log) as process:
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


def _reason_in(log: Path) -> str:
    lines = last_lines(log).splitlines()
    errors = [line for line in lines if "error: " in line]
    return (errors or lines or ["it ended without a word"])[-1]


def _epochs_done(folder: Path) -> int:
    try:
        return len((folder / EPOCHS_FILE).read_text(encoding="utf-8").splitlines())
    except OSError:
        return 0


def _wait_for_left_over(plan: Plan, planned: PlannedRun, *, tell: Callable[[float, str], None]) -> None:
    """Wait for processes of this run that outlived the command that had started them: they may finish it yet."""
    while processes := left_over(plan, planned):
        tell(0.0, f"{planned.name} still runs from an earlier start: waiting for it")
        psutil.wait_procs(processes, timeout=POLL_SECONDS)


def left_over(plan: Plan, planned: PlannedRun) -> list[psutil.Process]:
    """Return the processes that carry out this run, launchers among them."""
    mark = " ".join(planned.arguments(plan.folder)[-4:])  # its folder and name: no other run has them
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        command = process.info["cmdline"] or []
        alive = process.info["status"] != psutil.STATUS_ZOMBIE
        if alive and f"{mark} " in f"{' '.join(command)} " and process.info["cwd"] == str(Path.cwd()):
            found.append(process)
    return found


def _set_aside(plan: Plan, planned: PlannedRun) -> None:
    """Move what is left of an earlier try out of the way; nothing is deleted."""
    folder, log = plan.folder / planned.name, _log(plan, planned)
    if not folder.exists() and not log.exists():
        return
    number = 1
    while (place := plan.folder / SET_ASIDE / f"{planned.name}-{number}").exists():
        number += 1
    if folder.exists():
        place.parent.mkdir(exist_ok=True)
        folder.rename(place)
    if log.exists():
        place.mkdir(parents=True, exist_ok=True)
        log.rename(place / "output.log")


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
