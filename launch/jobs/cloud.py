"""What places that are reached through a program of theirs (`sky`, `kubectl`) have in common."""

import itertools
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from common.errors import UserError, first_problem
from common.utils.paths import ROOT
from common.utils.whole_files import parse_json
from launch.jobs.job import Job
from launch.starting.shell import Shell, line

Answer = TypeVar("Answer")
_MOST_STARTS = 100  # lines that may be the first one of a JSON document


def host_label(name: str, *, longest: int) -> str:
    """Return the name of a job as a host may be called (RFC 1035): lower case, digits and "-", a letter first.

    Args:
        name: of a job.
        longest: number of characters.

    Raises:
        UserError: it is longer.
    """
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    label = label if label[:1].isalpha() else f"job-{label}".rstrip("-")
    if len(label) > longest:
        raise UserError(f"the name is too long there. Received: --name {name}. Give {longest} characters or fewer")
    return label


def run_program(words: Sequence[str], *, remedy: str) -> str:
    """Run a program of the place and return what it prints.

    Args:
        words: the command.
        remedy: what to do if it fails.

    Raises:
        UserError: it is not installed, or fails.
    """
    require(words[0])
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise UserError(f"{_first(words)} failed. Received: {_reason(done)}. {remedy}")
    return done.stdout


def show_program(words: Sequence[str], *, remedy: str) -> None:
    """Run a program of the place, for minutes maybe, and let it print what it does.

    Raises:
        UserError: it is not installed, or fails.
    """
    require(words[0])
    code = subprocess.run(words, cwd=ROOT, check=False).returncode
    if code:
        raise UserError(f"{_first(words)} failed. Received: exit code {code}, and what it says above. {remedy}")


_SOURCES = {
    "sky": "Install it into an environment of its own: pip install 'skypilot[aws,gcp]==0.14.1'",
    "kubectl": "Install it as your cluster's documentation says",
}


def require(program: str) -> None:
    """See whether a program is there.

    Raises:
        UserError: it is not.
    """
    if shutil.which(program) is None:
        raise UserError(f"{program} is not installed. Received: no {program} on PATH. {_SOURCES[program]}")


def read_answer(text: str, kind: type[Answer], *, source: str) -> Answer:
    """Return the JSON document in what a program printed; other lines may precede it.

    Args:
        kind: of the document, such as a dataclass with the fields that are read.

    Raises:
        UserError: there is none, or it is of another kind.
    """
    for found in itertools.islice(re.finditer(r"^[\[{]", text, flags=re.MULTILINE), _MOST_STARTS):
        try:
            content = parse_json(text[found.start() :])
        except ValueError:
            continue
        try:
            return TypeAdapter(kind).validate_python(content)
        except ValidationError as error:
            raise UserError(
                f"{source} printed other JSON than expected: {first_problem(error)}. Run it by hand"
            ) from None
    raise UserError(f"{source} printed no JSON. Received: {text.strip()[:200]!r}. Run it by hand")


def for_remote(job: Job, *, project_folder: str) -> Job:
    """Return a job with the paths that it has there.

    Args:
        job: as it was asked for here.
        project_folder: of the project there.

    Raises:
        UserError: its experiment or recipe is a file that does not come along.
    """
    experiment = job.experiment
    if experiment:
        experiment = _in_project(experiment, what="experiment")
    arguments = list(job.arguments)
    for number, word in enumerate(arguments):
        if word.startswith("--recipe="):
            arguments[number] = "--recipe=" + _in_project(word.removeprefix("--recipe="), what="recipe")
        elif word == "--recipe":
            arguments[number + 1] = _in_project(arguments[number + 1], what="recipe")
    kind = f":{shlex.quote(job.site.kind)}" if job.site.kind else ""
    return replace(
        job, site=replace(job.site, project_folder=project_folder),
        site_file=Shell(_site_file(job) + kind) if job.site.is_own else None,
        experiment=experiment, arguments=tuple(arguments),
    )  # fmt: skip


def _in_project(file: str, *, what: str) -> str:
    """Return the path of a file from the project's folder; a relative one begins there already."""
    path = Path(os.path.normpath(ROOT / file))
    if not path.is_relative_to(ROOT):
        raise UserError(f"the {what}'s file is not in the project, which is all that comes along. "
                        f"Received: {file}. Copy it into {ROOT}")  # fmt: skip
    return file if not Path(file).is_absolute() else str(path.relative_to(ROOT))


def site_lines(job: Job) -> list[str]:
    """Return the lines of a script that write the site's file there, if it is one of the user's own.

    Commands of the project read there how ranks are started.
    """
    if not job.site.is_own:
        return []
    text = Path(job.site.file).read_text(encoding="utf-8")
    return ["site_folder=$(mktemp -d)", line(["printf", "%s", text, Shell(">"), _site_file(job)])]


def _site_file(job: Job) -> Shell:
    return Shell(f'"$site_folder"/{shlex.quote(job.site.name)}.toml')


def _first(words: Sequence[str]) -> str:
    """Return the program and its verbs."""
    verbs = [word for word in words[:3] if re.fullmatch(r"[a-z]+", word)]
    return " ".join(verbs)


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"exit code {done.returncode}"
