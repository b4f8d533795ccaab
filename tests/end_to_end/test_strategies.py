"""`--strategy averaging` on two ranks against NumPy, against all-reduce, and against itself after a resume.

One start of two ranks does all runs of Keras (`trainer_worker.py`); those of PyTorch are divided between `make test`
and CI. That one rank equals one process is in `test_trainers.py`.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import reference_rules
from _pytest.mark import ParameterSet
from rule_workers import relative_difference
from trainer_runs import Job, Outcome, Outcomes, run_jobs

from common.data.loading import load_dataset
from common.data.sharding import epoch_order, rank_slice, split_validation
from common.model.specs import model_spec
from common.model.weights import Weights, draw_initial_weights, load_weights, weights_hash
from common.run_folder.checkpoints import checkpoint_folders
from common.run_folder.records import DataRecord, Hashes, Run, Status, Totals, read_run

pytestmark = pytest.mark.ranks

DATASET = "synthetic:1200x28x28x1x10"
BATCH, RATE, EPOCHS, STEPS, SEED = 32, 0.05, 2, 5, 1
DATA = ["--dataset", DATASET, "--validation-share", "0.1", "--batch-size", str(BATCH), "--epochs", str(EPOCHS)]
MLP = [*DATA, "--model", "mlp", "--dtype", "float64", "--steps-per-epoch", str(STEPS)]
MLP += ["--lr-scaling", "none", "--learning-rate", str(RATE)]
# Dropout, momentum, a learning rate that grows: 2 epochs of 6 updates, neither of which divides by the interval.
CNN = [*DATA, "--model", "cnn", "--steps-per-epoch", "6", "--strategy", "averaging", "--average-every", "5"]
CNN += ["--no-average-state"]
RESNET34 = ["--dataset", "synthetic:48x17x19x1x3", "--model", "resnet34", "--batch-size", "4", "--epochs", "1"]
RESNET34 += ["--momentum", "0", "--dtype", "float64", "--steps-per-epoch", "3"]
OFTEN = ["--checkpoint-minutes", "1e-9"]  # after every update


@dataclass(frozen=True)
class Case:
    """A run of mlp by averaging, and what is worked out for it by hand."""

    every: int | str
    momentum: float = 0.9
    average_state: bool = True
    warmup: int = 0

    @property
    def arguments(self) -> list[str]:
        """The settings of the run."""
        flags = ["--strategy", "averaging", "--average-every", str(self.every), "--momentum", str(self.momentum)]
        flags += ["--warmup-allreduce", str(self.warmup)]
        return [*MLP, *flags, "--average-state" if self.average_state else "--no-average-state"]


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
        train("long_warmup", [*MLP, "--strategy", "averaging", "--average-every", "2", "--warmup-allreduce", "10"]),
    ]


BAD_INPUT = {
    "other_interval": "a resumed run keeps its settings (average_every is 5). Received: --average-every 7.",
    "long_warmup": "the warm-up is as long as the run or longer, which has 10 updates. Received: --warmup-allreduce 10",
}


class Starts:
    """Starts what a test asks for, once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._done: dict[str, Outcomes | str] = {}

    def outcomes(self, framework: str, name: str, launcher: str = "mpirun2") -> list[Outcome]:
        """Return what a job did on each rank."""
        jobs = all_jobs()
        if framework == "torch":
            jobs = [job for job in jobs if (job.name in MORE) == (name in MORE)]
        if launcher != "mpirun2":
            jobs = [job for job in jobs if job.name == name]
        start = f"{framework}-{launcher}-{jobs[0].name}"
        if start not in self._done:
            (self.folder / start).mkdir()
            self._done[start] = run_jobs(framework, jobs, folder=self.folder / start, launcher=launcher)
        outcomes = self._done[start]
        assert isinstance(outcomes, dict), outcomes
        return outcomes[name]

    def run(self, framework: str, name: str, launcher: str = "mpirun2") -> Run:
        """Return a run that has ended well on all ranks."""
        self.outcomes(framework, name, launcher)
        (folder,) = self.folder.glob(f"{framework}-{launcher}-*/runs/{name}")
        run = read_run(folder)
        assert run.state == "finished"
        return run


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Starts:
    return Starts(tmp_path_factory.mktemp("strategies"))


@pytest.fixture(params=["torch", pytest.param("keras", marks=pytest.mark.ci)])
def framework(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


def weights_of(run: Run) -> Weights:
    return load_weights(run.folder / "weights.safetensors")


def differences(one: Weights, other: Weights) -> dict[str, float]:
    assert one.keys() == other.keys()
    return {name: relative_difference(one[name], other[name]) for name in other}


# By hand: each rank has a dictionary of weights and one of momentum buffers; every formula is in float64.


def gradient(weights: Weights, pixels: np.ndarray, labels: np.ndarray) -> Weights:
    """Return the gradient of mlp's mean cross entropy: dense, sigmoid, dense; pixels (samples, 784)."""
    hidden = 1 / (1 + np.exp(-(pixels @ weights["fc1.weight"].T + weights["fc1.bias"])))
    outputs = hidden @ weights["fc2.weight"].T + weights["fc2.bias"]
    probabilities = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    of_outputs = (probabilities - np.eye(outputs.shape[1])[labels]) / len(labels)
    of_hidden = (of_outputs @ weights["fc2.weight"]) * hidden * (1 - hidden)
    return {
        "fc1.weight": of_hidden.T @ pixels,
        "fc1.bias": of_hidden.sum(axis=0),
        "fc2.weight": of_outputs.T @ hidden,
        "fc2.bias": of_outputs.sum(axis=0),
    }


def mean(ranks: list[Weights]) -> Weights:
    return {name: np.mean([one[name] for one in ranks], axis=0) for name in ranks[0]}


def by_hand(case: Case, run: Run) -> list[Weights]:
    """Return the weights averaged over two ranks at the end of each epoch, and those at the end of the run."""
    data, split = run.record.data, load_dataset(DATASET).train
    assert isinstance(data, DataRecord)
    pixels = (split.images.reshape(len(split.images), -1) / 255 - data.mean[0]) / data.standard_deviation[0]
    training, _ = split_validation(1200, share=0.1, seed=SEED)
    spec = model_spec("mlp", input_shape=(1, 28, 28), outputs=10)
    weights = [draw_initial_weights(spec, seed=SEED, dtype="float64") for _ in range(2)]
    buffers: list[Weights] = [{name: np.zeros_like(array) for name, array in one.items()} for one in weights]
    interval = STEPS if case.every == "epoch" else int(case.every)
    averages = []
    for update in range(1, EPOCHS * STEPS + 1):
        epoch, step = (update - 1) // STEPS + 1, (update - 1) % STEPS
        order = training[epoch_order(len(training), seed=SEED, epoch=epoch)]
        rows = [order[rank_slice(step, rank=rank, batch_sizes=[BATCH, BATCH])] for rank in range(2)]
        found = [gradient(weights[rank], pixels[rows[rank]], split.labels[rows[rank]]) for rank in range(2)]
        if update <= case.warmup:
            found = [mean(found)] * 2
        for rank in range(2):
            buffers[rank] = {name: case.momentum * buffers[rank][name] + found[rank][name] for name in found[rank]}
            weights[rank] = {name: array - RATE * buffers[rank][name] for name, array in weights[rank].items()}
        if update > case.warmup and update % interval == 0:
            weights = [mean(weights)] * 2
            buffers = [mean(buffers)] * 2 if case.average_state else buffers
        if step == STEPS - 1:
            averages.append(mean(weights))
    return averages


def validation_loss(weights: Weights, run: Run) -> float:
    """Return the loss of mlp over the validation samples."""
    data, split = run.record.data, load_dataset(DATASET).train
    assert isinstance(data, DataRecord)
    _, rows = split_validation(1200, share=0.1, seed=SEED)
    pixels = (split.images[rows].reshape(len(rows), -1) / 255 - data.mean[0]) / data.standard_deviation[0]
    hidden = 1 / (1 + np.exp(-(pixels @ weights["fc1.weight"].T + weights["fc1.bias"])))
    return reference_rules.cross_entropy(hidden @ weights["fc2.weight"].T + weights["fc2.bias"], split.labels[rows])


def more(*values: object) -> ParameterSet:
    """Return parameters of runs that `make test` leaves out."""
    return pytest.param(*values, marks=pytest.mark.ci)


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
    whole, run = starts.run(framework, "whole"), starts.run(framework, name)
    assert isinstance(run.record.status, Status) and run.record.status.resumed_after_steps == steps
    assert isinstance(run.record.hashes, Hashes) and run.record.hashes == whole.record.hashes
    assert isinstance(run.record.totals, Totals) and isinstance(whole.record.totals, Totals)
    assert run.record.totals.test_loss == whole.record.totals.test_loss
    for ours, theirs in zip(run.epochs, whole.epochs, strict=True):
        assert (ours.weights_hash, ours.training_loss) == (theirs.weights_hash, theirs.training_loss)
        assert ours.validation_loss == theirs.validation_loss
    (checkpoint,), (twin,) = checkpoint_folders(run.folder), checkpoint_folders(whole.folder)
    for file in ("weights.safetensors", "optimizer.safetensors", "ranks.safetensors"):
        assert (checkpoint / file).read_bytes() == (twin / file).read_bytes()


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
