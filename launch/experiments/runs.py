"""Make a run of an experiment, and what it needs before."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from common.errors import UserError, user_errors
from common.run_folder.records import EPOCHS_FILE
from common.run_folder.set_aside import set_aside
from common.utils.environments import project_first
from common.utils.whole_files import read_text
from launch.experiments.experiment_file import PreparationCommand
from launch.experiments.left_over import left_over, left_over_preparation
from launch.experiments.plan import ExperimentPlan, PlannedRun
from launch.experiments.survey import SurveyedRun, log_file, survey_run
from launch.starting.lanes import POLL_SECONDS, Lane
from launch.starting.processes import end_processes, started

PREPARING = ".preparing"  # locked while a preparation runs: tasks of an array job share the experiment's folder


def make_run(
    plan: ExperimentPlan, planned: PlannedRun, *, lane: Lane, advance: Callable[[float, str], None]
) -> Generator[None, None, SurveyedRun]:
    """Make one run, yielding while it waits; return its state then. Closed before its end, it ends its processes.

    A run that an earlier command left running is waited for. The remains of a failed one are set aside first.

    Args:
        plan: the experiment.
        planned: the run.
        lane: where it runs.
        advance: called now and then with the newly finished share of the epochs, 1 in all, and a title.
    """
    limit = plan.protocol.limit_minutes
    yield from wait_for_left_over(plan, planned)
    before = survey_run(plan, planned)
    if before.state == "finished":
        advance(1.0, planned.name)
        return before
    log = log_file(plan, planned)
    with user_errors("making the experiment's folder"):
        folder = plan.folder / planned.name
        if folder.exists() or log.exists():
            set_aside(folder, log=log)
        log.parent.mkdir(parents=True, exist_ok=True)
    began, epochs = time.monotonic(), max(1, planned.cell.config.training.epochs)
    done, overdue = 0, False
    with started(plan.command(planned), variables=lane.variables, log=log, cores=lane.cores) as process:
        while process.poll() is None and not overdue:
            yield
            known, done = done, max(done, min(epochs, _finished_epochs(plan.folder / planned.name)))
            advance((done - known) / epochs, f"{planned.name}, epoch {min(done + 1, epochs)} of {epochs}")
            overdue = limit is not None and time.monotonic() - began > limit * 60
    advance((epochs - done) / epochs, planned.name)
    after = survey_run(plan, planned)
    if overdue:
        return replace(after, state="failed", reason=f"not finished within {limit:g} minutes (limit_minutes)")
    return after if after.state == "finished" else replace(after, state="failed")


def prepare(preparations: Sequence[PreparationCommand], missing: Sequence[PlannedRun], *, folder: Path) -> None:
    """Run the preparations whose products are used by missing runs, or by other needed preparations.

    Raises:
        UserError: one failed.
    """
    needed: list[PreparationCommand] = []
    words = [word for run in missing for word in run.arguments(folder)]
    for preparation in reversed(preparations):
        if any(preparation.makes in word for word in words):
            needed.insert(0, preparation)
            words += preparation.command
    if not needed:
        return
    with FileLock(folder / PREPARING):
        for preparation in needed:
            _prepare_one(preparation)


def _prepare_one(preparation: PreparationCommand) -> None:
    while left_over_preparation(preparation.command):  # of a command that was killed; it may finish yet
        time.sleep(POLL_SECONDS)
    if preparation.done:
        return
    command = ["python", "-m", "common", *preparation.command]
    print(shlex.join(command), flush=True)
    environment = {**os.environ, **project_first()}
    code = subprocess.run([sys.executable, *command[1:]], env=environment, check=False).returncode
    if code:
        raise UserError(
            f"preparing the experiment failed. Received: exit code {code} of {shlex.join(command)}. "
            "Fix the error shown above, then start again"
        )


def _finished_epochs(folder: Path) -> int:
    try:
        return len(read_text(folder / EPOCHS_FILE).splitlines())
    except OSError:
        return 0


def wait_for_left_over(plan: ExperimentPlan, planned: PlannedRun) -> Iterator[None]:
    """Wait, yielding, for a run that outlived the command that had started it, as it may finish yet.

    After `limit_minutes`, its processes on this host are ended.
    """
    limit, began, printed = plan.protocol.limit_minutes, time.monotonic(), False
    while (processes := left_over(plan, planned)) or survey_run(plan, planned).state == "running":
        if not printed:
            print(f"{planned.name} is still running from an earlier start: waiting for it", flush=True)
            printed = True
        if processes and limit is not None and time.monotonic() - began > limit * 60:
            end_processes(processes)
        yield
