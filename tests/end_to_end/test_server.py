"""`--strategy server` on four processes: against NumPy, replayed, left by a worker.

That servers in step are all-reduce is in `test_same_training.py`, their resumption in `test_resumed.py`. The global
batch is the same with 1, 2 and 3 servers, and so with 3, 2 and 1 workers.
"""

from pathlib import Path

import numpy as np
import pytest
from by_hand import STEPS, Case, by_hand
from jobs import Jobs, jobs_in, keras_in_ci, relative_difference

from common.parameter_server.messages import HEADER_BYTES
from common.parameter_server.schedule import load_schedule

pytestmark = pytest.mark.ranks

RANKS, GLOBAL = 4, 96


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(tmp_path_factory.mktemp("server"), jobs_in(Path(__file__).with_name("server.toml")))


@keras_in_ci
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_servers_update_as_one_process_would(jobs, framework, servers):
    """With one, two and three shards; with three there is one worker."""
    run, workers = jobs.run(framework, f"mlp{servers}"), RANKS - servers
    expected = by_hand(Case(batch_sizes=(GLOBAL // 2, GLOBAL // 2)), run)
    for name, array in jobs.weights(framework, f"mlp{servers}").items():
        assert relative_difference(array, expected[-1][name]) < 1e-12, name
    sharing = run.record.sharing
    assert sharing.servers == servers and len(sharing.workers) == workers
    parameters = 152650 * 8
    assert sharing.formula_bytes == 2 * parameters and sharing.staleness is None
    for worker in sharing.workers:
        assert (worker.updates, worker.images) == (2 * STEPS, 2 * STEPS * GLOBAL // workers)
        # Beside the vectors a header per message.
        assert worker.sent_bytes == worker.received_bytes == parameters + HEADER_BYTES * servers
    assert run.record.world.size == workers


@keras_in_ci
@pytest.mark.parametrize("name", ["free", pytest.param("rare", marks=pytest.mark.ci)])
def test_a_free_run_is_repeated_bit_for_bit(jobs, framework, name):
    """The first one was also resumed inside an epoch, from where all workers had met."""
    run, again = jobs.run(framework, name), jobs.run(framework, f"{name}_replayed")
    assert run.record.status.resumed_after_steps == ([3] if name == "free" else [])
    assert run.record.hashes == again.record.hashes
    assert load_schedule(run.folder) == load_schedule(again.folder)
    for ours, theirs in zip(run.epochs, again.epochs, strict=True):
        assert (ours.weights_hash, ours.training_loss) == (theirs.weights_hash, theirs.training_loss)


@keras_in_ci
def test_free_workers_share_the_samples_of_an_epoch(jobs, framework):
    run = jobs.run(framework, "free_replayed")
    schedule, sharing = load_schedule(run.folder), run.record.sharing
    assert len(schedule.workers) == 2 * STEPS * 2
    assert [worker.updates for worker in sharing.workers] == [schedule.workers.count(rank) for rank in range(2)]
    # Weights for the evaluation, which workers get when they meet, do not count.
    assert all(worker.sent_bytes == worker.received_bytes for worker in sharing.workers)
    assert sum(sharing.staleness.values()) == 2 * len(schedule.workers)  # at each of two servers
    assert max(map(int, sharing.staleness)) > 0 and sharing.clock_lead is None
    assert all(sorted(sources) == sorted(schedule.workers) for sources in schedule.sources)


@pytest.mark.ci
def test_no_worker_is_further_ahead_than_allowed(jobs, framework):
    """One of three workers is slow, so that the others wait for it; they do other parts of the work than it."""
    run = jobs.run(framework, "bounded")
    schedule, most, first = load_schedule(run.folder), 0, 0
    for items, *_ in schedule.meetings:
        begun = [0, 0, 0]
        for worker in schedule.workers[first:items]:
            begun[worker] += 1
            most = max(most, begun[worker] - max(min(begun), 1))
        first = items
    assert most == 1 and run.record.sharing.clock_lead == 1


@pytest.mark.ci
def test_pushes_and_fetches_may_be_rarer_than_batches(jobs, framework):
    """Each worker pushes after two batches and fetches after three, and what is left at the end of the epoch."""
    run = jobs.run(framework, "rare")
    schedule, first = load_schedule(run.folder), 0
    taken = [0, 0, 0]
    for items, messages in schedule.meetings:
        for worker in range(3):
            drawn = schedule.workers[first:items].count(worker)
            # Of 6 batches four end with a message, as 6 is the least common multiple; then one more at the end.
            taken[worker] += sum(number % 2 == 0 or number % 3 == 0 for number in range(1, drawn + 1)) + (drawn > 0)
        assert messages == sum(taken)
        first = items
    (sources,), (staleness,) = schedule.sources, schedule.staleness
    for worker, share in enumerate(run.record.sharing.workers):
        own = [lag for source, lag in zip(sources, staleness, strict=True) if source == worker]
        pushes = len(own) - own.count(-1)
        assert share.updates == schedule.workers.count(worker) > pushes
        gradient_bytes = run.record.sharing.formula_bytes / (1 / 2 + 1 / 3)
        assert share.sent_bytes * share.updates == pytest.approx(pushes * gradient_bytes + len(own) * HEADER_BYTES)


@pytest.mark.ci
def test_workers_average_the_statistics_of_batch_norm(jobs, framework):
    """They are each worker's own, while the weights are the servers'."""
    weights = jobs.weights(framework, "resnet34")
    means = [array for name, array in weights.items() if name.endswith("running_mean")]
    assert means and all(np.abs(mean).max() > 0 for mean in means)
    assert all(np.isfinite(array).all() for array in weights.values())


@pytest.mark.ci
def test_the_others_do_the_work_of_a_worker_that_leaves(jobs, framework):
    schedule = load_schedule(jobs.run(framework, "left").folder)
    assert schedule.workers.count(1) == 2 * 2 and len(schedule.workers) == 2 * STEPS * 2
