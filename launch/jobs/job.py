"""A job: what is to run where, and the folder that keeps track of it.

jobs/<name>/job.json     what, where, since when (`JobRecord`)
            ...          the rendered script or task, and what the job prints
"""

import contextlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.config import Config, parse_command_line
from common.errors import UserError, user_errors
from common.json_records import Record, RecordFile
from common.run_folder.records import Timestamp
from common.utils.atomic import make_executable, write_atomically
from common.utils.paths import ROOT
from common.utils.whole_files import read_bytes
from launch.sites.site_files import LaunchSite, read_launch_site

JOBS_FOLDER = "jobs"
JOB_FILE = "job.json"
# gone: nothing is left of it; unknown: whatever is there cannot be seen.
JobState = Literal["queued", "running", "finished", "failed", "cancelled", "gone", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to run, and what it is to get.

    Attributes:
        name: of the job and its folder, and of the run folder of a trainer.
        site: where.
        node: kind of node, as records and prices name it.
        nodes: number of nodes.
        ranks_per_node, gpus_per_node: of each.
        program: path of a trainer in the project; None: an experiment.
        experiment: its name or file; None: a trainer.
        arguments: of the trainer or of `experiment run`, as they were given.
        minutes: time limit of a run, or of an experiment as a whole; where Slurm requeues, of each turn.
        repeats: number of runs of a trainer, each with its own seed.
        seed: of the first repeat.
        restarts: how often the ranks of a trainer are started again when one ends.
        spot: on machines that may be taken away.
        preflight: check all hosts before the ranks start.
        preflight_flags: what the run will use.
        servers: how many of the ranks, the last ones, need no GPU.
        parts: tasks of an array that share the runs of an experiment; 1: one task makes them all.
        site_file: the site's file where the job runs, may be a `Shell` word; None: what `site` is called here.
    """

    name: str
    site: LaunchSite
    node: str
    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    program: str | None
    experiment: str | None
    arguments: tuple[str, ...]
    minutes: int
    repeats: int = 1
    seed: int = 1
    restarts: int = 0
    spot: bool = False
    preflight: bool = True
    preflight_flags: tuple[str, ...] = ()
    servers: int = 0
    parts: int = 1
    site_file: str | None = None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def tasks(self) -> int:
        """Number of tasks of its array: repeats of a trainer, or parts of an experiment; 1: it is no array."""
        return self.parts if self.experiment else self.repeats

    @property
    def project_folder(self) -> str:
        """Folder of the project at the site."""
        return self.site.project_folder or str(ROOT)

    @property
    def python(self) -> str:
        """The interpreter at the site; a relative path starts at the project's folder."""
        sets_up = self.site.scheduler in ("skypilot", "kubernetes")
        return self.site.python or (".venv/bin/python" if sets_up else sys.executable)

    @property
    def runs_folder(self) -> str:
        """Where run folders are written at the site; a relative path starts at the project's folder."""
        return self.site.runs_folder or "runs"

    def run_name(self, repeat: int) -> str:
        """Return the name of a trainer's run folder, `repeat` counted from 1."""
        return self.name if self.repeats == 1 else f"{self.name}-r{repeat}"

    def run_folders(self) -> list[str]:
        """Return the run folders that it writes, an experiment's folder for all of its runs."""
        if self.experiment:
            return [f"{self.runs_folder}/{Path(self.experiment).stem}"]
        return [f"{self.runs_folder}/{self.run_name(repeat)}" for repeat in range(1, self.repeats + 1)]

    @property
    def total_minutes(self) -> int:
        """Time limit of all its tasks together, at once or one after the other."""
        return self.minutes * self.tasks

    def cost_usd(self) -> float | None:
        """Return what the nodes cost until the time limit of all tasks, on demand; None: they have no price."""
        return self.site.machines[self.node].cost_usd(60.0 * self.total_minutes, nodes=self.nodes)


@dataclass(frozen=True, kw_only=True)
class JobRecord(Record):
    """`job.json`.

    Attributes:
        site: name or file.
        id: by which the scheduler knows it.
        command: as it was given.
        repeats: tasks of an array, each with an exit code of its own.
        runs: run folders that it writes, from the project's folder there.
    """

    name: str
    site: str
    id: str
    submitted_at: Timestamp
    command: list[str]
    size: int
    repeats: int
    runs: list[str]

    def read_site(self) -> LaunchSite:
        """Return where it runs.

        Raises:
            UserError: its file is gone or wrong.
        """
        return read_launch_site(self.site)


@dataclass(frozen=True)
class JobStatus:
    """State of a job; `reason`: why it waits or failed, if known."""

    state: JobState
    reason: str = ""


JOBS = RecordFile(
    kind=JobRecord,
    what="the record of a job",
    missing="no such job",
    source="`python -m launch status` shows all",
)


def read_settings(arguments: Sequence[str], *, program: str) -> Config:
    """Return a trainer's settings as its job will read them: relative paths begin at the project's folder.

    Raises:
        UserError: something does not fit together, or the recipe cannot be read.
    """
    with contextlib.chdir(ROOT):
        return parse_command_line(arguments, program=program)


def check_name(name: str) -> None:
    """See whether a job may have this name.

    Raises:
        UserError: it may not.
    """
    if re.fullmatch(r"(?!\.)[\w.+-]{1,100}", name, flags=re.ASCII) is None:
        raise UserError(
            f"--name is not a valid name for a job. Received: {name!r}. "
            "Use at most 100 letters, digits, '.', '_', '+' and '-' only"
        )


def new_folder(name: str, *, parent: Path) -> Path:
    """Make the folder of a job.

    Raises:
        UserError: there is one of this name, or it cannot be made.
    """
    folder = parent / name
    with user_errors("making the job's folder"):
        parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir()
        except FileExistsError:
            raise UserError(f"there is a job of this name. Received: {folder}. Give another --name") from None
    return folder


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write rendered files; scripts may be executed."""
    with user_errors("writing the job"):
        for name, text in files.items():
            path = folder / name
            write_atomically(path, text)
            if text.startswith("#!"):
                make_executable(path)


def write_record(folder: Path, record: JobRecord) -> None:
    """Write `job.json`."""
    with user_errors("writing the job"):
        JOBS.write(folder / JOB_FILE, record)


def read_job(name: str, *, parent: Path) -> tuple[JobRecord, Path]:
    """Return a job and its folder.

    Raises:
        UserError: there is none of this name, or its record is damaged.
    """
    folder = parent / name
    try:
        text = read_bytes(folder / JOB_FILE)
    except OSError:
        known = ", ".join(job_names(parent)) or "none yet"
        raise UserError(f"no such job. Received: {name}. There are: {known}") from None
    return JOBS.parse(text, place=folder / JOB_FILE), folder


def job_names(parent: Path) -> list[str]:
    """Return the names of all jobs, the oldest first."""
    found = sorted(parent.glob(f"*/{JOB_FILE}"), key=lambda path: path.stat().st_mtime)
    return [path.parent.name for path in found]
