"""Ranks with parts of a batch of their own on two ranks: against NumPy, against all-reduce, after a resume.

One start of two ranks does all runs of Keras (`trainer_worker.py`); those of PyTorch are divided between `make test`
and CI.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from builders import make_config, make_setup
from strategy_runs import (
    BATCH,
    DATA,
    EPOCHS,
    MLP,
    OFTEN,
    RATE,
    STEPS,
    Case,
    Starts,
    batches,
    by_hand,
    check_resumed,
    differences,
    first_weights,
    gradient,
    more,
    validation_loss,
    weights_of,
)
from trainer_runs import Job

from common.errors import UserError
from common.model.weights import Weights
from common.run_folder.records import DataRecord, Hashes, Run, Totals

pytestmark = pytest.mark.ranks

PARTS, SHARES = (45, 19), ("--shares", "2.4:1")  # of 64: 45.18 and 18.82, so the last image goes to the second
CASES = {
    "allreduce": Case(None, batch_sizes=PARTS, more=SHARES),
    "equal": Case(None, more=("--shares", "7:7")),
    "averaging": Case(2, warmup=3, batch_sizes=PARTS, more=SHARES),
    "averaging_own": Case(2, average_state=False, batch_sizes=PARTS, more=SHARES),
}
SLOW = ["--slow", "1:1.5:0.5"]
CNN = [*DATA, "--model", "cnn", "--steps-per-epoch", "6", *SHARES]
PASSES = ["--batch-size", str(BATCH // 4), "--backward-passes-per-step", "4"]
EXACT_CNN = [*CNN, "--dtype", "float64", "--no-dropout", "--lr-scaling", "none"]
ADASUM = [*MLP, "--adasum"]
AVERAGING = ["--strategy", "averaging", "--average-every", "5", "--no-average-state"]
RESNET34 = ["--dataset", "synthetic:48x17x19x1x3", "--model", "resnet34", "--batch-size", "8", "--epochs", "1"]
RESNET34 += ["--momentum", "0", "--dtype", "float64", "--steps-per-epoch", "3", "--shares", "5:3"]

MORE = ["averaging", "slow_averaging", "passes_cnn", "batch_cnn", "resnet34", "resnet34_every1", "auto", "auto_resumed"]
MORE += ["started", "started_resumed", "adasum"]
MORE += [f"{prefix}{part}" for prefix in ("", "passes_", "adasum_") for part in ("whole", "part", "part_resumed")]


def all_jobs() -> list[Job]:
    """Return the jobs of two ranks."""

    def train(name: str, arguments: list[str], patch: str = "") -> Job:
        return Job(name, [*arguments, "--name", name], patch=patch)

    return [
        *(train(name, case.arguments) for name, case in CASES.items()),
        train("passes", [*MLP, *PASSES]),
        train("passes_cnn", [*EXACT_CNN, *PASSES]),
        train("batch_cnn", EXACT_CNN),
        train("started", [*MLP, "--epochs", "1", "--start-weights", "runs/averaging"]),
        Job("started_resumed", ["--resume", "runs/started", "--epochs", "2"]),
        train("adasum", ADASUM),
        train("adasum_whole", [*DATA, "--model", "cnn", "--steps-per-epoch", "6", "--adasum"]),
        train("adasum_part", [*DATA, "--model", "cnn", "--steps-per-epoch", "6", "--adasum", *OFTEN], "stopped"),
        Job("adasum_part_resumed", ["--resume", "runs/adasum_part"]),
        train("slow", [*CASES["equal"].arguments, "--slow", "1:100"]),
        train("slow_averaging", [*CASES["averaging"].arguments, "--slow", "0:200:0.8"]),
        train("resnet34", RESNET34, "shallow"),
        train("resnet34_every1", [*RESNET34, "--strategy", "averaging", "--average-every", "1"], "shallow"),
        train("whole", [*CNN, *AVERAGING, *SLOW]),
        train("part", [*CNN, *AVERAGING, *SLOW, *OFTEN], "stopped"),
        Job("part_resumed", ["--resume", "runs/part"]),
        train("passes_whole", [*CNN, "--backward-passes-per-step", "2"]),
        train("passes_part", [*CNN, "--backward-passes-per-step", "2", *OFTEN], "stopped"),
        Job("passes_part_resumed", ["--resume", "runs/passes_part"]),
        train("auto", [*DATA, "--model", "mlp", "--shares", "auto", *OFTEN], "stopped"),
        Job("auto_resumed", ["--resume", "runs/auto"], patch="slow_source_of_one"),
        *(train(name, [*DATA, "--model", "mlp", *flags]) for name, (flags, _) in BAD_INPUT.items()),
    ]


BAD_INPUT = {
    "too_many": (
        ["--shares", "1:2:3"],
        "there is one part for each worker. Received: --shares 1:2:3 on 2. Give as many numbers, such as 2:1",
    ),
    "nothing": (["--shares", "1:0"], "--shares is no ratio. Received: --shares 1:0. Give a number above 0 for each"),
    "other_model": (
        ["--model", "cnn", "--start-weights", "runs/passes"],
        "these weights do not belong to cnn for 1 x 28 x 28 images and 10 outputs: ",
    ),
    "no_run": (["--start-weights", "runs/none"], "cannot read the weights. Received: runs/none/weights.safetensors"),
    "no_such_rank": (
        ["--slow", "2:3"],
        "the straggler is none of the workers, which count from 0. Received: --slow 2:3 on 2. Give a rank from 0 to 1",
    ),
    "too_large": (
        ["--backward-passes-per-step", "17"],
        "the batch is larger than each rank's shard (540 of 1080 training samples on 2 ranks). Received: "
        "--batch-size 32. Give 31 or less",
    ),
}


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Starts:
    return Starts(tmp_path_factory.mktemp("unequal"), all_jobs(), more=MORE)


@pytest.fixture(params=["torch", pytest.param("keras", marks=pytest.mark.ci)])
def framework(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.mark.parametrize("name", [more(name) if name in MORE else name for name in CASES])
def test_shares_are_weighted_by_images_as_worked_out_by_hand(starts: Starts, framework: str, name: str) -> None:
    """With all-reduce the formula is that of one process, whose batch is the global batch."""
    case, run = CASES[name], starts.run(framework, name)
    assert isinstance(run.record.data, DataRecord)
    assert run.record.data.batch_sizes == list(case.batch_sizes) and run.record.data.global_batch_size == 2 * BATCH
    expected = by_hand(case, run)
    apart = differences(weights_of(run), expected[-1])
    assert max(apart.values()) < 1e-12, apart
    for epoch, weights in zip(run.epochs, expected, strict=True):
        assert epoch.validation_loss == pytest.approx(validation_loss(weights, run), rel=1e-12)


@pytest.mark.ci
def test_servers_in_step_weight_shares_by_images(tmp_path: Path) -> None:
    """Two workers, one of them slow, and a server: the update is that of one process here, too."""
    case = CASES["allreduce"]
    server = ["--strategy", "server", "--servers", "1", "--slow", "0:2", "--name", "server"]
    run = Starts(tmp_path, [Job("server", [*case.arguments, *server])]).run("torch", "server", "mpirun3")
    assert max(differences(weights_of(run), by_hand(case, run)[-1]).values()) < 1e-12


def test_the_update_of_a_global_batch_does_not_depend_on_its_shares(starts: Starts, framework: str) -> None:
    shared, equal = starts.run(framework, "allreduce"), starts.run(framework, "equal")
    assert max(differences(weights_of(shared), weights_of(equal)).values()) < 1e-12
    for ours, theirs in zip(shared.epochs, equal.epochs, strict=True):
        assert ours.training_loss == pytest.approx(theirs.training_loss, rel=1e-12)
    # And averaged weights do: else the proof of averaging would show nothing.
    averaged = weights_of(starts.run(framework, "averaging_own"))
    assert min(differences(averaged, weights_of(equal)).values()) > 1e-6


@pytest.mark.ci
def test_the_statistics_of_batch_norm_are_weighted_too(starts: Starts, framework: str) -> None:
    """Averaging after every update is all-reduce, with plain SGD, also for unequal parts."""
    one, other = (weights_of(starts.run(framework, name)) for name in ("resnet34", "resnet34_every1"))
    assert max(differences(one, other).values()) < 1e-9  # unweighted they differ by more than 1e-3


@pytest.mark.ci
@pytest.mark.parametrize("prefix", ["", "passes_", "adasum_"])
def test_a_resumed_run_ends_bit_for_bit_as_an_unbroken_one(starts: Starts, framework: str, prefix: str) -> None:
    check_resumed(starts.run(framework, f"{prefix}part"), starts.run(framework, f"{prefix}whole"), steps=[3])


def test_passes_add_up_to_a_batch(starts: Starts, framework: str) -> None:
    """Four passes of a quarter of the batch."""
    run = starts.run(framework, "passes")
    data = run.record.data
    assert isinstance(data, DataRecord) and (data.global_batch_size, data.steps_per_epoch) == (2 * BATCH, STEPS)
    assert max(differences(weights_of(run), by_hand(Case(None), run)[-1]).values()) < 1e-11


@pytest.mark.ci
def test_passes_equal_a_larger_batch_and_scale_the_learning_rate(starts: Starts, framework: str) -> None:
    passes, batch = starts.run(framework, "passes_cnn"), starts.run(framework, "batch_cnn")
    assert max(differences(weights_of(passes), weights_of(batch)).values()) < 1e-11
    assert starts.run(framework, "passes_whole").epochs[-1].learning_rate == pytest.approx(0.01 * 2 * 2)


def adasum_by_hand(run: Run, *, size: int) -> Weights:
    """Return the final weights of mlp: momentum per rank, and Adasum of the ranks' updates (arXiv 2006.02924)."""

    def combined(updates: list[np.ndarray]) -> np.ndarray:
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
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_adasum_is_the_formula_worked_out_by_hand(starts: Starts, framework: str, size: int) -> None:
    run = starts.run(framework, "adasum", f"mpirun{size}")
    apart = differences(weights_of(run), adasum_by_hand(run, size=size))
    assert max(apart.values()) < 1e-12, apart


@pytest.mark.parametrize("size", [1, 3, 6])
def test_adasum_of_other_numbers_of_ranks_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(UserError, match=f"combines the updates of 2, 4 or 8 ranks. Received: --adasum on {size}"):
        make_setup(make_config(tmp_path, strategy={"adasum": True}), size=size)


@pytest.mark.parametrize(("slow", "plain"), [("slow", "equal"), more("slow_averaging", "averaging")])
def test_a_straggler_takes_time_and_changes_nothing_else(starts: Starts, framework: str, slow: str, plain: str) -> None:
    runs = [starts.run(framework, name) for name in (slow, plain)]
    assert runs[0].epochs[-1].weights_hash == runs[1].epochs[-1].weights_hash
    times = [run.record.totals.training_seconds for run in runs if isinstance(run.record.totals, Totals)]
    assert isinstance(times[0], float) and isinstance(times[1], float) and times[0] > 2 * times[1]


@pytest.mark.ci
def test_a_run_starts_from_the_weights_of_another(starts: Starts, framework: str) -> None:
    """As a second run of the formula would, whose momentum starts at 0; also after a resume."""
    run, source = starts.run(framework, "started"), starts.run(framework, "averaging")
    assert isinstance(run.record.hashes, Hashes) and isinstance(source.record.hashes, Hashes)
    assert run.record.hashes.initial_weights == source.record.hashes.final_weights
    assert run.record.config.training.start_weights == "runs/averaging"  # type: ignore[union-attr]
    expected = by_hand(Case(None), run, start=weights_of(source))[-1]
    assert max(differences(weights_of(run), expected).values()) < 1e-11


@pytest.mark.ci
def test_measured_shares_are_kept_when_a_run_is_resumed(starts: Starts, framework: str) -> None:
    printed = [line for line in starts.outcomes(framework, "auto")[0].stdout.splitlines() if line.startswith("batch:")]
    data = starts.run(framework, "auto").record.data
    assert isinstance(data, DataRecord) and data.batch_sizes and sum(data.batch_sizes) == 2 * BATCH
    parts = " + ".join(map(str, data.batch_sizes))
    assert [line.split(" =")[0] for line in printed] in (
        [f"batch: {parts} (one part per rank, measured)"],
        [f"batch: {BATCH} x 2 ranks"],
    )
    resumed = starts.outcomes(framework, "auto_resumed")
    assert [outcome.code for outcome in resumed] == [0, 0] and printed[0] in resumed[0].stdout
    assert np.isfinite([epoch.training_loss for epoch in starts.run(framework, "auto").epochs]).all()


@pytest.mark.parametrize("name", BAD_INPUT)
def test_what_contradicts_is_refused_on_all_ranks(starts: Starts, framework: str, name: str) -> None:
    ranks = starts.outcomes(framework, name)
    assert [outcome.code for outcome in ranks] == [2, 2] and BAD_INPUT[name][1] in ranks[0].stderr
