"""Compare the arrays of two parity workers: differences, tolerances, curves."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.checks.differences import worst_difference
from common.checks.parity_cases import Dtype, has_batch_norm, has_dropout
from common.checks.parity_record import ArrayComparison, Curve
from common.checks.parity_worker import Arrays, ParityJob
from common.config import Config
from common.distributed.console import counted
from common.model.weights import load_weights
from common.run_folder.records import WEIGHTS_FILE, Hashes, RecordedRun

# Largest relative differences that pass.
ONE_PASS: dict[Dtype, float] = {"float64": 1e-10, "float32": 1e-4}  # forward and back once
UPDATES = 1e-8  # float64, between frameworks
VISIBLE = 100  # a weight must move at least this many times that limit, so that an error of 1 % is detected
RANKS = 1e-11  # float64, between numbers of ranks: the order of additions is all that may differ
FIRST_UPDATE = 1e-6  # float32, between numbers of ranks
EPOCH_OF_MLP = 1e-5  # float32, between numbers of ranks, after all updates; in other models a ReLU or maximum flips


@dataclass(frozen=True)
class ParitySide:
    """One framework's results of one start: `keras np 2`."""

    framework: str
    np: int
    folder: Path

    @property
    def title(self) -> str:
        """Name in tables."""
        return f"{self.framework} np {self.np}"

    def arrays(self, job: ParityJob) -> Arrays:
        """Return the results of a job."""
        return load_weights(self.folder / f"{job.name}.safetensors")


@dataclass(frozen=True)
class ParityResults:
    """The comparisons and curves of a job."""

    comparisons: list[ArrayComparison]
    curves: list[Curve]

    def __add__(self, other: "ParityResults") -> "ParityResults":
        return ParityResults(self.comparisons + other.comparisons, self.curves + other.curves)


NOTHING = ParityResults([], [])


def compare_frameworks(job: ParityJob, keras: ParitySide, torch: ParitySide) -> ParityResults:
    """Compare the results of both frameworks for a job; PyTorch is the reference."""
    compare = _Comparer(job, keras, torch)
    if job.kind == "exchange":
        followed, led = keras.arrays(job), torch.arrays(job)
        what = f"{counted(job.updates, 'update')}, each from the same state"
        losses = np.abs(followed["losses"] - led["losses"]) / np.abs(led["losses"])
        # NaN counts as infinite: a maximum may ignore it.
        difference = np.nan_to_num(
            np.max([followed["weights_difference"], followed["state_difference"], losses], axis=0), nan=np.inf
        )
        assert len(difference) == job.updates
        compare.add(what, float(difference.max()), f"update {int(difference.argmax()) + 1}", tolerance=UPDATES)
        compare.moved(followed["moved"], least=VISIBLE * UPDATES)
        compare.add_curve(followed["losses"], led["losses"], followed["weights_difference"])
        return compare.findings
    ours, reference = keras.arrays(job), torch.arrays(job)
    if job.kind == "start":
        compare.worst("names, shapes, first weights", ours, reference, tolerance=0.0)
    elif job.kind == "outputs":
        unsure = has_batch_norm(job.model) and job.mode == "training" and job.dtype == "float32"
        gradients = _choose(reference, lambda name: name.startswith("gradient/"))
        rest = [name for name in {**ours, **reference} if name not in gradients]
        tolerance = ONE_PASS[job.dtype]
        compare.worst(f"outputs, losses, {job.mode}", ours, reference, tolerance=tolerance, names=rest)
        # In float32, gradients of BatchNorm are small differences of large numbers.
        tolerance_of_gradients = None if unsure else tolerance
        compare.worst(
            f"gradients, {job.mode}", ours, reference, tolerance=tolerance_of_gradients, names=list(gradients)
        )
    else:
        free = has_batch_norm(job.model)  # rounding grows from update to update
        what = counted(job.updates, "update") + (", free" if free else "")
        what += "" if job.strategy == "allreduce" else f", {job.strategy}"
        judged = job.dtype == "float64" and not free
        compare.worst(what, *_final(ours, reference), tolerance=UPDATES if judged else None)
        if job.strategy == "allreduce":
            compare.add_curve(ours["losses"], reference["losses"], _trace_difference(ours, reference))
        compare.moved(ours["moved"], least=VISIBLE * UPDATES)
    return compare.findings


def compare_ranks(job: ParityJob, more: ParitySide, one: ParitySide) -> ParityResults:
    """Compare several ranks with one of the same framework, whose global batch they share."""
    compare = _Comparer(job, more, one)
    ours, reference = more.arrays(job), one.arrays(job)
    what = counted(job.updates, "update")
    if job.dtype == "float64":
        tolerance: float | None = RANKS
    else:
        tolerance = EPOCH_OF_MLP if job.model == "mlp" else None
        first = [{name: value[0] for name, value in _trace(arrays).items()} for arrays in (ours, reference)]
        compare.worst("1 update", *first, tolerance=FIRST_UPDATE)
    compare.worst(what, *_final(ours, reference), tolerance=tolerance)
    if job.traced:
        compare.add_curve(ours["losses"], reference["losses"], _trace_difference(ours, reference))
    return compare.findings


def compare_runs(ours: RecordedRun, reference: RecordedRun, *, title: str, tolerance: float = UPDATES) -> ParityResults:
    """Compare the first weights, order, losses and final weights of two finished ordinary runs.

    Args:
        title: what they are, for tables.
        tolerance: of losses and weights.
    """
    config, hashes = reference.record.config, (ours.record.hashes, reference.record.hashes)
    assert isinstance(config, Config) and isinstance(hashes[0], Hashes) and isinstance(hashes[1], Hashes)
    same = [getattr(hashes[0], name) == getattr(hashes[1], name) for name in ("initial_weights", "sample_order")]
    losses = [{"losses": np.array([epoch.training_loss for epoch in run.epochs])} for run in (ours, reference)]
    weights = [load_weights(run.folder / WEIGHTS_FILE) for run in (ours, reference)]
    titles = [f"{run.record.framework} np {run.record.world.size}" for run in (ours, reference)]  # type: ignore[union-attr]
    findings = [
        ArrayComparison(
            model=config.model.model,
            what=f"{title}: {what}",
            optimizer="momentum",
            between=(titles[0], titles[1]),
            dropout="off",
            dtype=config.model.dtype,
            difference=difference,
            where=where,
            tolerance=limit,
        )
        for what, (difference, where), limit in (
            ("first weights, order", (0.0 if all(same) else math.inf, "hashes"), 0.0),
            ("losses of the epochs", worst_difference(*losses), tolerance),
            ("final weights", worst_difference(*weights), tolerance),
        )
    ]
    return ParityResults(findings, [])


class _Comparer:
    """Collects comparisons of one job and two sides."""

    def __init__(self, job: ParityJob, ours: ParitySide, reference: ParitySide) -> None:
        self.job = job
        self.between = (ours.title, reference.title)
        self.findings = ParityResults([], [])

    def worst(
        self,
        what: str,
        ours: Arrays,
        reference: Arrays,
        *,
        tolerance: float | None,
        names: list[str] | None = None,
    ) -> None:
        """Compare arrays, or only those with these names."""
        if names is not None:
            ours, reference = (_choose(arrays, names.__contains__) for arrays in (ours, reference))
        self.add(what, *worst_difference(ours, reference), tolerance=tolerance)

    def add(self, what: str, difference: float, where: str, *, tolerance: float | None) -> None:
        """Add a comparison."""
        self.findings.comparisons.append(
            ArrayComparison(
                model=self.job.model,
                what=what,
                optimizer=self.job.optimizer if self.job.kind in ("training", "exchange") else None,
                between=self.between,
                dropout="off" if has_dropout(self.job.model) else "none",
                dtype=self.job.dtype,
                difference=difference,
                where=where,
                tolerance=tolerance,
            )
        )

    def moved(self, moved: np.ndarray, *, least: float) -> None:
        """Check that every weight has moved: two weights that never change agree trivially."""
        if not moved.min() >= least:
            self.add("weights that moved", math.inf, "a weight that hardly changed", tolerance=0.0)

    def add_curve(self, ours: np.ndarray, reference: np.ndarray, weights_difference: np.ndarray) -> None:
        """Add a curve."""
        self.findings.curves.append(
            Curve(
                model=self.job.model,
                optimizer=self.job.optimizer,
                between=self.between,
                dtype=self.job.dtype,
                exchanged=self.job.kind == "exchange",
                losses=(ours.tolist(), reference.tolist()),
                weights_difference=weights_difference.tolist(),
            )
        )


def _choose(arrays: Arrays, condition: Callable[[str], bool]) -> Arrays:
    return {name: value for name, value in arrays.items() if condition(name)}


def _final(*sides: Arrays) -> list[Arrays]:
    """Return losses, final weights and optimizer state of each side."""
    return [_choose(arrays, lambda name: name.startswith(("losses", "weights/", "state/"))) for arrays in sides]


def _trace(arrays: Arrays) -> Arrays:
    return _choose(arrays, lambda name: name.startswith("trace/"))


def _trace_difference(ours: Arrays, reference: Arrays) -> np.ndarray:
    """Return (updates,) relative difference of the weights after each update; (0,) if they were not kept."""
    ours, reference = _trace(ours), _trace(reference)
    updates = len(next(iter(reference.values()), ()))
    return np.array(
        [
            worst_difference(*({name: value[update] for name, value in side.items()} for side in (ours, reference)))[0]
            for update in range(updates)
        ]
    )
