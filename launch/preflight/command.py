"""`python -m launch preflight`: what would make a job fail or lie, found before it waits or runs.

    python -m launch preflight --np 2                            this machine
    python -m launch preflight --hosts node1:4,node2:4           several hosts, by ssh
    python -m launch preflight --site cte-power                  on a login node what can be checked there, else the job

Each failure is one line: on which host, what, and how to mend it; the exit code is then 2.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from common.checks.preflight_worker import ExchangeReport
from common.distributed.console import counted
from common.errors import EXIT_CODE_USER_ERROR
from launch.preflight import hosts as preflight_hosts
from launch.preflight import software as preflight_software
from launch.preflight.answers import Answers, Verdict
from launch.preflight.ask import ask_hosts
from launch.preflight.plan import Plan, make_plan
from launch.preflight.ranks import start_ranks

WHY_NOT = {
    "login node": "only in the job: this is a login node",
    "elsewhere": "only in the job: it runs on machines of its own",
}


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check.

    Attributes:
        judge: pure.
        where: always; on hosts that see the software and folders of the job; or in the job only.
        parts: of a host's answer, whose time is the time of the check.
    """

    name: str
    judge: Callable[[Plan, Answers], Verdict]
    where: Literal["always", "software", "job"]
    parts: Sequence[str] = ()


CHECKS = (
    Check(name="hosts", judge=preflight_software.check_hosts, where="always"),
    Check(name="scheduler", judge=preflight_software.check_scheduler, where="always"),
    Check(name="interpreter", judge=preflight_software.check_interpreter, where="software"),
    Check(name="packages", judge=preflight_software.check_packages, where="software", parts=["software"]),
    Check(name="project", judge=preflight_software.check_project, where="software"),
    Check(name="horovod", judge=preflight_software.check_horovod, where="software", parts=["horovod"]),
    Check(name="mpi", judge=preflight_software.check_mpi, where="software", parts=["mpirun"]),
    Check(name="pmi", judge=preflight_software.check_pmi, where="software"),
    Check(name="network", judge=preflight_hosts.check_network, where="job", parts=["interfaces"]),
    Check(name="gpus", judge=preflight_hosts.check_gpus, where="job", parts=["gpus"]),
    Check(name="nccl", judge=preflight_hosts.check_nccl, where="job"),
    Check(name="threads", judge=preflight_hosts.check_threads, where="job"),
    Check(name="disk", judge=preflight_hosts.check_disk, where="software", parts=["folders"]),
    Check(name="shared runs", judge=preflight_hosts.check_shared_runs, where="job", parts=["shared"]),
    Check(name="data", judge=preflight_hosts.check_data, where="software", parts=["data"]),
    Check(name="clocks", judge=preflight_hosts.check_clocks, where="job"),
    Check(name="allreduce", judge=preflight_hosts.check_allreduce, where="job"),
)
# Where a check can be made.
PLACES = {"always": ("job", "login node", "elsewhere"), "software": ("job", "login node"), "job": ("job",)}
# Without these no rank would come far: none is started.
NEEDED_BY_RANKS = ("hosts", "packages", "horovod", "mpi", "pmi")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A check as it is shown; `lines`: its failures, or a few words."""

    check: str
    result: str
    seconds: float
    lines: list[str]


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "preflight",
        help="look over all hosts before a job waits or runs",
        description="Check software, hosts, network and data, and sum 1 MB over all ranks. Exit code 2: one failed.",
    )
    parser.add_argument("--site", metavar="SITE", help="a name that `sites` shows, or a file (default: this machine)")
    parser.add_argument("--hosts", metavar="a:2,b:2", help="hosts and their slots, or a host file")
    parser.add_argument("--np", type=int, help="number of ranks (default: as many as slots, else 2)")
    parser.add_argument("--controller", choices=["mpi", "gloo"], help="how ranks talk (default: as the site says)")
    parser.add_argument("--framework", choices=["torch", "keras", "both"], help="default: what is installed")
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto", help="as trainers are given it")
    parser.add_argument("--threads", type=int, help="compute threads of a rank (default: cores / ranks)")
    parser.add_argument("--dataset", default="mnist", help="its checksums are checked; or none (default: %(default)s)")
    parser.add_argument("--runs-folder", metavar="PATH", help="default: the site's, else runs")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the ranks too, as Ctrl-C does
    plan = make_plan(options, variables=os.environ)

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:5.1f} s  {line}", file=sys.stderr, flush=True)

    answers = ask_hosts(plan, tell=tell)
    if plan.place == "job" and not failed(judge(plan, answers), among=NEEDED_BY_RANKS):
        exchange, seconds = start_ranks(plan, tell=tell)
        answers = replace(answers, exchange=exchange, seconds={**answers.seconds, "allreduce": seconds})
    rows = judge(plan, answers)
    wrong, seconds = failed(rows), time.monotonic() - began
    if options.json:
        result = {
            "result": "failed" if wrong else "ok", "seconds": seconds, "site": plan.site.name, "place": plan.place,
            "hosts": dict(plan.hosts), "checks": [asdict(row) for row in rows],
            "allreduce": asdict(answers.exchange) if isinstance(answers.exchange, ExchangeReport) else None,
        }  # fmt: skip
        print(json.dumps(result, indent=1))
    else:
        print(format_table(rows))
        print(f"{summary(rows)}, in {seconds:.1f} s")
    return EXIT_CODE_USER_ERROR if wrong else 0


def judge(plan: Plan, answers: Answers) -> list[Row]:
    """Return all checks with what they say."""
    return [_row(check, plan, answers) for check in CHECKS]


def _row(check: Check, plan: Plan, answers: Answers) -> Row:
    if plan.place not in PLACES[check.where]:
        verdict = Verdict(unknown=[WHY_NOT[plan.place]])
    elif check.where != "always" and not answers.probes:
        verdict = Verdict(unknown=["no host has answered"])
    else:
        verdict = check.judge(plan, answers)
    slowest = (
        seconds for probe in answers.probes.values() for part, seconds in probe.seconds.items() if part in check.parts
    )
    seconds = answers.seconds.get(check.name, max(slowest, default=0.0))
    if check.name == "hosts":
        seconds = max((ended - began for began, ended in answers.windows.values()), default=0.0)
    return Row(check=check.name, result=verdict.result, seconds=seconds, lines=verdict.lines)


def failed(rows: Sequence[Row], *, among: Sequence[str] | None = None) -> list[str]:
    """Return the names of checks that failed, of some or of all."""
    return [row.check for row in rows if row.result == "failed" and (among is None or row.check in among)]


def format_table(rows: Sequence[Row]) -> str:
    """Return a line for each thing that a check has to say; "not checked" stands where a failure cannot be told."""
    lines = [f"{'check':11}  {'result':11}  seconds  what"]
    for row in rows:
        for number, line in enumerate(row.lines):
            head = f"{row.check:11}  {row.result:11}  {row.seconds:7.2f}" if number == 0 else " " * 33
            lines.append(f"{head}  {line}".rstrip())
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    """Return how many checks failed or could not be made."""
    wrong, unknown = failed(rows), [row.check for row in rows if row.result == "not checked"]
    parts = [f"{len(rows) - len(wrong) - len(unknown)} of {counted(len(rows), 'check')} passed"]
    parts += [f"failed: {', '.join(wrong)}"] if wrong else []
    parts += [f"not checked: {', '.join(unknown)}"] if unknown else []
    return "; ".join(parts)
