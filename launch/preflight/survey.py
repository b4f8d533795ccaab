"""Ask all hosts of a preflight at once, then start its ranks. All have time limits and leave nothing behind."""

import json
import os
import shlex
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from pydantic import TypeAdapter, ValidationError

from common.checks.preflight_worker import MARK
from common.distributed.console import counted
from common.errors import UserError, first_problem
from common.utils.paths import ROOT
from common.utils.whole_files import parse_json
from launch.preflight.host_checks import LIMIT_SECONDS, Answer, Wanted, first_existing, source_hash
from launch.preflight.target import Target
from launch.starting.parallel import Outcome, run_for_hosts
from launch.starting.processes import reason_in, started
from launch.starting.ssh import CODE_OF_SSH, is_this_host, problem_of_ssh

RANKS_SECONDS = 120.0  # a cold file system may need a minute for a framework; longer than this is a hang
# A batch script sets these for its ranks; the checks must see the whole node instead of one rank's share.
RANK_SHARE_VARIABLES = (
    "SRUN_CPUS_PER_TASK", "SLURM_CPUS_PER_TASK", "SLURM_CPU_BIND", "SLURM_GPU_BIND", "SLURM_MPI_TYPE"
)  # fmt: skip


_ANSWERS = TypeAdapter(dict[str, Answer])


def ask_hosts(target: Target) -> dict[str, dict[str, Answer]]:
    """Return host -> check -> answer; the check `hosts` is whether a host answers at all."""
    with ExitStack() as stack:
        wanted = target.wanted
        if "shared runs" in wanted.checks:
            with suppress(OSError):  # the disk check reports it
                folder = first_existing(wanted.folders["runs"])
                mark = stack.enter_context(tempfile.NamedTemporaryFile(prefix=".preflight-", dir=folder))
                wanted = replace(wanted, mark=mark.name)
        commands = {host: host_command(target, host, wanted) for host in target.hosts}
        outcomes = run_for_hosts(commands, limit_seconds=LIMIT_SECONDS)
    seconds = max((outcome.seconds for outcome in outcomes.values()), default=0.0)
    answered = (True, f"{counted(len(outcomes), 'host')} answered within {seconds:.1f} s")
    answers: dict[str, dict[str, Answer]] = {}
    for host, outcome in outcomes.items():
        try:
            answers[host] = {"hosts": answered, **read_answers(target, outcome)}
        except UserError as error:
            answers[host] = {"hosts": (False, str(error))}
    return answers


def host_command(target: Target, host: str, wanted: Wanted) -> list[str]:
    """Return the command that makes a host check itself."""
    request = json.dumps(asdict(replace(wanted, ranks=target.hosts[host])))
    variables = [f"{name}={value}" for name, value in target.environment.items()]
    checks = ["-m", "launch.preflight.host_checks", request]
    words = ["sh", "-c", 'cd "$0" && exec "$@"', target.project_folder, "env", *variables, target.python, *checks]
    if target.channel == "srun":
        unset = [word for name in RANK_SHARE_VARIABLES for word in ("-u", name)]
        srun = ["srun", "--nodes=1", "--ntasks=1", f"--nodelist={host}", "--cpu-bind=none", "--mpi=none"]
        return ["env", *unset, *srun, *words]
    if target.channel == "ssh" and not is_this_host(host):
        return target.launcher.ssh.words(host, words, limit_seconds=LIMIT_SECONDS)
    return words


def read_answers(target: Target, outcome: Outcome) -> dict[str, Answer]:
    """Return check -> answer of a host.

    Raises:
        UserError: there is none, or the host has other files of the project.
    """
    if outcome.code is None:
        remedy = "Check whether the host is overloaded or one of its file systems does not respond"
        raise UserError(f"no answer within {outcome.seconds:.0f} s. {remedy}")
    if outcome.code == CODE_OF_SSH and target.channel == "ssh":
        raise UserError(problem_of_ssh(outcome.host, outcome.stderr, ssh=target.launcher.ssh))
    lines = [line for line in outcome.stdout.splitlines() if line.startswith("{")]
    if outcome.code or not lines:
        remedy = f"Run `make setup` in {target.project_folder} there, and check that {target.python} exists"
        raise UserError(f"cannot check itself (exit code {outcome.code}): {outcome.last_line}. {remedy}")
    try:
        answer = parse_json(lines[-1])
        if answer.get("project") != source_hash():  # whose answers may have another form
            remedy = "Bring the same files there: `git pull`, or a folder that all hosts share"
            raise UserError(f"the project in {target.project_folder} there is another version. {remedy}")
        return _ANSWERS.validate_python(answer.get("answers"))
    except ValueError as error:  # no JSON, or pydantic's ValidationError
        problem = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise UserError(f"its answer cannot be read: {problem}. Look what its shell prints") from None


def start_ranks(target: Target, *, show: Callable[[str], object], limit_seconds: float = RANKS_SECONDS) -> Any:
    """Start all ranks for one all-reduce; return what they report (see `common/checks/preflight_worker.py`).

    Raises:
        UserError: they report nothing; the message says why.
    """
    worker = os.path.relpath(ROOT / f"{target.wanted.frameworks[0]}_impl" / "preflight_worker.py")
    words = target.launcher.words(np=target.size, controller=target.wanted.controller)
    command = [*words, "python", worker, "--device", target.wanted.device]
    show(f"starting {counted(target.size, 'rank')}, at most {limit_seconds:g} s: {shlex.join(command)}")
    with tempfile.TemporaryDirectory(prefix="preflight-") as folder:
        log = Path(folder) / "log"
        try:
            with started(command, variables=target.launcher.site.variables, log=log) as process:
                code: int | None = process.wait(timeout=limit_seconds)
        except TimeoutExpired:
            code = None
        _, found, report = log.read_text(errors="replace").partition(MARK)
        if found and code == 0:
            with suppress(ValueError, IndexError):
                return parse_json(report.splitlines()[0])
        end = f"did not end within {limit_seconds:g} s" if code is None else f"ended with code {code}"
        hosts = ", ".join(target.hosts)
        raise UserError(f"{hosts}: the ranks {end}: {reason_in(log)}. Try it alone: `{shlex.join(command)}`")
