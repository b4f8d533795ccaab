"""`--strategy averaging` on two ranks against NumPy, against all-reduce, and against itself after a resume.

One start of two ranks does all runs of Keras (`trainer_worker.py`); those of PyTorch are divided between `make test`
and CI. That one rank equals one process is in `test_trainers.py`.
"""

import importlib.util

import numpy as np
import pytest
from rule_workers import relative_difference
from strategy_runs import (
    BATCH,
    DATA,
    EPOCHS,
    MLP,
    OFTEN,
    Case,
    Starts,
    by_hand,
    check_resumed,
    differences,
    more,
    validation_loss,
    weights_of,
)
from trainer_runs import Job

from common.model.weights import load_weights, weights_hash
from common.run_folder.checkpoints import checkpoint_folders
from common.run_folder.records import Totals

pytestmark = pytest.mark.ranks

# Dropout, momentum, a learning rate that grows: 2 epochs of 6 updates, neither of which divides by the interval.
CNN = [*DATA, "--model", "cnn", "--steps-per-epoch", "6", "--strategy", "averaging", "--average-every", "5"]
CNN += ["--no-average-state"]
RESNET34 = ["--dataset", "synthetic:48x17x19x1x3", "--model", "resnet34", "--batch-size", "4", "--epochs", "1"]
RESNET34 += ["--momentum", "0", "--dtype", "float64", "--steps-per-epoch", "3"]


CASES = {
    "every1": Case(1, momentum=0.0),
    "every2": Case(2),
    "every2_own": Case(2, average_state=False),
    "epoch": Case("epoch", warmup=3),
    "never": Case(100, warmup=4, average_state=False),
}
ADAM = [*MLP, "--optimizer", "adam", "--learning-rate", "0.001", "--epochs", "5", "--steps-per-epoch", "10"]
ADAM += ["--strategy", "averaging", "--average-every", "3"]
MORE = ("never", "adam", "resnet34", "resnet34_every1")


def all_jobs() -> list[Job]:
    """Return the jobs of two ranks."""

    def train(name: str, arguments: list[str], patch: str = "") -> Job:
        return Job(name, [*arguments, "--name", name], patch=patch)

    every1 = ["--strategy", "averaging", "--average-every", "1"]
    return [
        *(train(name, case.arguments) for name, case in CASES.items()),
        train("allreduce", [*MLP, "--momentum", "0"]),
        train("fp16", [*MLP, "--epochs", "1", "--compression", "fp16"]),
        train("adam", ADAM),
        train("resnet34", RESNET34, "shallow"),
        train("resnet34_every1", [*RESNET34, *every1], "shallow"),
        train("whole", CNN),
        train("part", [*CNN, *OFTEN, "--resume-or-start"], "stopped"),
        Job("part_again", [*CNN, *OFTEN, "--resume-or-start", "--name", "part"], patch="stopped_later"),
        Job("part_resumed", ["--resume", "runs/part"]),
        train("one_epoch", [*CNN, "--epochs", "1"]),
        Job("one_epoch_resumed", ["--resume", "runs/one_epoch", "--epochs", str(EPOCHS)]),
        Job("other_interval", ["--resume", "runs/one_epoch", "--epochs", "3", "--average-every", "7"]),
        Job("other_strategy", ["--resume", "runs/one_epoch", "--strategy", "allreduce"]),
        train("long_warmup", [*MLP, "--strategy", "averaging", "--average-every", "2", "--warmup-allreduce", "10"]),
    ]


BAD_INPUT = {
    "other_strategy": "a resumed run keeps its settings (strategy is averaging). Received: --strategy allreduce.",
    "other_interval": "a resumed run keeps its settings (average_every is 5). Received: --average-every 7.",
    "long_warmup": "the warm-up is as long as the run or longer, which has 10 updates. Received: --warmup-allreduce 10",
}


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Starts:
    return Starts(tmp_path_factory.mktemp("strategies"), all_jobs(), more=MORE)


@pytest.fixture(params=["torch", pytest.param("keras", marks=pytest.mark.ci)])
def framework(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.mark.parametrize("name", [more(name) if name in MORE else name for name in CASES])
def test_averaging_is_the_formula_worked_out_by_hand(starts: Starts, framework: str, name: str) -> None:
    run = starts.run(framework, name)
    expected = by_hand(CASES[name], run)
    apart = differences(weights_of(run), expected[-1])
    assert max(apart.values()) < 1e-12, apart
    for epoch, weights in zip(run.epochs, expected, strict=True):  # also where an epoch ends inside an interval
        assert epoch.validation_loss == pytest.approx(validation_loss(weights, run), rel=1e-12)


def test_the_cases_differ(starts: Starts, framework: str) -> None:
    """Else the proof above proves little: interval, state and warm-up all count."""
    finals = [weights_of(starts.run(framework, name))["fc1.weight"] for name in CASES if name not in MORE]
    for number, one in enumerate(finals):
        for other in finals[:number]:
            assert relative_difference(one, other) > 1e-6


@pytest.mark.parametrize(
    ("one", "other", "tolerance"), [("every1", "allreduce", 1e-12), more("resnet34_every1", "resnet34", 1e-11)]
)
def test_averaging_after_every_update_is_allreduce(
    starts: Starts, framework: str, one: str, other: str, tolerance: float
) -> None:
    """With plain SGD; with BatchNorm its statistics, too, for they are linear in those of the batches."""
    apart = differences(weights_of(starts.run(framework, one)), weights_of(starts.run(framework, other)))
    assert max(apart.values()) < tolerance, apart


VALUES = 152_650  # of mlp
BYTES = {  # per update: 8 for each value, in float64, of gradients, or of weights and momentum
    "allreduce": 8 * VALUES,
    "fp16": 2 * VALUES,
    "every1": 8 * VALUES,
    "every2": 8 * 2 * VALUES / 2,
    "every2_own": 8 * VALUES / 2,
    "epoch": 8 * (3 * VALUES + 2 * 2 * VALUES) / 10,  # 3 updates of warm-up, 2 averages, in 10 updates
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_counted_where_they_are_exchanged(starts: Starts, framework: str, name: str) -> None:
    run = starts.run(framework, name)
    sharing, totals = run.record.sharing, run.record.totals
    assert sharing and isinstance(totals, Totals) and isinstance(totals.training_seconds, float)
    for worker in sharing.workers:
        assert worker.sent_bytes == worker.received_bytes == BYTES[name]
        assert worker.updates == totals.steps and worker.images == BATCH * worker.updates
        assert isinstance(worker.exchange_seconds, float)
        assert 0 < worker.exchange_seconds < totals.training_seconds
    if name != "epoch":  # the ring's formula, of two ranks; it leaves the warm-up out
        assert (len(sharing.workers), sharing.formula_bytes) == (2, BYTES[name])


@pytest.mark.parametrize(("name", "steps"), [("part", [3, 8]), ("one_epoch", [6])])
def test_a_resumed_run_ends_bit_for_bit_as_an_unbroken_one(
    starts: Starts, framework: str, name: str, steps: list[int]
) -> None:
    """Resumed inside an interval, inside an epoch and at its end: each rank has its own weights and momentum."""
    check_resumed(starts.run(framework, name), starts.run(framework, "whole"), steps=steps)


def test_a_checkpoint_holds_what_each_rank_has(starts: Starts, framework: str) -> None:
    (checkpoint,) = checkpoint_folders(starts.run(framework, "whole").folder)
    ranks, average = (load_weights(checkpoint / f"{name}.safetensors") for name in ("ranks", "weights"))
    for name, array in average.items():
        own = [ranks[f"{rank}.weights.{name}"] for rank in range(2)]
        assert not np.array_equal(*own) and array == pytest.approx(np.mean(own, axis=0), rel=1e-5, abs=1e-7)
        assert not np.array_equal(*(ranks[f"{rank}.optimizer_state.{name}.momentum_buffer"] for rank in range(2)))
    final = weights_of(starts.run(framework, "whole"))
    assert weights_hash(final) == weights_hash(average)
    (aligned,) = checkpoint_folders(starts.run(framework, "every2").folder)
    assert not (aligned / "ranks.safetensors").exists()  # all ranks have the same


def test_what_contradicts_is_refused_on_all_ranks(starts: Starts, framework: str) -> None:
    for name, message in BAD_INPUT.items():
        ranks = starts.outcomes(framework, name)
        assert [outcome.code for outcome in ranks] == [2, 2] and message in ranks[0].stderr


@pytest.mark.ci
def test_averaging_over_gloo_is_the_formula_worked_out_by_hand(starts: Starts) -> None:
    run = starts.run("torch", "every2", "gloo2")
    assert max(differences(weights_of(run), by_hand(CASES["every2"], run)[-1]).values()) < 1e-12


@pytest.mark.ci
def test_both_frameworks_average_alike(starts: Starts) -> None:
    """After 50 updates by Adam, whose moments are averaged, too."""
    if any(importlib.util.find_spec(side) is None for side in ("torch", "keras")):
        pytest.skip("only one framework is installed")
    apart = differences(*(weights_of(starts.run(side, "adam")) for side in ("keras", "torch")))
    assert max(apart.values()) < 1e-8, apart
