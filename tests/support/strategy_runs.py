"""Runs of strategies on two ranks, started once for many tests, and `mlp` worked out by hand in NumPy."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import reference_rules
from _pytest.mark import ParameterSet
from rule_workers import relative_difference
from trainer_runs import (
    END_SECONDS,
    Job,
    Outcome,
    Outcomes,
    finish,
    launcher_command,
    rank_processes,
    run_command,
    run_jobs,
    start_command,
    train_command,
    wait_until,
)

from common.data.loading import load_dataset
from common.data.sharding import epoch_order, rank_slice, split_validation
from common.model.specs import model_spec
from common.model.weights import Weights, draw_initial_weights, load_weights
from common.run_folder.checkpoints import checkpoint_folders
from common.run_folder.records import DataRecord, Hashes, Run, Status, Totals, read_run

DATASET = "synthetic:1200x28x28x1x10"
BATCH, RATE, EPOCHS, STEPS, SEED = 32, 0.05, 2, 5, 1
DATA = ["--dataset", DATASET, "--validation-share", "0.1", "--batch-size", str(BATCH), "--epochs", str(EPOCHS)]
MLP = [*DATA, "--model", "mlp", "--dtype", "float64", "--steps-per-epoch", str(STEPS)]
MLP += ["--lr-scaling", "none", "--learning-rate", str(RATE)]
OFTEN = ["--checkpoint-minutes", "1e-9"]  # after every update


@dataclass(frozen=True)
class Case:
    """A run of mlp on two ranks, and what is worked out for it by hand.

    Attributes:
        every: updates between averagings of the weights; None: all-reduce.
        batch_sizes: what the ranks take of a global batch, by `more`.
        more: other flags.
    """

    every: int | str | None
    momentum: float = 0.9
    average_state: bool = True
    warmup: int = 0
    batch_sizes: tuple[int, int] = (BATCH, BATCH)
    more: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """The settings of the run."""
        flags = ["--momentum", str(self.momentum), *self.more]
        if self.every is None:
            return [*MLP, *flags]
        flags += ["--strategy", "averaging", "--average-every", str(self.every), "--warmup-allreduce", str(self.warmup)]
        return [*MLP, *flags, "--average-state" if self.average_state else "--no-average-state"]


class Starts:
    """Starts what a test asks for, once.

    Args:
        jobs: all that there are.
        more: names of those that PyTorch does in a start of their own.
        launcher: of all jobs in one start; another one does a single job.
    """

    def __init__(
        self, folder: Path, jobs: Sequence[Job], *, more: Collection[str] = (), launcher: str = "mpirun2"
    ) -> None:
        self.folder = folder
        self.jobs = jobs
        self.more = more
        self.launcher = launcher
        self._done: dict[str, Outcomes | str] = {}

    def outcomes(self, framework: str, name: str, launcher: str | None = None) -> list[Outcome]:
        """Return what a job did on each rank."""
        launcher = launcher or self.launcher
        jobs = list(self.jobs)
        if framework == "torch":
            jobs = [job for job in jobs if (job.name in self.more) == (name in self.more)]
        if launcher != self.launcher:
            jobs = [job for job in jobs if job.name == name]
        start = f"{framework}-{launcher}-{jobs[0].name}"
        if start not in self._done:
            (self.folder / start).mkdir()
            self._done[start] = run_jobs(framework, jobs, folder=self.folder / start, launcher=launcher)
        outcomes = self._done[start]
        assert isinstance(outcomes, dict), outcomes
        return outcomes[name]

    def run(self, framework: str, name: str, launcher: str | None = None) -> Run:
        """Return a run that has ended well on all ranks."""
        self.outcomes(framework, name, launcher)
        (folder,) = self.folder.glob(f"{framework}-{launcher or self.launcher}-*/runs/{name}")
        run = read_run(folder)
        assert run.state == "finished"
        return run


def more(*values: object) -> ParameterSet:
    """Return parameters of runs that `make test` leaves out."""
    return pytest.param(*values, marks=pytest.mark.ci)


def weights_of(run: Run) -> Weights:
    return load_weights(run.folder / "weights.safetensors")


def differences(one: Weights, other: Weights) -> dict[str, float]:
    assert one.keys() == other.keys()
    return {name: relative_difference(one[name], other[name]) for name in other}


def check_resumed(run: Run, whole: Run, *, steps: list[int]) -> None:
    """Check that a run that was resumed after these updates is the unbroken one bit for bit, checkpoint included."""
    assert isinstance(run.record.status, Status) and run.record.status.resumed_after_steps == steps
    assert isinstance(run.record.hashes, Hashes) and run.record.hashes == whole.record.hashes
    assert isinstance(run.record.totals, Totals) and isinstance(whole.record.totals, Totals)
    assert run.record.totals.test_loss == whole.record.totals.test_loss
    for ours, theirs in zip(run.epochs, whole.epochs, strict=True):
        assert (ours.weights_hash, ours.training_loss) == (theirs.weights_hash, theirs.training_loss)
        assert ours.validation_loss == theirs.validation_loss
    (checkpoint,), (twin,) = checkpoint_folders(run.folder), checkpoint_folders(whole.folder)
    files = {file.name for file in twin.glob("*.safetensors")}
    assert {file.name for file in checkpoint.glob("*.safetensors")} == files and len(files) >= 2
    for file in files:
        assert (checkpoint / file).read_bytes() == (twin / file).read_bytes()


def check_killed(framework: str, arguments: Sequence[str], *, launcher: str, folder: Path, rank: int = 1) -> None:
    """Check that the death of a rank ends a run at once, and that the run resumes from its newest checkpoint."""
    run = folder / "runs/killed"
    endless = [*arguments, *OFTEN, "--resume-or-start", "--name", "killed", "--epochs", "20000"]
    process = start_command([*launcher_command(launcher), *train_command(framework, endless)], folder=folder)
    wait_until(lambda: any("-step-" in one.name for one in checkpoint_folders(run)), process=process)
    rank_processes(process.pid)[str(rank)].kill()
    assert finish(process, within_seconds=END_SECONDS).code != 0
    assert read_run(run).state in ("killed", "interrupted")
    epochs = len(read_run(run).epochs) + 2
    resumed = train_command(framework, ["--resume", str(run), "--epochs", str(epochs)])
    again = run_command([*launcher_command(launcher), *resumed], folder=folder)
    assert again.code == 0, again.stderr
    assert read_run(run).state == "finished" and len(read_run(run).epochs) == epochs


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


def mean(ranks: list[Weights], batch_sizes: Sequence[int]) -> Weights:
    """Return the mean over ranks, weighted by their images."""
    return {name: np.average([one[name] for one in ranks], axis=0, weights=batch_sizes) for name in ranks[0]}


def first_weights() -> Weights:
    """Return the weights of mlp that are drawn from the seed."""
    return draw_initial_weights(model_spec("mlp", input_shape=(1, 28, 28), outputs=10), seed=SEED, dtype="float64")


def batches(run: Run, update: int, *, batch_sizes: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return pixels (samples, 784) and labels of each rank in an update of the run, counted from 0."""
    data, split = run.record.data, load_dataset(DATASET).train
    assert isinstance(data, DataRecord)
    training, _ = split_validation(1200, share=0.1, seed=SEED)
    order = training[epoch_order(len(training), seed=SEED, epoch=update // STEPS + 1)]
    parts = []
    for rank in range(len(batch_sizes)):
        rows = order[rank_slice(update % STEPS, rank=rank, batch_sizes=batch_sizes)]
        pixels = (split.images[rows].reshape(len(rows), -1) / 255 - data.mean[0]) / data.standard_deviation[0]
        parts.append((pixels, split.labels[rows]))
    return parts


def by_hand(case: Case, run: Run, *, start: Weights | None = None) -> list[Weights]:
    """Return the weights averaged over two ranks at the end of each epoch, and those at the end of the run.

    Args:
        start: the first weights; None: those drawn from the seed.
    """
    weights = [start or first_weights()] * 2
    buffers: list[Weights] = [{name: np.zeros_like(array) for name, array in one.items()} for one in weights]
    interval = STEPS if case.every == "epoch" else int(case.every or 1)
    averages = []
    for update in range(1, EPOCHS * STEPS + 1):
        parts = batches(run, update - 1, batch_sizes=case.batch_sizes)
        found = [gradient(weights[rank], *part) for rank, part in enumerate(parts)]
        if case.every is None or update <= case.warmup:
            found = [mean(found, case.batch_sizes)] * 2
        for rank in range(2):
            buffers[rank] = {name: case.momentum * buffers[rank][name] + found[rank][name] for name in found[rank]}
            weights[rank] = {name: array - RATE * buffers[rank][name] for name, array in weights[rank].items()}
        if update > case.warmup and update % interval == 0:
            weights = [mean(weights, case.batch_sizes)] * 2
            buffers = [mean(buffers, case.batch_sizes)] * 2 if case.average_state else buffers
        if update % STEPS == 0:
            averages.append(mean(weights, case.batch_sizes))
    return averages


def validation_loss(weights: Weights, run: Run) -> float:
    """Return the loss of mlp over the validation samples."""
    data, split = run.record.data, load_dataset(DATASET).train
    assert isinstance(data, DataRecord)
    _, rows = split_validation(1200, share=0.1, seed=SEED)
    pixels = (split.images[rows].reshape(len(rows), -1) / 255 - data.mean[0]) / data.standard_deviation[0]
    hidden = 1 / (1 + np.exp(-(pixels @ weights["fc1.weight"].T + weights["fc1.bias"])))
    return reference_rules.cross_entropy(hidden @ weights["fc2.weight"].T + weights["fc2.bias"], split.labels[rows])
