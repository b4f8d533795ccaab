"""Ranks with parts of a batch of their own, passes, Adasum and stragglers, against NumPy.

That the update of a global batch does not depend on its parts is in `test_same_training.py`.
"""

import numpy as np
import pytest
from by_hand import (
    BATCH,
    DATA,
    EPOCHS,
    MLP,
    RATE,
    STEPS,
    Case,
    batches,
    by_hand,
    first_weights,
    gradient,
    validation_loss,
)
from jobs import Jobs, keras_in_ci, relative_difference, resumed, train

pytestmark = pytest.mark.ranks

PARTS, SHARES = (45, 19), ("--shares", "2.4:1")  # of 64: 45.18 and 18.82, so the last image goes to the second
CASES = {
    "allreduce": Case(None, batch_sizes=PARTS, more=SHARES),
    "equal": Case(None, more=("--shares", "7:7")),
    "averaging": Case(2, warmup=3, batch_sizes=PARTS, more=SHARES),
    "averaging_own": Case(2, average_state=False, batch_sizes=PARTS, more=SHARES),
}
CNN = [*DATA, "--model", "cnn", "--steps-per-epoch", "6", *SHARES]
PASSES = ["--batch-size", str(BATCH // 4), "--backward-passes-per-step", "4"]
MEASURED = [*DATA, "--model", "mlp", "--shares", "auto", "--checkpoint-minutes", "1e-9"]


def all_jobs():
    """Return the jobs of two ranks, and some of three and four."""
    yield from (train(name, *case.arguments) for name, case in CASES.items())
    yield train("passes", *MLP, *PASSES)
    yield train("more_passes", *CNN, "--backward-passes-per-step", "2")
    yield train("adasum2", *MLP, "--adasum")
    yield train("adasum4", *MLP, "--adasum", launcher="mpirun4")
    yield train("slow", *CASES["equal"].arguments, "--slow", "1:100")
    yield train("slow_averaging", *CASES["averaging"].arguments, "--slow", "0:200:0.8")
    yield train("started", *MLP, "--epochs", "1", "--start-weights", "runs/averaging", after=("averaging",))
    yield resumed("started_resumed", "started", "--epochs", str(EPOCHS))
    yield train("auto", *MEASURED, patch="stopped")
    yield resumed("auto_resumed", "auto", patch="slow_source_of_one")
    # Two workers, one of them slow, and a server: the update is that of one process here, too.
    server = ["--strategy", "server", "--servers", "1", "--slow", "0:2", "--threads", "1"]
    yield train("server", *CASES["allreduce"].arguments, *server, launcher="mpirun3")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(tmp_path_factory.mktemp("unequal"), all_jobs())


def check_weights(weights, expected, *, tolerance):
    assert weights.keys() == expected.keys()
    apart = {name: relative_difference(weights[name], array) for name, array in expected.items()}
    assert max(apart.values()) < tolerance, apart


@keras_in_ci
@pytest.mark.parametrize("name", CASES)
def test_shares_are_weighted_by_images_as_worked_out_by_hand(jobs, framework, name):
    """With all-reduce the formula is that of one process, whose batch is the global batch."""
    case, run = CASES[name], jobs.run(framework, name)
    assert run.record.data.batch_sizes == list(case.batch_sizes) and run.record.data.global_batch_size == 2 * BATCH
    expected = by_hand(case, run)
    check_weights(jobs.weights(framework, name), expected[-1], tolerance=1e-12)
    for epoch, weights in zip(run.epochs, expected, strict=True):
        assert epoch.validation_loss == pytest.approx(validation_loss(weights, run), rel=1e-12)


@keras_in_ci
def test_shares_count_where_weights_are_averaged(jobs, framework):
    """Else the proof above would show nothing of averaging."""
    averaged, equal = (jobs.weights(framework, name) for name in ("averaging_own", "equal"))
    assert min(relative_difference(averaged[name], equal[name]) for name in equal) > 1e-6


@pytest.mark.ci
def test_servers_in_step_weight_shares_by_images(jobs, framework):
    expected = by_hand(CASES["allreduce"], jobs.run(framework, "server"))[-1]
    check_weights(jobs.weights(framework, "server"), expected, tolerance=1e-12)


@keras_in_ci
def test_passes_add_up_to_a_batch(jobs, framework):
    """Four passes of a quarter of the batch."""
    run = jobs.run(framework, "passes")
    assert (run.record.data.global_batch_size, run.record.data.steps_per_epoch) == (2 * BATCH, STEPS)
    check_weights(jobs.weights(framework, "passes"), by_hand(Case(None), run)[-1], tolerance=1e-11)


@pytest.mark.ci
def test_passes_scale_the_learning_rate(jobs, framework):
    assert jobs.run(framework, "more_passes").epochs[-1].learning_rate == pytest.approx(0.01 * 2 * 2)


def adasum_by_hand(run, *, size):
    """Return the final weights of mlp: momentum per rank, and Adasum of the ranks' updates (arXiv 2006.02924)."""

    def combined(updates):
        while len(updates) > 1:
            updates = [
                (1 - (a * b).sum() / (2 * (a * a).sum())) * a + (1 - (a * b).sum() / (2 * (b * b).sum())) * b
                for a, b in zip(updates[::2], updates[1::2], strict=True)
            ]
        return updates[0]

    weights, buffers = first_weights(), [dict.fromkeys(first_weights(), np.zeros(())) for _ in range(size)]
    for update in range(EPOCHS * STEPS):
        for rank, (pixels, labels) in enumerate(batches(run, update, batch_sizes=[BATCH] * size)):
            found = gradient(weights, pixels, labels)
            buffers[rank] = {name: 0.9 * buffers[rank][name] + found[name] for name in found}
        updates = {name: combined([-RATE * buffer[name] for buffer in buffers]) for name in weights}
        weights = {name: array + updates[name] for name, array in weights.items()}
    return weights


@pytest.mark.ci
@pytest.mark.parametrize("size", [2, 4])
def test_adasum_is_the_formula_worked_out_by_hand(jobs, framework, size):
    run = jobs.run(framework, f"adasum{size}")
    check_weights(jobs.weights(framework, f"adasum{size}"), adasum_by_hand(run, size=size), tolerance=1e-12)


@keras_in_ci
@pytest.mark.parametrize(
    ("slow", "plain"), [("slow", "equal"), pytest.param("slow_averaging", "averaging", marks=pytest.mark.ci)]
)
def test_a_straggler_takes_time_and_changes_nothing_else(jobs, framework, slow, plain):
    late, quick = (jobs.run(framework, name) for name in (slow, plain))
    assert late.epochs[-1].weights_hash == quick.epochs[-1].weights_hash
    assert late.record.totals.training_seconds > 2 * quick.record.totals.training_seconds


@pytest.mark.ci
def test_a_run_starts_from_the_weights_of_another(jobs, framework):
    """As a second run of the formula would, whose momentum starts at 0; also after a resume."""
    run, source = jobs.run(framework, "started_resumed"), jobs.run(framework, "averaging")
    assert run.record.hashes.initial_weights == source.record.hashes.final_weights
    assert run.record.config.training.start_weights == "runs/averaging"
    expected = by_hand(Case(None), run, start=jobs.weights(framework, "averaging"))[-1]
    check_weights(jobs.weights(framework, "started_resumed"), expected, tolerance=1e-11)


@pytest.mark.ci
def test_measured_shares_are_kept_when_a_run_is_resumed(jobs, framework):
    shown = [line for line in jobs.outcomes(framework, "auto")[0].stdout.splitlines() if line.startswith("batch:")]
    run = jobs.run(framework, "auto_resumed")
    assert sum(run.record.data.batch_sizes) == 2 * BATCH
    parts = " + ".join(map(str, run.record.data.batch_sizes))
    assert [line.split(" =")[0] for line in shown] in (
        [f"batch: {parts} (one part per rank, measured)"],
        [f"batch: {BATCH} x 2 ranks"],
    )
    assert shown[0] in jobs.outcomes(framework, "auto_resumed")[0].stdout
    assert np.isfinite([epoch.training_loss for epoch in run.epochs]).all()
