"""Processes of an experiment that outlived the command that had started them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from launch.experiments.plan import ExperimentPlan, PlannedRun


def left_over(plan: ExperimentPlan, planned: PlannedRun) -> list[psutil.Process]:
    """Return the processes of this run, launchers among them, whatever folder they were started from."""
    folder = plan.folder.resolve()

    def is_of_this_run(command: list[str], cwd: str) -> bool:
        words = [word for part in command for word in (part.split() if " " in part else [part])]  # sh -c "mpirun ..."
        return any(
            word == "--runs-folder"
            and words[at + 2 : at + 4] == ["--name", planned.name]
            and (Path(cwd) / words[at + 1]).resolve() == folder
            for at, word in enumerate(words[:-3])
        )

    return _processes(is_of_this_run)


def left_over_preparation(command: Sequence[str]) -> list[psutil.Process]:
    """Return the processes that run this preparation, started from this folder."""
    here, words = str(Path.cwd()), list(command)
    return _processes(lambda found, cwd: cwd == here and found[-len(words) :] == words and "common" in found)


def _processes(is_meant: Callable[[list[str], str], bool]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        command, cwd = process.info["cmdline"], process.info["cwd"]
        if command and cwd and process.info["status"] != psutil.STATUS_ZOMBIE and is_meant(command, cwd):
            found.append(process)
    return found
