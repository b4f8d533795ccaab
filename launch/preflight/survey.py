"""Ask all hosts of a preflight at once, then start its ranks. All have time limits and leave nothing behind."""

import json
import os
import shlex
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from common.checks.preflight_worker import MARK
from common.distributed.console import counted
from common.errors import UserError
from common.utils.paths import ROOT
from launch.preflight.host_probe import source_hash
from launch.preflight.target import Target
from launch.starting.parallel import Outcome, run_for_hosts
from launch.starting.processes import clean_line, reason_in, started
from launch.starting.ssh import CODE_OF_SSH, is_this_host, problem_of_ssh

PROBE_SECONDS = 30
RANKS_SECONDS = 120.0  # a cold file system may need a minute for a framework; longer than this is a hang
# A batch script sets these for its ranks; a probe must see the whole node instead of one rank's share.
RANK_SHARE_VARIABLES = (
    "SRUN_CPUS_PER_TASK", "SLURM_CPUS_PER_TASK", "SLURM_CPU_BIND", "SLURM_GPU_BIND", "SLURM_MPI_TYPE"
)  # fmt: skip


@dataclass(kw_only=True)
class Survey:
    """The answers.

    Attributes:
        reports: host -> what its `host_probe.py` reports.
        unreached: for each host without a report, why.
        seconds: until the last host answered.
        exchange: what the ranks report about the all-reduce, or why they report nothing; None: not started.
    """

    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    unreached: list[str] = field(default_factory=list)
    seconds: float = 0.0
    exchange: dict[str, Any] | str | None = None

    def reported(self, part: str) -> dict[str, Any]:
        """Return host -> a part of its report, without hosts that could not report it."""
        return {host: report[part] for host, report in self.reports.items() if part in report}


def ask_hosts(target: Target) -> Survey:
    """Return what each host reports."""
    survey = Survey()
    with _mark_file(target) as mark:
        commands = {host: probe_command(target, host, mark=mark) for host in target.hosts}
        outcomes = run_for_hosts(commands, limit_seconds=PROBE_SECONDS)
    for host, outcome in outcomes.items():
        survey.seconds = max(survey.seconds, outcome.seconds)
        try:
            survey.reports[host] = read_answer(target, outcome)
        except UserError as error:
            survey.unreached.append(str(error))
    return survey


def probe_command(target: Target, host: str, *, mark: str) -> list[str]:
    """Return the command that makes a host report; `mark`: a file that it should see."""
    request = {"limit_seconds": PROBE_SECONDS, "dataset": target.dataset, "folders": target.folders, "mark": mark}
    variables = [f"{name}={value}" for name, value in target.environment.items()]
    probe = ["env", *variables, target.python, "-m", "launch.preflight.host_probe", json.dumps(request)]
    words = ["sh", "-c", 'cd "$0" && exec "$@"', target.project_folder, *probe]
    if target.channel == "srun":
        unset = [word for name in RANK_SHARE_VARIABLES for word in ("-u", name)]
        srun = ["srun", "--nodes=1", "--ntasks=1", f"--nodelist={host}", "--cpu-bind=none", "--mpi=none"]
        return ["env", *unset, *srun, *words]
    if _over_ssh(target, host):
        return target.launcher.ssh.words(host, words, limit_seconds=PROBE_SECONDS)
    return words


def _over_ssh(target: Target, host: str) -> bool:
    return target.channel == "ssh" and not is_this_host(host)


def read_answer(target: Target, outcome: Outcome) -> dict[str, Any]:
    """Return a host's report.

    Raises:
        UserError: there is none, or the host has other files of the project.
    """
    host = outcome.host
    if outcome.code is None:
        remedy = "Check whether the host is overloaded or one of its file systems does not respond"
        raise UserError(f"{host}: no answer within {PROBE_SECONDS} s. {remedy}")
    if outcome.code == CODE_OF_SSH and _over_ssh(target, host):
        raise UserError(problem_of_ssh(host, outcome.stderr, ssh=target.launcher.ssh))
    answers = [line for line in outcome.stdout.splitlines() if line.startswith("{")]
    if outcome.code or not answers:
        remedy = f"Check that {target.python} and the folder {target.project_folder} exist there"
        raise UserError(f"{host}: the probe failed (exit code {outcome.code}): {outcome.last_line}. {remedy}")
    report: dict[str, Any] = json.loads(answers[-1])
    if report.get("project") != source_hash():
        remedy = "Bring the same files there: `git pull`, or a folder that all hosts share"
        raise UserError(f"{host}: the project in {target.project_folder} there is another version. {remedy}")
    return report


@contextmanager
def _mark_file(target: Target) -> Iterator[str]:
    """Return a file that exists in the runs folder meanwhile: hosts that share the folder see it."""
    mark = Path(target.folders["runs"], f".preflight-{uuid.uuid4().hex}")
    if target.channel != "local":
        with suppress(OSError):  # the disk check reports it
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
    try:
        yield str(mark)
    finally:
        with suppress(OSError):
            mark.unlink()


def start_ranks(
    target: Target, *, show: Callable[[str], object], limit_seconds: float = RANKS_SECONDS
) -> dict[str, Any] | str:
    """Start all ranks for one all-reduce; return what they report, or the line that says why they do not."""
    worker = os.path.relpath(ROOT / f"{target.frameworks[0]}_impl" / "preflight_worker.py")
    with tempfile.TemporaryDirectory(prefix="preflight-") as folder:
        log = Path(folder) / "log"
        try:
            words = target.launcher.words(np=target.size, controller=target.controller)
            command = [*words, "python", worker, "--device", target.device]
            show(f"starting {counted(target.size, 'rank')}, at most {limit_seconds:g} s: {shlex.join(command)}")
            with started(command, variables=target.site.variables, log=log) as process:
                code: int | None = process.wait(timeout=limit_seconds)
        except TimeoutExpired:
            code = None
        except UserError as error:
            return str(error)
        for line in log.read_text(errors="replace").splitlines():
            _, found, report = (clean_line(line) or "").partition(MARK)
            if found and code == 0:
                exchange: dict[str, Any] = json.loads(report)
                return exchange
        end = f"did not end within {limit_seconds:g} s" if code is None else f"ended with code {code}"
        hosts = ", ".join(target.hosts)
        return f"{hosts}: the ranks {end}: {reason_in(log)}. Try it alone: `{shlex.join(command)}`"
