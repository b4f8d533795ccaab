"""Several plain hosts: the script of `local`, run on this machine, starts ranks on them over ssh."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from common.errors import UserError
from launch.jobs.job import Job
from launch.jobs.schedulers import local
from launch.jobs.schedulers.local import cancel, logs, shell, state
from launch.starting.launchers import Launcher, Slots, launcher_at

__all__ = ["cancel", "logs", "render", "shell", "state", "submit"]


def render(job: Job) -> dict[str, str]:
    """Return the script."""
    return {local.SCRIPT: local.script(job, hosts=",".join(map(str, _start(job).hosts)))}


def submit(job: Job, folder: Path, *, keep: Callable[[str], None]) -> str:
    """Start the script, if all hosts let it in; its id is that of its process here, and when that began."""
    _start(job).check(np=job.size)
    return local.submit(job, folder, keep=keep)


def _start(job: Job) -> Launcher:
    """Return how the job's ranks are started, on the first hosts that take so many each.

    Raises:
        UserError: there are too few of them.
    """
    start = launcher_at(job.site.reference, hosts=None)
    chosen = [Slots(slots.host, job.ranks_per_node) for slots in start.hosts if slots.ranks >= job.ranks_per_node]
    if len(chosen) < job.nodes:
        raise UserError(
            f"the site has too few hosts. Received: {job.nodes} nodes of {job.ranks_per_node} ranks, hosts "
            f"{', '.join(map(str, start.hosts))}. Ask for less, or name more hosts or slots"
        )
    return replace(start, site=job.site, hosts=chosen[: job.nodes])
