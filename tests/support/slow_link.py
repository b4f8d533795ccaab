"""Runs over links of known bandwidth and latency, and what the compute-plus-communication model finds from their times.

    python tests/support/slow_link.py runs/slow-link          all links, 3 runs each; an hour, as root
    python tests/support/slow_link.py runs/slow-link --repeats 1 --links 20/50   over one link of 20 Mbit/s and 50 ms

Each rank has a host of its own (`two_hosts.py`). The model assumes a ring whose passes each take one latency: Open MPI
runs that if asked to (`RING`). Runs that are there already are not run again. What is to be expected:

- a bare ring (`ring_worker.py`): both are found, the bandwidth 5 % low, as packets hold more than gradients;
- the all-reduces of training, by Horovod's timeline: the bandwidth is found. The latency is where it makes up much of
  their time; rank 0 may begin a latency before the last rank does, and Gloo takes two a pass, as receivers report first
  that they are ready;
- training times: every update also waits until all ranks have agreed that its gradients are there, in two of Horovod's
  cycles. With MPI that takes some 5 latencies on any number of ranks; the model has no term for it, and up to 4 ranks
  it looks like bytes: a bandwidth found too low, by the share of these latencies in the time of an update.
"""

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate
from two_hosts import INTERFACE, SSH_PORT, Link, several_hosts

from analysis.questions.scaling.curves import studies_of, work_of
from analysis.questions.scaling.fits import fits_of
from analysis.questions.scaling.models import EXCHANGE, Work, fit
from analysis.runs.cells import cells_of
from analysis.runs.reading import load_runs
from analysis.runs.table import images_trained, runs_in
from common.run_folder.records import RUN_FILE, TIMELINE_FILE
from launch.sites.site_files import read_launch_site
from launch.starting.launchers import Launcher, Slots

NAMES = ["a", "b", "c", "d"]
SIZES = [1, 2, 3, 4]
UPDATES = 12
GLOBAL_BATCH = 24  # which all numbers of ranks divide; small, for two cores stand in for four hosts
IMAGES = GLOBAL_BATCH * UPDATES
# The ring for every size of message, and each pass sent at once: by itself Open MPI takes other ways from some sizes
# on, and asks the receiver first, two latencies more, from 64 kB on.
RING = {
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
    "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",
    "OMPI_MCA_btl_tcp_eager_limit": "16000000",
    "OMPI_MCA_btl_tcp_rndv_eager_limit": "16000000",
    "OMPI_MCA_btl_tcp_max_send_size": "16000000",
    "OMPI_MCA_mpi_yield_when_idle": "1",  # as trainers set it: there are fewer cores than hosts
}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
LINKS = [
    Link(bytes_per_second=megabits * 1e6 / 8, latency_seconds=milliseconds / 1e3)
    for megabits in (10, 50)
    for milliseconds in (5, 20)
]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a fit says of a link.

    Attributes:
        latency_seconds, bytes_per_second: of the fit; bandwidth is infinite where it finds no limit.
    """

    latency_seconds: float
    bytes_per_second: float

    @classmethod
    def of(cls, found):
        """Return it from a fit of compute and exchange."""
        _, latency, per_byte = found.values
        return cls(latency_seconds=latency, bytes_per_second=1 / per_byte if per_byte else float("inf"))

    def against(self, link):
        """Return bandwidth and latency as multiples of what was set."""
        return self.bytes_per_second / link.bytes_per_second, self.latency_seconds / link.latency_seconds


def start_on(hosts, folder):
    """Return how ranks are started on these hosts, each with one."""
    file = folder / "slow.toml"
    file.write_text(
        '[launch]\ntitle = "hosts on slow links"\nsource = "a test"\nchecked = 2026-11-21\nscheduler = "hosts"\n'
        f'launcher = "mpirun"\nnodes = ["hosts"]\nnetwork_interface = "{INTERFACE}"\n'
        f'[launch.hosts]\nssh_port = {SSH_PORT}\nidentity_file = "{hosts.identity}"\n'
    )
    return Launcher(site=read_launch_site(str(file)), hosts=[Slots(name, 1) for name in hosts.addresses], node="hosts")


def train(hosts, start, *, controller, ranks, folder, seed):
    """Train on so many hosts, unless this has been done; keep the timeline of what they exchange."""
    name = f"{controller}-np{ranks}-{seed}"
    if (folder / name / RUN_FILE).is_file() and json.loads((folder / name / RUN_FILE).read_text())["totals"]:
        return
    arguments = [
        *("--device", "cpu", "--threads", "1", "--model", "mlp", "--dataset", f"synthetic:{IMAGES}x28x28x1x10"),
        *("--batch-size", str(GLOBAL_BATCH // ranks), "--epochs", "1", "--seed", str(seed)),
        *("--runs-folder", str(folder), "--name", name),
        *(["--horovod-timeline"] if ranks > 1 else []),
    ]
    command = start.command("torch_impl/train.py", np=ranks, controller=controller, arguments=arguments)
    alone = command[command.index("python") :]
    done = hosts.run("a", command if ranks > 1 else alone, environment={**RING, **AS_ROOT})
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stdout[-3000:]}{done.stderr[-3000:]}")


def fit_of_training(runs):
    """Return what `analysis scaling` finds from the training times of runs."""
    (study,), _ = studies_of(cells_of(runs), margin=0.01)
    fits, notes = fits_of(study, project=None, target_site=None)
    found = [one.fit for one in fits if one.kind == "strong" and one.fit.model is EXCHANGE]
    assert found, notes
    return Found.of(found[0])


def fit_of_exchange(runs):
    """Return what the model finds if of the communication only the all-reduces count, as Horovod's timelines time them.

    The ranks' compute is that of one rank, shared out.
    """
    (study,), _ = studies_of(cells_of(runs), margin=0.01)
    work = work_of(study, "strong")
    assert work is not None
    alone = statistics.median(run.training_seconds for run in runs_in(runs) if run.np == 1)
    seconds = [alone / run.np + (exchange_seconds(run.folder) if run.np > 1 else 0.0) for run in runs_in(runs)]
    return _fit(runs["np"].tolist(), seconds, work)


def exchange_seconds(folder):
    """Return the seconds in which gradients were summed, by a run's timeline, which lists each tensor of a sum."""
    text = (folder / TIMELINE_FILE).read_text().rstrip().rstrip(",")
    events = json.loads(text if text.endswith("]") else f"{text}]")
    began = {}
    sums = {}  # beginning -> end, microseconds
    for event in events:
        if event.get("ph") == "B" and event["name"] in ("MPI_ALLREDUCE", "GLOO_ALLREDUCE"):
            began[event["pid"]] = event["ts"]
        elif event.get("ph") == "E" and event["pid"] in began:
            sums[began.pop(event["pid"])] = event["ts"]
    end, total = 0, 0
    for start, stop in sorted(sums.items()):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return 1e-6 * total


def fit_of_sums(rows, *, numbers):
    """Return what the model finds from the (ranks, seconds) of a sum by `ring_worker.py`."""
    compute = 1e-3 * min(seconds for _, seconds in rows)  # there is none; the model takes one rank for its base
    work = Work(images=1, batch=1, weak=False, gradient_bytes=4.0 * numbers)
    sizes = [1, *(ranks for ranks, _ in rows)]
    return _fit(sizes, [compute, *(seconds + compute / ranks for ranks, seconds in rows)], work)


def _fit(ranks, seconds, work):
    found = fit(EXCHANGE, ranks, seconds, work)
    assert found is not None, "there are enough numbers of ranks"
    return Found.of(found)


def study(folder, *, link, controllers, repeats):
    """Run what is missing over one link; return the runs of each controller, with those on one rank.

    Args:
        folder: `alone` in it takes the runs on one rank, a folder of the link's the others.
        link: between all hosts.
        controllers: mpi, gloo.
        repeats: runs on each number of ranks.
    """
    own = folder / f"{8e-6 * link.bytes_per_second:g}mbit-{1e3 * link.latency_seconds:g}ms"
    with (
        tempfile.TemporaryDirectory() as place,
        several_hosts(Path(place), names=NAMES, link=link) as hosts,
    ):
        start = start_on(hosts, Path(place))
        for seed in range(1, repeats + 1):
            train(hosts, start, controller="none", ranks=1, folder=folder / "alone", seed=seed)
            for controller in controllers:
                for ranks in SIZES[1:]:
                    train(hosts, start, controller=controller, ranks=ranks, folder=own, seed=seed)
    runs = load_runs([folder / "alone", own]).runs
    return {controller: runs[runs["controller"].isin(["none", controller])] for controller in controllers}


def row_of(controller, link, runs):
    """Return a row of the table: what was set, what was found."""
    row = [controller, f"{8e-6 * link.bytes_per_second:g}", f"{1e3 * link.latency_seconds:g}"]
    for found in (fit_of_exchange(runs), fit_of_training(runs)):
        bandwidth, latency = found.against(link)
        row += [f"{8e-6 * found.bytes_per_second:.3g}", f"{bandwidth:.2f}"]
        row += [f"{1e3 * found.latency_seconds:.3g}", f"{latency:.2f}"]
    updates = images_trained(next(runs_in(runs))) / GLOBAL_BATCH
    for ranks in SIZES[1:]:
        rest = [run.training_seconds - exchange_seconds(run.folder) for run in runs_in(runs) if run.np == ranks]
        row.append(f"{statistics.median(rest) / updates / link.latency_seconds:.1f}")
    return row


HEADINGS = [
    *("controller", "Mbit/s", "ms"),
    *(f"{what}{of}" for of in (" of exchange", " of training") for what in ("Mbit/s", "ratio", "ms", "ratio")),
    *(f"rest of update on {ranks}, in latencies" for ranks in SIZES[1:]),
]


def main():
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--controllers", nargs="+", default=["mpi", "gloo"])
    parser.add_argument("--links", nargs="+", metavar="MBITS/MS", help="default: 10 and 50 Mbit/s with 5 and 20 ms")
    options = parser.parse_args()
    links = LINKS
    if options.links:
        pairs = [tuple(map(float, word.split("/"))) for word in options.links]
        links = [Link(bytes_per_second=rate * 1e6 / 8, latency_seconds=ms / 1e3) for rate, ms in pairs]
    rows = []
    for link in links:
        found = study(options.folder, link=link, controllers=options.controllers, repeats=options.repeats)
        rows += [row_of(controller, link, runs) for controller, runs in found.items()]
        print(tabulate(rows[-len(found) :], headers=HEADINGS, tablefmt="github", disable_numparse=True), flush=True)
    print(tabulate(rows, headers=HEADINGS, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
