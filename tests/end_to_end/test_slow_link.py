"""Links of known bandwidth and latency are found by the model of `analysis scaling` (see `slow_link.py`)."""

import json

import pytest
from slow_link import AS_ROOT, NAMES, RING, fit_of_sums, start_on
from two_hosts import Link, several_hosts

pytestmark = pytest.mark.cluster

WITHIN = pytest.approx(1.0, abs=0.15)
NUMBERS = 100_000  # of a vector: 400 kB
SUMS = 5  # of which the fastest counts: other programs can only add to the seconds of a sum


def test_the_model_finds_the_link_of_a_bare_ring(tmp_path):
    # So slow that what a busy machine adds, milliseconds in a sum, is little beside the second that a sum takes.
    link = Link(bytes_per_second=1e6, latency_seconds=0.05)
    with several_hosts(tmp_path, names=NAMES, link=link) as hosts:
        start = start_on(hosts, tmp_path)
        ring = ["python", "tests/support/ring_worker.py", str(NUMBERS), str(SUMS)]
        done = hosts.run("a", [*start.words(np=len(NAMES)), *ring], environment={**RING, **AS_ROOT})
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    found = fit_of_sums(rows, numbers=NUMBERS, link=link)
    assert found == (WITHIN, WITHIN)
