"""The lines that scripts of all schedulers share: set-up, variables, modules, preflight, the trainer's own words."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from common.run_folder.start_times import BEGAN_AT, STARTED_AT
from launch.jobs.job import Job, read_settings
from launch.starting.processes import PROGRAMS
from launch.starting.shell import line

KILL_SECONDS = 60  # after SIGTERM, at the time limit
CHECKPOINT_MINUTES = 10  # of jobs that may have to resume in another turn


def _record_time(name: str) -> str:
    """Return the line that sets a variable of `timestamps.py` to now; in two steps, as shellcheck wants it."""
    return f"{name}=$(date +%s.%N); export {name}"


# Before the command that starts a trainer's ranks: the run records how long that takes. Experiments do it themselves.
RECORD_START = _record_time(STARTED_AT)


def prologue(job: Job) -> list[str]:
    """Return the lines that bring a shell at the site to where trainers can be started."""
    site = job.site
    python = PurePosixPath(job.python)
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables(job).items()]
    lines = [_record_time(BEGAN_AT), *site.setup, line(["cd", job.project_folder]), *exports]
    if site.modules:
        lines += [*(["module purge"] if site.purge else []), line(["module", "load", *site.modules])]
    if python.is_absolute():
        lines.append(f"export PATH={shlex.quote(str(python.parent))}:$PATH")
    else:
        lines.append(f'export PATH="$PWD"/{shlex.quote(str(python.parent))}:$PATH')
    return lines


def variables(job: Job) -> dict[str, str]:
    """Return the variables beside PATH that trainers get at the site."""
    return {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1", **job.site.variables}


def run_lines(job: Job, commands: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines that run commands one after the other, each within the job's time limit of a run."""
    lines = []
    for words in commands:
        limited = line(["timeout", f"--kill-after={KILL_SECONDS}", f"{job.minutes}m", *words])
        lines += [limited] if job.experiment else [RECORD_START, limited]
    return lines


def repeats_words(job: Job, *, start: Sequence[str], hosts: str | None = None) -> list[list[str]]:
    """Return the command of each repeat of a trainer, each with the next seed.

    Args:
        start: what starts its ranks.
        hosts: as for `site_flags`.
    """
    seeds = [str(job.seed + number) if job.repeats > 1 else None for number in range(job.repeats)]
    start = started_again(job, hosts=hosts, np=str(job.size)) or start
    return [[*start, *trainer_words(job, name=job.run_name(repeat), seed=seed)] for repeat, seed in enumerate(seeds, 1)]


def started_again(job: Job, *, hosts: str | None, np: str) -> list[str]:
    """Return the command that starts the ranks of a trainer again when one ends; empty: they are started once."""
    if not job.restarts:
        return []
    framework = next(name for name, program in PROGRAMS.items() if program == job.program)
    again = ["--np", np, "--restarts", str(job.restarts), *site_flags(job, hosts=hosts)]
    return ["python", "-m", "launch", "train", "--framework", framework, *again, "--"]


def trainer_words(job: Job, *, name: str, seed: str | None = None) -> list[str]:
    """Return a trainer and its arguments; the arguments alone for `started_again`.

    Args:
        job: of a trainer.
        name: of the run folder; may be a `Shell` word, as `seed`.
        seed: in place of the one in the arguments.
    """
    assert job.program
    program = [] if job.restarts else job.site.program_words(job.program)
    seeding = ["--seed", seed] if seed is not None else []
    recorded = ["--runs-folder", job.runs_folder, "--name", name, "--site", job.node]
    return [*program, *job.arguments, *seeding, *recorded]


def resuming(job: Job) -> Job:
    """Return the job with its trainer resuming the run that an earlier turn of the job started."""
    assert job.program
    settings = read_settings(job.arguments, program=job.program)
    saving = ["--checkpoint-minutes", str(CHECKPOINT_MINUTES)]
    if settings.record.checkpoint_minutes or settings.strategy.replay:  # workers of a replay meet when its run's did
        saving = []
    return replace(job, arguments=(*job.arguments, "--resume-or-start", *saving))


def experiment_words(job: Job, *, hosts: str | None = None) -> list[str]:
    """Return the command that runs what is missing of an experiment, within the job; for `hosts` see `site_flags`."""
    assert job.experiment
    words = ["python", "-m", "launch", "experiment", "run", job.experiment, *job.arguments]
    return [*words, "--runs-folder", job.runs_folder, *site_flags(job, hosts=hosts)]


def preflight_words(job: Job, *, hosts: str | None = None) -> list[str]:
    """Return the command that looks over all hosts of the job; for `hosts` see `site_flags`."""
    ranks = job.size - job.servers if job.gpus_per_node else job.size
    words = ["python", "-m", "launch", "preflight", "--np", str(ranks), *job.preflight_flags]
    return [*words, *site_flags(job, hosts=hosts)]


def site_flags(job: Job, *, hosts: str | None = None) -> list[str]:
    """Return the flags that name the site and its hosts to another command of the project.

    Args:
        job: what is run.
        hosts: "a:2,b:2"; may be a `Shell` word; None: those of the site.
    """
    return ["--site", job.site_file or job.site.reference, *(["--hosts", hosts] if hosts is not None else [])]
