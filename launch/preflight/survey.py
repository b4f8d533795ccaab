"""Ask all hosts of a preflight at once, then start its ranks. All have time limits and leave nothing behind."""

import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from common.checks.preflight_worker import MARK, ExchangeReport
from common.distributed.console import counted
from common.errors import UserError
from common.utils.paths import ROOT
from launch.preflight.host_probe import HostReport, ProbeRequest
from launch.preflight.target import Target
from launch.starting.parallel import Outcome, run_for_hosts
from launch.starting.processes import clean_line, reason_in, started
from launch.starting.ssh import CODE_OF_SSH, is_this_host, problem_of_ssh

PROBE_SECONDS = 30
SRUN_SECONDS = 10
RANKS_SECONDS = 120.0  # a cold file system may need a minute for a framework; longer than this is a hang
# A batch script sets these for its ranks; a probe must see the whole node instead of one rank's share.
RANK_SHARE_VARIABLES = (
    "SRUN_CPUS_PER_TASK", "SLURM_CPUS_PER_TASK", "SLURM_CPU_BIND", "SLURM_GPU_BIND", "SLURM_MPI_TYPE"
)  # fmt: skip
_HOST_REPORT = TypeAdapter(HostReport)
_EXCHANGE_REPORT = TypeAdapter(ExchangeReport)
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The answers.

    Attributes:
        reports: host -> its report.
        unreached: host -> why there is no report, a whole line.
        slowest_seconds: until the last host answered.
        marked: hosts whose file in the runs folder is visible here.
        missing_program: of the scheduler, where it is not installed here.
        srun_mpi: what `srun --mpi=list` offers, or why that is unknown; None: not asked.
        exchange: result of the all-reduce, or why there is none; None: not started.
        exchange_seconds: from the start of the ranks to their end.
    """

    reports: Mapping[str, HostReport] = field(default_factory=dict)
    unreached: Mapping[str, str] = field(default_factory=dict)
    slowest_seconds: float = 0.0
    marked: frozenset[str] = frozenset()
    missing_program: str | None = None
    srun_mpi: tuple[str, ...] | str | None = None
    exchange: ExchangeReport | str | None = None
    exchange_seconds: float = 0.0

    def reported(self, part: Callable[[HostReport], Value | None]) -> dict[str, Value]:
        """Return host -> a part of its report, without hosts that could not report it."""
        return {host: value for host, report in self.reports.items() if (value := part(report)) is not None}

    def errors(self, part: str, *, remedy: str = "") -> list[tuple[str, str]]:
        """Return (host, message) of hosts that could not report a part."""
        found = {host: report.errors[part] for host, report in self.reports.items() if part in report.errors}
        return [(host, f"{error}. {remedy}" if remedy else error) for host, error in found.items()]


def ask_hosts(target: Target, *, show: Callable[[str], object]) -> Survey:
    """Return what each host reports, and what can be asked here.

    Args:
        target: what to inspect.
        show: receives lines of progress.
    """
    program = target.submit_program
    missing = program if program and shutil.which(program) is None else None
    if target.location == "outside":
        return Survey(missing_program=missing)
    show(f"asking {', '.join(target.hosts)}")
    with _mark_folder(target) as folder:
        marks = {host: folder / str(number) if folder else None for number, host in enumerate(target.hosts)}
        outcomes = run_for_hosts(
            {host: probe_command(target, host, mark=mark) for host, mark in marks.items()},
            limit_seconds=PROBE_SECONDS,
            on_end=lambda outcome: (
                show(f"{outcome.host} answered after {outcome.seconds:.1f} s") if outcome.code == 0 else None
            ),
        )
        marked = frozenset(host for host, mark in marks.items() if mark and mark.exists())
    answers = {host: read_answer(target, outcome) for host, outcome in outcomes.items()}
    return Survey(
        reports={host: answer for host, answer in answers.items() if isinstance(answer, HostReport)},
        unreached={host: answer for host, answer in answers.items() if isinstance(answer, str)},
        slowest_seconds=max(outcome.seconds for outcome in outcomes.values()),
        marked=marked,
        missing_program=missing,
        srun_mpi=ask_srun() if target.site.launcher == "srun" else None,
    )


def probe_command(target: Target, host: str, *, mark: Path | None) -> list[str]:
    """Return the command that makes a host report; `mark`: the file that it creates."""
    request = ProbeRequest(
        host=host,
        limit_seconds=PROBE_SECONDS,
        dataset=target.dataset,
        folders=dict(target.folders),
        mark=str(mark) if mark else None,
    )
    variables = [f"{name}={value}" for name, value in target.environment.items()]
    probe = ["env", *variables, target.python, "-m", "launch.preflight.host_probe", json.dumps(asdict(request))]
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


def read_answer(target: Target, outcome: Outcome) -> HostReport | str:
    """Return a host's report, or the line that says why there is none."""
    host = outcome.host
    if outcome.code is None:
        remedy = "Check whether the host is overloaded or one of its file systems does not respond"
        return f"{host}: no answer within {PROBE_SECONDS} s. {remedy}"
    if outcome.code == CODE_OF_SSH and _over_ssh(target, host):
        return problem_of_ssh(host, outcome.stderr, ssh=target.launcher.ssh)
    answers = [line for line in outcome.stdout.splitlines() if line.startswith("{")]
    if outcome.code == 0 and answers:
        try:
            return _HOST_REPORT.validate_json(answers[-1])
        except ValidationError:
            return f"{host}: the project there is another version. Bring the same files there: `git pull`"
    remedy = f"Check that {target.python} and the folder {target.project_folder} exist there"
    return f"{host}: the probe failed (exit code {outcome.code}): {outcome.last_line}. {remedy}"


@contextmanager
def _mark_folder(target: Target) -> Iterator[Path | None]:
    """Make a folder in the runs folder where each host creates a file; None: one host, or it cannot be made.

    The disk check reports why it cannot be made.
    """
    folder = None
    if target.channel != "local":
        runs = Path(target.folders["runs"])
        try:
            runs.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=".preflight-", dir=runs))
        except OSError:
            pass
    try:
        yield folder
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def ask_srun() -> tuple[str, ...] | str:
    """Return the kinds of PMI that srun offers, or why they are unknown."""
    try:
        done = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, timeout=SRUN_SECONDS)
    except FileNotFoundError:
        return "srun is not on PATH"
    except subprocess.TimeoutExpired:
        return f"`srun --mpi=list` did not end within {SRUN_SECONDS} s"
    if done.returncode:
        return f"`srun --mpi=list` failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    return srun_kinds(done.stdout + done.stderr)


def srun_kinds(text: str) -> tuple[str, ...]:
    """Return the kinds that `srun --mpi=list` prints: one per line, or after a colon; older versions tag each line."""
    kinds: list[str] = []
    for line in text.splitlines():
        words = line.rpartition(":")[2].replace(",", " ").split()
        if len(words) == 1 or line.startswith("specific"):
            kinds += words
    return tuple(kinds)


def start_ranks(
    target: Target, *, show: Callable[[str], object], limit_seconds: float = RANKS_SECONDS
) -> tuple[ExchangeReport | str, float]:
    """Start all ranks for one all-reduce.

    Returns:
        Its result, or the line that says why there is none; and the seconds from start to end.
    """
    worker = os.path.relpath(ROOT / f"{target.frameworks[0]}_impl" / "preflight_worker.py")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="preflight-") as folder:
        log = Path(folder) / "log"
        try:
            words = target.launcher.words(np=target.size, controller=target.controller)
            command = [*words, "python", worker, "--device", target.device]
            show(f"starting {counted(target.size, 'rank')}, at most {limit_seconds:g} s: {shlex.join(command)}")
            code: int | None
            with started(command, variables=target.site.variables, log=log) as process:
                try:
                    code = process.wait(timeout=limit_seconds)
                except subprocess.TimeoutExpired:
                    code = None
        except UserError as error:
            return str(error), 0.0
        seconds = time.monotonic() - began
        report = read_exchange(log)
        if code == 0 and report is not None:
            return report, seconds
        end = f"did not end within {limit_seconds:g} s" if code is None else f"ended with code {code}"
        hosts = ", ".join(target.hosts)
        return f"{hosts}: the ranks {end}: {reason_in(log)}. Try it alone: `{shlex.join(command)}`", seconds


def read_exchange(log: Path) -> ExchangeReport | None:
    """Return what rank 0 printed; None: nothing."""
    for line in map(clean_line, log.read_text(errors="replace").splitlines()):
        if line and line.startswith(MARK):
            return _EXCHANGE_REPORT.validate_json(line.removeprefix(MARK))
    return None
