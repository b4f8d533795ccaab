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
from dataclasses import asdict
from typing import Any

from tabulate import tabulate

from common.distributed.console import counted
from common.errors import EXIT_CODE_USER_ERROR
from common.utils.command_line import whole_number
from launch.preflight.checks import OF_HOSTS, OF_RANKS, CheckResult, judge
from launch.preflight.survey import ask_hosts, start_ranks
from launch.preflight.target import read_target

# No ranks are started where one of these failed: they would not get far.
NEEDED_BY_RANKS = {"hosts", "scheduler", "software", "horovod"}


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "preflight",
        help="check all hosts before a job waits or runs",
        description="Check software, hosts, network and data, and sum 1 MB over all ranks. Exit code 2: one failed.",
    )
    parser.add_argument("--site", metavar="SITE", help="a name that `sites` shows, or a file (default: this machine)")
    parser.add_argument("--hosts", metavar="a:2,b:2", help="hosts and their slots, or a host file")
    parser.add_argument("--np", type=whole_number, help="number of ranks (default: all slots; 2 without slots)")
    parser.add_argument("--controller", choices=["mpi", "gloo"], help="how ranks are joined (default: the site's)")
    parser.add_argument("--framework", choices=["torch", "keras", "both"], help="default: what is installed")
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto", help="as for trainers")
    parser.add_argument("--threads", type=whole_number, help="compute threads per rank (default: cores / ranks)")
    parser.add_argument("--dataset", default="mnist", help="checks its checksums; or none (default: %(default)s)")
    parser.add_argument("--runs-folder", metavar="FOLDER", help="default: the site's, else runs")
    parser.add_argument("--format", choices=["text", "json"], default="text", help="default: %(default)s")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the ranks too, as Ctrl-C does
    target = read_target(options, variables=os.environ)

    def show(line: str) -> None:
        print(f"{time.monotonic() - began:5.1f} s  {line}", file=sys.stderr, flush=True)

    if target.hosts:
        show(f"asking {', '.join(target.hosts)}")
    survey = ask_hosts(target)
    results = [judge(check, target, survey) for check in OF_HOSTS]
    if target.location == "job" and not NEEDED_BY_RANKS & set(_named(results, "failed")):
        survey.exchange = start_ranks(target, show=show)
    results += [judge(check, target, survey) for check in OF_RANKS]
    failed, seconds = _named(results, "failed"), time.monotonic() - began
    if options.format == "json":
        found = {
            "result": "failed" if failed else "ok",
            "seconds": seconds,
            "site": target.site.name,
            "location": target.location,
            "hosts": target.hosts,
            "checks": [asdict(each) for each in results],
            "allreduce": survey.exchange if isinstance(survey.exchange, dict) else None,
        }
        print(json.dumps(found, indent=1))
    else:
        rows = [[each.check, each.result, "\n".join(each.lines)] for each in results]
        print(tabulate(rows, headers=["check", "result", "finding"], tablefmt="plain", disable_numparse=True))
        print(f"{summary(results)}, in {seconds:.1f} s")
    return EXIT_CODE_USER_ERROR if failed else 0


def _named(results: Sequence[CheckResult], result: str) -> list[str]:
    """Return the names of checks with a result."""
    return [each.check for each in results if each.result == result]


def summary(results: Sequence[CheckResult]) -> str:
    """Return how many checks passed, and which failed or were not made."""
    line = f"{len(_named(results, 'ok'))} of {counted(len(results), 'check')} passed"
    for result in ("failed", "not checked"):
        names = _named(results, result)
        line += f"; {result}: {', '.join(names)}" if names else ""
    return line
