"""What a login node can check of a job before it waits: the job's own preflight, in the shell that it will have."""

import os
import subprocess
import sys
from dataclasses import dataclass

from common.distributed.console import counted
from common.errors import UserError
from launch.jobs.cloud import read_answer
from launch.jobs.job import Job
from launch.jobs.scripts import preflight_words, prologue
from launch.preflight.target import JOB_VARIABLES
from launch.starting.shell import line


@dataclass(frozen=True)
class _Check:
    """What is read of a check that the preflight prints."""

    check: str
    result: str
    lines: list[str]


@dataclass(frozen=True)
class _Report:
    checks: list[_Check]


def check_on_login_node(job: Job) -> None:
    """Make the checks of the preflight that need no node of the job; print which are left to the job.

    Raises:
        UserError: a check failed, or the site's set-up lines or modules did.
    """
    script = "\n".join(["set -e", *prologue(job), line([*preflight_words(job), "--format", "json"])])
    # Within an allocation, too, this is no node of the job.
    variables = {name: value for name, value in os.environ.items() if name != JOB_VARIABLES["slurm"]}
    done = subprocess.run(
        ["bash", "-c", script], env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="replace", check=False,
    )  # fmt: skip
    skip = "--no-preflight submits without this check"
    if not done.stdout.rstrip().endswith("}"):
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise UserError(f"the job's shell fails on this login node: {last}. Received: {job.site.file}. "
                        f"Correct its setup, modules and folders; {skip}")  # fmt: skip
    checks = read_answer(done.stdout, _Report, source="preflight").checks
    named = {result: [one.check for one in checks if one.result == result] for result in ("ok", "not checked")}
    failed = [f"{one.check}: {text}" for one in checks if one.result == "failed" for text in one.lines]
    if failed:
        more = f" ({len(failed) - 1} more: {line(preflight_words(job))})" if len(failed) > 1 else ""
        raise UserError(
            f"the job would fail, as this login node shows: {failed[0]}{more}. Received: --site {job.site.reference}. "
            f"Correct this here or in the site's file; {skip}"
        )
    print(f"on this login node {counted(len(named['ok']), 'check')} passed; left to the job: "
          f"{', '.join(named['not checked'])}", file=sys.stderr)  # fmt: skip
