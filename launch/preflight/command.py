"""`python -m launch preflight`: what would make a job fail or mislead, found before it waits or runs.

    python -m launch preflight --np 2                            this machine
    python -m launch preflight --hosts node1:4,node2:4           several hosts, over ssh
    python -m launch preflight --site cte-power                  on a login node what can be checked there; else the job

Each failure is one line: the host, what is wrong, and how to fix it; the exit code is then 2.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from tabulate import tabulate

from common.distributed.console import counted
from common.errors import EXIT_CODE_USER_ERROR, UserError
from common.names import framework_here
from common.utils.command_line import whole_number, word
from launch.preflight.checks import check_allreduce, check_clocks, check_scheduler
from launch.preflight.host_checks import HOST_CHECKS, SET_UP, Answer, answer_of
from launch.preflight.survey import ask_hosts, start_ranks
from launch.preflight.target import read_target

CHECKS = ("hosts", "scheduler", *HOST_CHECKS, "clocks", "allreduce")
# No ranks are started where one of these failed: they would not get far.
NEEDED_BY_RANKS = ("hosts", "scheduler", "software", "horovod")
# Checks whose summary has to be the same on all hosts -> how to make it so.
EQUAL = {
    "software": f"{SET_UP}, name the same Python (`python` in the site file), and load the same MPI",
    "gpus": "Use hosts with equal GPUs: their times cannot be compared",
}

Row = tuple[str, str, list[str]]  # check; ok, failed or not checked; its lines


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
    parser.add_argument(
        "--framework", type=framework_here, choices=["torch", "keras", "both"], help="default: what is installed"
    )
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto", help="as for trainers")
    parser.add_argument("--threads", type=whole_number, help="compute threads per rank (default: cores / ranks)")
    parser.add_argument(
        "--memory-mb",
        type=whole_number,
        metavar="MB",
        help="what training takes of each rank, the framework aside",
    )
    parser.add_argument("--compile", action="store_true", help="as for trainers: PyTorch needs a C++ compiler")
    parser.add_argument("--dataset", default="mnist", help="checks its checksums; or none (default: %(default)s)")
    parser.add_argument("--runs-folder", type=word, metavar="FOLDER", help="default: the site's, else runs")
    parser.add_argument("--format", choices=["text", "json"], default="text", help="default: %(default)s")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    began = time.monotonic()
    target = read_target(options, variables=os.environ)

    def show(line: str) -> None:
        print(f"{time.monotonic() - began:5.1f} s  {line}", file=sys.stderr, flush=True)

    if target.hosts:
        show(f"asking {', '.join(target.hosts)}")
    answers = ask_hosts(target)
    answers[""] = {"scheduler": answer_of(check_scheduler, target)}
    report = None
    if target.location == "job" and not any(judge(check, answers)[1] == "failed" for check in NEEDED_BY_RANKS):
        try:
            report = start_ranks(target, show=show)
            answers[""]["clocks"] = answer_of(check_clocks, report)
            answers[""]["allreduce"] = answer_of(check_allreduce, report, target)
        except UserError as error:
            answers[""]["allreduce"] = (False, str(error))
    rows = [judge(check, answers) for check in CHECKS]
    failed, seconds = [check for check, result, _ in rows if result == "failed"], time.monotonic() - began
    if options.format == "json":
        found = {
            "result": "failed" if failed else "ok",
            "seconds": seconds,
            "site": target.launcher.site.name,
            "location": target.location,
            "hosts": target.hosts,
            "checks": [{"check": check, "result": result, "lines": lines} for check, result, lines in rows],
            "allreduce": report,
        }
        print(json.dumps(found, indent=1))
    else:
        table = [[check, result, "\n".join(lines)] for check, result, lines in rows]
        print(tabulate(table, headers=["check", "result", "finding"], tablefmt="plain", disable_numparse=True))
        passed = sum(result == "ok" for _, result, _ in rows)
        print(f"{passed} of {counted(len(rows), 'check')} passed, in {seconds:.1f} s")
    return EXIT_CODE_USER_ERROR if failed else 0


def judge(check: str, answers: Mapping[str, Mapping[str, Answer]]) -> Row:
    """Return the row of a check; `answers`: host -> check -> answer, host "" for checks whose lines name the host."""
    given = {host: found[check] for host, found in answers.items() if check in found}
    if not given:
        return check, "not checked", ["not needed at this site, only in the job, or only if the checks above pass"]
    failures = {host: text for host, (passed, text) in given.items() if not passed}
    texts = {host: text for host, (_, text) in given.items()}
    first = next(iter(texts))
    if check in EQUAL and not failures:
        failures = {
            host: f"{_only_in(text, texts[first])}, on {first} {_only_in(texts[first], text)}. {EQUAL[check]}"
            for host, text in texts.items()
            if text != texts[first]
        }
    if failures:
        return check, "failed", _by_line(failures)
    return check, "ok", _by_line(texts) if len(set(texts.values())) > 1 else [texts[first]]


def _by_line(texts: Mapping[str, str]) -> list[str]:
    """Return each line once, after the hosts that gave it."""
    hosts: dict[str, list[str]] = {}
    for host, text in texts.items():
        for line in text.splitlines():
            hosts.setdefault(line, []).append(host)
    return [f"{', '.join(names)}: {line}".removeprefix(": ") for line, names in hosts.items()]


def _only_in(text: str, other: str) -> str:
    """Return the parts of a summary that another one lacks."""
    return ", ".join(part for part in text.split(", ") if part not in other.split(", ")) or "nothing of it"
