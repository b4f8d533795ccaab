"""`python -m launch preflight`: what would make a job fail or mislead, found before it waits or runs.

    python -m launch preflight --np 2                            this machine
    python -m launch preflight --hosts node1:4,node2:4           several hosts, over ssh
    python -m launch preflight --site cte-power                  on a login node what can be checked there; else the job

Each failure is one line: the host, what is wrong, and how to fix it; the exit code is then 2.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from common.checks.preflight_worker import ExchangeReport
from common.distributed.console import counted
from common.errors import EXIT_CODE_USER_ERROR
from launch.preflight.checks import CheckResult, judge
from launch.preflight.survey import ask_hosts, start_ranks
from launch.preflight.target import read_target

# No ranks are started where one of these failed: they would not get far.
NEEDED_BY_RANKS = ("hosts", "software", "horovod", "pmi")


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "preflight",
        help="check all hosts before a job waits or runs",
        description="Check software, hosts, network and data, and sum 1 MB over all ranks. Exit code 2: one failed.",
    )
    parser.add_argument("--site", metavar="SITE", help="a name that `sites` shows, or a file (default: this machine)")
    parser.add_argument("--hosts", metavar="a:2,b:2", help="hosts and their slots, or a host file")
    parser.add_argument("--np", type=int, help="number of ranks (default: all slots; 2 without slots)")
    parser.add_argument("--controller", choices=["mpi", "gloo"], help="how ranks are joined (default: the site's)")
    parser.add_argument("--framework", choices=["torch", "keras", "both"], help="default: what is installed")
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto", help="as for trainers")
    parser.add_argument("--threads", type=int, help="compute threads per rank (default: cores / ranks)")
    parser.add_argument("--dataset", default="mnist", help="checks its checksums; or none (default: %(default)s)")
    parser.add_argument("--runs-folder", metavar="FOLDER", help="default: the site's, else runs")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the ranks too, as Ctrl-C does
    target = read_target(options, variables=os.environ)

    def show(line: str) -> None:
        print(f"{time.monotonic() - began:5.1f} s  {line}", file=sys.stderr, flush=True)

    survey = ask_hosts(target, show=show)
    if target.location == "job" and not set(failed(judge(target, survey))) & set(NEEDED_BY_RANKS):
        exchange, seconds = start_ranks(target, show=show)
        survey = replace(survey, exchange=exchange, exchange_seconds=seconds)
    results, seconds = judge(target, survey), time.monotonic() - began
    if options.json:
        print(json.dumps({
            "result": "failed" if failed(results) else "ok", "seconds": seconds, "site": target.site.name,
            "location": target.location, "hosts": dict(target.hosts), "checks": [asdict(each) for each in results],
            "allreduce": asdict(survey.exchange) if isinstance(survey.exchange, ExchangeReport) else None,
        }, indent=1))  # fmt: skip
    else:
        print(format_table(results))
        print(f"{summary(results)}, in {seconds:.1f} s")
    return EXIT_CODE_USER_ERROR if failed(results) else 0


def failed(results: Sequence[CheckResult]) -> list[str]:
    """Return the names of checks that failed."""
    return [each.check for each in results if each.result == "failed"]


def format_table(results: Sequence[CheckResult]) -> str:
    """Return one line for each finding."""
    lines = [f"{'check':11}  {'result':11}  finding"]
    for each in results:
        for number, line in enumerate(each.lines):
            head = f"{each.check:11}  {each.result:11}" if number == 0 else " " * 24
            lines.append(f"{head}  {line}".rstrip())
    return "\n".join(lines)


def summary(results: Sequence[CheckResult]) -> str:
    """Return how many checks passed, and which failed or were not made."""
    wrong, unknown = failed(results), [each.check for each in results if each.result == "not checked"]
    parts = [f"{len(results) - len(wrong) - len(unknown)} of {counted(len(results), 'check')} passed"]
    parts += [f"failed: {', '.join(wrong)}"] if wrong else []
    parts += [f"not checked: {', '.join(unknown)}"] if unknown else []
    return "; ".join(parts)
