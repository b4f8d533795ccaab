"""`--strategy averaging` on two ranks: against NumPy, what is exchanged, and what a checkpoint holds.

That averaging after every update is all-reduce is in `test_same_training.py`.
"""

import numpy as np
import pytest
from by_hand import BATCH, DATA, MLP, Case, by_hand, validation_loss
from jobs import Jobs, keras_in_ci, relative_difference, train

from common.model.weights import load_weights, weights_hash
from common.run_folder.checkpoints import checkpoint_folders

pytestmark = pytest.mark.ranks

# Dropout, momentum, a learning rate that grows: 2 epochs of 6 updates, neither of which divides by the interval.
CNN = [*DATA, "--model", "cnn", "--steps-per-epoch", "6", "--strategy", "averaging", "--average-every", "5"]
CNN += ["--no-average-state"]
CASES = {
    "every1": Case(1, momentum=0.0),
    "every2": Case(2),
    "every2_own": Case(2, average_state=False),
    "epoch": Case("epoch", warmup=3),
    "never": Case(100, warmup=4, average_state=False),
}


def all_jobs():
    """Return the jobs of two ranks."""
    yield from (train(name, *case.arguments) for name, case in CASES.items())
    yield train("allreduce", *MLP, "--momentum", "0")
    yield train("fp16", *MLP, "--epochs", "1", "--compression", "fp16")
    yield train("whole", *CNN)
    yield train("gloo", *CASES["every2"].arguments, launcher="gloo2")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(tmp_path_factory.mktemp("strategies"), all_jobs())


@keras_in_ci
@pytest.mark.parametrize("name", CASES)
def test_averaging_is_the_formula_worked_out_by_hand(jobs, framework, name):
    run = jobs.run(framework, name)
    expected = by_hand(CASES[name], run)
    for tensor, array in expected[-1].items():
        assert relative_difference(jobs.weights(framework, name)[tensor], array) < 1e-12, tensor
    for epoch, weights in zip(run.epochs, expected, strict=True):  # also where an epoch ends inside an interval
        assert epoch.validation_loss == pytest.approx(validation_loss(weights, run), rel=1e-12)


@keras_in_ci
def test_the_cases_differ(jobs, framework):
    """Else the proof above proves little: interval, state and warm-up all count."""
    finals = [jobs.weights(framework, name)["fc1.weight"] for name in CASES]
    for number, one in enumerate(finals):
        for other in finals[:number]:
            assert relative_difference(one, other) > 1e-6


@pytest.mark.ci
def test_averaging_over_gloo_is_the_formula_worked_out_by_hand(jobs, framework):
    expected = by_hand(CASES["every2"], jobs.run(framework, "gloo"))[-1]
    for tensor, array in expected.items():
        assert relative_difference(jobs.weights(framework, "gloo")[tensor], array) < 1e-12, tensor


VALUES = 152_650  # of mlp
BYTES = {  # per update: 8 for each value, in float64, of gradients, or of weights and momentum
    "allreduce": 8 * VALUES,
    "fp16": 2 * VALUES,
    "every1": 8 * VALUES,
    "every2": 8 * 2 * VALUES / 2,
    "every2_own": 8 * VALUES / 2,
    "epoch": 8 * (3 * VALUES + 2 * 2 * VALUES) / 10,  # 3 updates of warm-up, 2 averages, in 10 updates
}


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
