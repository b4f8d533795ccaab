"""What the compute-plus-communication model finds from times over a link of known bandwidth and latency.

Each rank has a host of its own (`two_hosts.py`). The model assumes a ring whose passes each take one latency: Open MPI
runs that if asked to (`RING`). Of the times of a bare ring (`ring_worker.py`) both are found, the bandwidth 5 % low, as
packets hold more than gradients. Training times do not show them: every update also waits until all ranks have agreed
that its gradients are there, some 5 latencies on any number of ranks, which up to 4 ranks looks like bytes.
"""

from sites_and_jobs import own_site
from two_hosts import INTERFACE, SSH_PORT

from analysis.questions.scaling.models import EXCHANGE, Work, fit
from launch.sites.site_files import read_launch_site
from launch.starting.launchers import Launcher, Slots

NAMES = ["a", "b", "c", "d"]
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
    keys = {"ssh_port": SSH_PORT, "identity_file": hosts.identity}
    site = read_launch_site(
        own_site(folder, "hosts", name="slow", launcher="mpirun", network_interface=INTERFACE, hosts=keys)
    )
    return Launcher(site=site, hosts=[Slots(name, 1) for name in hosts.addresses], node="hosts")


def fit_of_sums(rows, *, numbers, link):
    """Return what the model finds from the (ranks, seconds) of a sum by `ring_worker.py`.

    Returns:
        Bandwidth and latency as multiples of what was set; infinite where it finds no limit.
    """
    compute = 1e-3 * min(seconds for _, seconds in rows)  # there is none; the model takes one rank for its base
    work = Work(images=1, batch=1, weak=False, gradient_bytes=4.0 * numbers)
    sizes = [1, *(ranks for ranks, _ in rows)]
    _, latency, per_byte = fit(EXCHANGE, sizes, [compute, *(seconds + compute / n for n, seconds in rows)], work).values
    bandwidth = 1 / per_byte if per_byte else float("inf")
    return bandwidth / link.bytes_per_second, latency / link.latency_seconds
