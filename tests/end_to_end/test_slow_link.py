"""A link of known bandwidth and latency is found by the model of `analysis scaling`, from times of a bare ring.

The model assumes a ring whose passes each take one latency: Open MPI runs that if asked to (`RING`). The bandwidth is
found 5 % low, as packets hold more than gradients. Training times show neither: every update also waits until all ranks
have agreed that its gradients are there, some 5 latencies on any number of ranks, which up to 4 ranks looks like bytes.
"""

import json

import pytest
from slow_link import AS_ROOT, start_on
from two_hosts import Link, several_hosts

from analysis.questions.scaling.models import EXCHANGE, Work, fit

pytestmark = pytest.mark.cluster

WITHIN = pytest.approx(1.0, abs=0.15)
NUMBERS = 100_000  # of a vector: 400 kB
SUMS = 5  # of which the fastest counts: other programs can only add to the seconds of a sum
# So slow that what a busy machine adds, milliseconds in a sum, is little beside the second that a sum takes.
LINK = Link(bytes_per_second=1e6, latency_seconds=0.05)
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


def test_the_model_finds_the_link_of_a_bare_ring(tmp_path):
    with several_hosts(tmp_path, names=["a", "b", "c", "d"], link=LINK) as hosts:
        # Before other programs of a busy machine, which else add a quarter to the latency.
        ring = ["nice", "-n", "-10", "python", "tests/support/ring_worker.py", str(NUMBERS), str(SUMS)]
        done = hosts.run("a", [*start_on(hosts, tmp_path).words(np=4), *ring], environment={**RING, **AS_ROOT})
    assert done.returncode == 0, done.stderr
    ranks, seconds = zip(*(json.loads(line) for line in done.stdout.splitlines()), strict=True)
    compute = 1e-3 * min(seconds)  # there is none; the model takes one rank for its base
    work = Work(images=1, batch=1, weak=False, gradient_bytes=4.0 * NUMBERS)
    whole = [sum_seconds + compute / size for size, sum_seconds in zip(ranks, seconds, strict=True)]
    _, latency, per_byte = fit(EXCHANGE, [1, *ranks], [compute, *whole], work).values
    assert per_byte * LINK.bytes_per_second == WITHIN and latency / LINK.latency_seconds == WITHIN
