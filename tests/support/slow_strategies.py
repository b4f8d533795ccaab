"""The experiment `slow-links`: strategies over links of known bandwidth, each rank on a host of its own.

    python tests/support/slow_strategies.py runs/slow-links                   10 and 50 Mbit/s; as root
    python tests/support/slow_strategies.py runs/slow-links --links 10/5 --only 'allreduce-torch*'
    python -m analysis strategies runs/slow-links

The hosts are network namespaces (`two_hosts.py`); the site of a run is named after its link. Finished runs are not run
again.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from slow_link import AS_ROOT, start_on
from two_hosts import Link, several_hosts

from common.run_folder.records import RUN_FILE, read_run
from launch.experiments.plan import only_matching, read_plan
from launch.starting.processes import PROGRAMS

NAMES = ["a", "b"]
LINKS = ("10/5", "50/5")  # Mbit/s, and milliseconds of latency


def missing(plan, folder):
    """Return the runs of a plan that are not finished in a folder."""
    return [
        run
        for run in plan.runs
        if not ((folder / run.name / RUN_FILE).is_file() and read_run(folder / run.name).state == "finished")
    ]


def train(hosts, start, run, *, folder):
    """Make a run, with a rank on each host.

    Raises:
        RuntimeError: it failed; its output is in the message.
    """
    program, arguments = PROGRAMS[run.cell.keys.framework], run.arguments(folder)
    command = start.command(program, np=run.cell.np, controller=run.cell.keys.controller, arguments=arguments)
    # After the site that the launcher gives, which knows no links.
    done = hosts.run("a", [*command, "--site", f"link-{folder.name}"], environment=AS_ROOT)
    if done.returncode:
        raise RuntimeError(f"{run.name} failed: {done.stdout[-3000:]}{done.stderr[-3000:]}")


def study(plan, folder, link):
    own = folder / f"{8e-6 * link.bytes_per_second:g}mbit"
    runs = missing(plan, own)
    if not runs:
        return
    with tempfile.TemporaryDirectory() as place, several_hosts(Path(place), names=NAMES, link=link) as hosts:
        start = start_on(hosts, Path(place))
        for number, run in enumerate(runs, start=1):
            print(f"{own.name}: {number} of {len(runs)}: {run.name}", flush=True)
            train(hosts, start, run, folder=own)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--links", nargs="+", default=LINKS, metavar="MBITS/MS")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="CELL", help="patterns of names of cells")
    options = parser.parse_args()
    plan = only_matching(read_plan("slow-links", runs_folder=options.folder.parent), options.only)
    for rate, milliseconds in (map(float, word.split("/")) for word in options.links):
        study(plan, options.folder, Link(bytes_per_second=rate * 1e6 / 8, latency_seconds=milliseconds / 1e3))


if __name__ == "__main__":
    sys.exit(main())
