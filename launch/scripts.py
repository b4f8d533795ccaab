"""The lines that scripts of all schedulers share: folder, modules, environment, preflight, the trainer's own words."""

import shlex
from pathlib import PurePosixPath

from launch.jobs import Job


class Shell(str):
    """A word that the shell of a script fills in, such as "$SLURM_NTASKS"; it is not quoted."""


def line(words: "list[str]") -> str:
    """Return words as a line of a script, each quoted where a shell would read it otherwise."""
    return " ".join(word if isinstance(word, Shell) else shlex.quote(word) for word in words)


def prologue(job: Job) -> list[str]:
    """Return the lines that bring a shell at the site to where trainers can be started."""
    site = job.site
    python = PurePosixPath(site.python)
    lines = [line(["cd", job.project_folder])]
    if site.modules:
        lines += [line(["module", "purge"]), line(["module", "load", *site.modules])]
    if python.is_absolute():
        lines.append(f"export PATH={shlex.quote(str(python.parent))}:$PATH")
    else:
        lines.append(f'export PATH="$PWD"/{shlex.quote(str(python.parent))}:$PATH')
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}
    if site.data_folder:
        variables["HOROVOD_TWINS_CACHE"] = site.data_folder
    if site.scratch_folder:
        variables["TMPDIR"] = site.scratch_folder
    lines += [f"export {name}={shlex.quote(value)}" for name, value in {**variables, **site.environment}.items()]
    return lines


def trainer_words(job: Job, *, name: str, seed: str | None = None) -> list[str]:
    """Return a trainer and its arguments.

    Args:
        job: of a trainer.
        name: of the run folder; may be a `Shell` word, as `seed`.
        seed: in place of the one in the arguments.
    """
    assert job.program
    seeding = ["--seed", seed] if seed is not None else []
    recorded = ["--runs-folder", job.runs_folder, "--name", name, "--site", job.node]
    return ["python", job.program, *job.arguments, *seeding, *recorded]


def experiment_words(job: Job, *, hosts: str | None = None) -> list[str]:
    """Return the command that runs what is missing of an experiment, within the job.

    Args:
        job: of an experiment.
        hosts: "a:2,b:2"; may be a `Shell` word; None: those of the site.
    """
    assert job.experiment
    named = ["--hosts", hosts] if hosts is not None else []
    where = ["--site", job.site.file if job.site.file.endswith(".toml") and _is_own(job) else job.site.name]
    words = ["python", "-m", "launch", "experiment", "run", job.experiment, *job.arguments]
    return [*words, "--runs-folder", job.runs_folder, *where, *named]


def _is_own(job: Job) -> bool:
    from launch.site_files import shipped_sites

    return job.site.name not in shipped_sites()
