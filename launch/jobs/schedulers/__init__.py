"""Who starts a job: each module has the same names (`Scheduler`)."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from launch.jobs.job import Job, JobRecord, JobStatus


class Scheduler(Protocol):
    """What each of the modules has."""

    def render(self, job: Job) -> dict[str, str]:
        """Return file name -> text of all that is submitted."""

    def submit(self, job: Job, folder: Path, *, keep: Callable[[str], None]) -> str:
        """Submit the files that were rendered into a folder; return the scheduler's id.

        Args:
            keep: called with that id before something is started that runs, and costs, whatever becomes of this call.

        Raises:
            UserError: the scheduler is not there, or refuses.
        """

    def state(self, record: JobRecord, folder: Path) -> JobStatus:
        """Return the status of a job."""

    def logs(self, record: JobRecord, folder: Path) -> list[str]:
        """Return the command that prints what the job has printed."""

    def cancel(self, record: JobRecord, folder: Path) -> None:
        """End a job.

        Raises:
            UserError: it cannot be ended.
        """

    def shell(self, record: JobRecord, folder: Path) -> list[str]:
        """Return the command before `sh`, where the run folders are seen; empty: this host.

        Where the site names no `project_folder`, it starts in the project's folder there.
        """


def scheduler(name: str) -> Scheduler:
    """Return the module of a scheduler, by the name that a site file gives."""
    return cast(Scheduler, import_module(f"launch.jobs.schedulers.{name}"))
