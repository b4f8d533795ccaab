"""What the compute-plus-communication model finds from times over a link of known bandwidth and latency.

Each rank has a host of its own (`two_hosts.py`). The model assumes a ring whose passes each take one latency: Open MPI
runs that if asked to (`RING`). What is to be expected:

- a bare ring (`ring_worker.py`): both are found, the bandwidth 5 % low, as packets hold more than gradients;
- the all-reduces of training, by Horovod's timeline: the bandwidth is found. The latency is where it makes up much of
  their time; rank 0 may begin a latency before the last rank does;
- training times: every update also waits until all ranks have agreed that its gradients are there, in two of Horovod's
  cycles. With MPI that takes some 5 latencies on any number of ranks; the model has no term for it, and up to 4 ranks
  it looks like bytes: a bandwidth found too low, by the share of these latencies in the time of an update.
"""

import json
import statistics

from two_hosts import INTERFACE, SSH_PORT, several_hosts

from analysis.questions.scaling.curves import studies_of, work_of
from analysis.questions.scaling.fits import fits_of
from analysis.questions.scaling.models import EXCHANGE, Work, fit
from analysis.runs.cells import cells_of
from analysis.runs.reading import load_runs
from analysis.runs.table import runs_in
from common.run_folder.records import TIMELINE_FILE
from launch.sites.site_files import read_launch_site
from launch.starting.launchers import Launcher, Slots

NAMES = ["a", "b", "c", "d"]
GLOBAL_BATCH = 24  # which all numbers of ranks divide; small, for two cores stand in for four hosts
IMAGES = 12 * GLOBAL_BATCH
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


def start_on(hosts, folder):
    """Return how ranks are started on these hosts, each with one."""
    file = folder / "slow.toml"
    file.write_text(
        '[launch]\ntitle = "hosts on slow links"\nsource = "a test"\nchecked = 2026-11-21\nscheduler = "hosts"\n'
        f'launcher = "mpirun"\nnodes = ["hosts"]\nnetwork_interface = "{INTERFACE}"\n'
        f'[launch.hosts]\nssh_port = {SSH_PORT}\nidentity_file = "{hosts.identity}"\n'
    )
    return Launcher(site=read_launch_site(str(file)), hosts=[Slots(name, 1) for name in hosts.addresses], node="hosts")


def trained(folder, *, link):
    """Train on one to four hosts over a link; return the runs, with timelines of what they exchange."""
    with several_hosts(folder, names=NAMES, link=link) as hosts:
        start = start_on(hosts, folder)
        for ranks in range(1, len(NAMES) + 1):
            arguments = [
                *("--device", "cpu", "--threads", "1", "--model", "mlp", "--dataset", f"synthetic:{IMAGES}x28x28x1x10"),
                *("--batch-size", str(GLOBAL_BATCH // ranks), "--epochs", "1"),
                *("--runs-folder", str(folder / "runs"), "--name", f"np{ranks}"),
                *(["--horovod-timeline"] if ranks > 1 else []),
            ]
            command = start.command("torch_impl/train.py", np=ranks, controller="mpi", arguments=arguments)
            alone = command[command.index("python") :]
            done = hosts.run("a", command if ranks > 1 else alone, environment={**RING, **AS_ROOT})
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return load_runs([folder / "runs"]).runs


def fit_of_training(runs, *, link):
    """Return what `analysis scaling` finds from the training times of runs, as `_against` does."""
    (study,), _ = studies_of(cells_of(runs), margin=0.01)
    fits, notes = fits_of(study, project=None, target_site=None)
    found = [one.fit for one in fits if one.kind == "strong" and one.fit.model is EXCHANGE]
    assert found, notes
    return _against(link, found[0])


def fit_of_exchange(runs, *, link):
    """Return what the model finds if of the communication only the all-reduces count, as Horovod's timelines time them.

    The ranks' compute is that of one rank, shared out.
    """
    (study,), _ = studies_of(cells_of(runs), margin=0.01)
    alone = statistics.median(run.training_seconds for run in runs_in(runs) if run.np == 1)
    seconds = [alone / run.np + (exchange_seconds(run.folder) if run.np > 1 else 0.0) for run in runs_in(runs)]
    return _against(link, fit(EXCHANGE, runs["np"].tolist(), seconds, work_of(study, "strong")))


def exchange_seconds(folder):
    """Return the seconds in which gradients were summed, by a run's timeline, which lists each tensor of a sum."""
    text = (folder / TIMELINE_FILE).read_text().rstrip().rstrip(",")
    events = json.loads(text if text.endswith("]") else f"{text}]")
    began = {}
    sums = {}  # beginning -> end, microseconds
    for event in events:
        if event.get("ph") == "B" and event["name"] == "MPI_ALLREDUCE":
            began[event["pid"]] = event["ts"]
        elif event.get("ph") == "E" and event["pid"] in began:
            sums[began.pop(event["pid"])] = event["ts"]
    end, total = 0, 0
    for start, stop in sorted(sums.items()):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return 1e-6 * total


def fit_of_sums(rows, *, numbers, link):
    """Return what the model finds from the (ranks, seconds) of a sum by `ring_worker.py`."""
    compute = 1e-3 * min(seconds for _, seconds in rows)  # there is none; the model takes one rank for its base
    work = Work(images=1, batch=1, weak=False, gradient_bytes=4.0 * numbers)
    sizes = [1, *(ranks for ranks, _ in rows)]
    return _against(link, fit(EXCHANGE, sizes, [compute, *(seconds + compute / n for n, seconds in rows)], work))


def _against(link, found):
    """Return bandwidth and latency of a fit as multiples of what was set; infinite where it finds no limit."""
    _, latency, per_byte = found.values
    bandwidth = 1 / per_byte if per_byte else float("inf")
    return bandwidth / link.bytes_per_second, latency / link.latency_seconds
