"""Averaging, parts of a batch, passes, Adasum and stragglers on several ranks: against NumPy, and what is exchanged.

That averaging after every update is all-reduce, and that an update does not depend on its parts, is in
`test_same_training.py`.
"""

import itertools
import tomllib
from pathlib import Path

import numpy as np
import pytest
from by_hand import BATCH, EPOCHS, RATE, STEPS, Case, batches, by_hand, first_weights, gradient, validation_loss
from jobs import Jobs, jobs_in, keras_in_ci, relative_difference, train

from common.model.weights import load_weights, weights_hash
from common.run_folder.checkpoints import checkpoint_folders

pytestmark = pytest.mark.ranks

FILE = Path(__file__).with_name("formulas.toml")
CASES = {row.pop("name"): Case(**row) for row in tomllib.loads(FILE.read_text())["case"]}
DIFFERENT = [name for name in CASES if name not in ("allreduce", "passes", "server")]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Also those of three and four ranks."""
    worked_out = [train(name, *case.arguments, launcher="mpirun3" if name == "server" else "mpirun2")
                  for name, case in CASES.items()]  # fmt: skip
    return Jobs(tmp_path_factory.mktemp("formulas"), [*worked_out, *jobs_in(FILE)])


def check_weights(weights, expected, *, tolerance):
    assert weights.keys() == expected.keys()
    apart = {name: relative_difference(weights[name], array) for name, array in expected.items()}
    assert max(apart.values()) < tolerance, apart


@keras_in_ci
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.ci] * (name == "server")) for name in CASES])
def test_a_run_is_the_formula_worked_out_by_hand(jobs, framework, name):
    case, run = CASES[name], jobs.run(framework, name)
    data = run.record.data
    assert (data.global_batch_size, data.steps_per_epoch) == (2 * BATCH, STEPS)
    if name != "passes":
        assert data.batch_sizes == list(case.batch_sizes)
    expected = by_hand(case, run)
    check_weights(jobs.weights(framework, name), expected[-1], tolerance=1e-11 if name == "passes" else 1e-12)
    for epoch, weights in zip(run.epochs, expected, strict=True):  # also where an epoch ends inside an interval
        assert epoch.validation_loss == pytest.approx(validation_loss(weights, run), rel=1e-12)


@keras_in_ci
def test_the_cases_differ(jobs, framework):
    """Else the proof above proves little: interval, state, warm-up and shares all count."""
    finals = [jobs.weights(framework, name) for name in DIFFERENT]
    for ours, theirs in itertools.combinations(finals, 2):
        assert min(relative_difference(ours[name], theirs[name]) for name in ours) > 1e-6


BYTES = tomllib.loads(FILE.read_text())["bytes"]


@keras_in_ci
@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_counted_where_they_are_exchanged(jobs, framework, name):
    run = jobs.run(framework, name)
    sharing, totals = run.record.sharing, run.record.totals
    for worker in sharing.workers:
        assert worker.sent_bytes == worker.received_bytes == BYTES[name]
        assert worker.updates == totals.steps and worker.images == BATCH * worker.updates
        assert 0 < worker.exchange_seconds < totals.training_seconds
    if name != "epoch":  # the ring's formula, of two ranks; it leaves the warm-up out
        assert (len(sharing.workers), sharing.formula_bytes) == (2, BYTES[name])


@keras_in_ci
def test_bytes_of_the_largest_entries_are_counted(jobs, framework):
    """Of 1,527 entries, 12 bytes each; a rank gets its own back, too."""
    sharing = jobs.run(framework, "topk").record.sharing
    counts = [(worker.sent_bytes, worker.received_bytes) for worker in sharing.workers]
    assert (counts, sharing.formula_bytes) == ([(18324, 36648)] * 2, 18324)


@keras_in_ci
def test_a_checkpoint_holds_what_each_rank_has(jobs, framework):
    (checkpoint,) = checkpoint_folders(jobs.run(framework, "whole").folder)
    ranks, average = (load_weights(checkpoint / f"{name}.safetensors") for name in ("ranks", "weights"))
    for name, array in average.items():
        own = [ranks[f"{rank}.weights.{name}"] for rank in range(2)]
        assert not np.array_equal(*own) and array == pytest.approx(np.mean(own, axis=0), rel=1e-5, abs=1e-7)
        assert not np.array_equal(*(ranks[f"{rank}.optimizer_state.{name}.momentum_buffer"] for rank in range(2)))
    final = jobs.weights(framework, "whole")
    assert weights_hash(final) == weights_hash(average)
    (aligned,) = checkpoint_folders(jobs.run(framework, "every2").folder)
    assert not (aligned / "ranks.safetensors").exists()  # all ranks have the same


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
    expected = by_hand(Case(), run, start=jobs.weights(framework, "averaging"))[-1]
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
