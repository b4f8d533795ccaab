"""1, 2 and 4 ranks of one global batch are the same training; many runs in each start.

Four ranks train mlp alone: `test_parity.py` has the other models on them, among the longest tests.

Float64 is the proof: the ranks add the same gradients in another order, and nothing else may differ. In float32 that
order alone moves a ReLU or a maximum to the other side now and then, so one update is compared, and a whole epoch
only for the model that has neither.
"""

from pathlib import Path

import numpy as np
import pytest
from rule_workers import relative_difference
from trainer_runs import Job, Outcomes, run_jobs

from common.checks.parity_cases import IMAGES, make_spec
from common.model.weights import load_weights
from common.run_folder.records import DataRecord, Hashes, read_run

pytestmark = [pytest.mark.ranks, pytest.mark.ci]

MODELS = tuple(
    model for model in IMAGES if all(weight.trainable for weight in make_spec(model).weights)
)  # no BatchNorm
SIZES = (1, 2, 4)
GLOBAL_BATCH = 32
UPDATES = 30
TOLERANCES = {f"{model}-float64": 1e-11 for model in MODELS} | {f"{model}-update": 1e-6 for model in MODELS}
TOLERANCES["mlp-epoch"] = 1e-5
SAMPLES = GLOBAL_BATCH * UPDATES + 8  # the last 8 are left out, whatever the number of ranks


def jobs_of(size: int) -> list[Job]:
    """Return the runs of this number of ranks."""
    jobs = []
    for model in MODELS if size < 4 else ("mlp",):
        shape = "x".join(map(str, IMAGES[model][:3]))
        common = ["--dataset", f"synthetic:{SAMPLES}x{shape}x10", "--model", model, "--no-dropout", "--epochs", "1"]
        common += ["--batch-size", str(GLOBAL_BATCH // size), "--lr-scaling", "none", "--learning-rate", "0.05"]
        jobs += [
            Job(f"{model}-float64", [*common, "--dtype", "float64", "--name", f"{model}-float64-{size}"]),
            Job(f"{model}-update", [*common, "--max-steps", "1", "--name", f"{model}-update-{size}"]),
        ]
    mlp = ["--dataset", f"synthetic:{SAMPLES}x28x28x1x10", "--model", "mlp", "--epochs", "1"]
    jobs += [
        Job("mlp-epoch", [*mlp, "--batch-size", str(GLOBAL_BATCH // size), "--lr-scaling", "none",
                          "--name", f"mlp-epoch-{size}"]),
        # Neither 968 samples nor the 161 for test, nor those for validation, divide by 7 images x 2 or 4 ranks.
        Job("uneven", [*mlp, "--batch-size", "7", "--validation-share", "0.1", "--name", f"uneven-{size}"]),
    ]  # fmt: skip
    return jobs


class Starts:
    """Starts each framework with each number of ranks once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._done: dict[tuple[str, str], Outcomes | str] = {}

    def weights(self, framework: str, job: str, *, size: int, controller: str) -> dict[str, np.ndarray]:
        """Return the final weights of a job."""
        return load_weights(self.run_folder(framework, job, size=size, controller=controller) / "weights.safetensors")

    def run_folder(self, framework: str, job: str, *, size: int, controller: str) -> Path:
        """Return the run folder of a job that ended well on all ranks."""
        # mpirun: horovodrun would import both frameworks first, and only it can start Gloo.
        launcher = "none" if size == 1 else f"{'mpirun' if controller == 'mpi' else controller}{size}"
        folder = self.folder / f"{framework}-{launcher}"
        if (framework, launcher) not in self._done:
            folder.mkdir()
            self._done[framework, launcher] = run_jobs(framework, jobs_of(size), folder=folder, launcher=launcher)
        outcomes = self._done[framework, launcher]
        assert isinstance(outcomes, dict), outcomes
        assert [outcome.code for outcome in outcomes[job]] == [0] * size, outcomes[job]
        return folder / "runs" / f"{job}-{size}"


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Starts:
    return Starts(tmp_path_factory.mktemp("rank_parity"))


CONTROLLERS = ["mpi", pytest.param("gloo", marks=pytest.mark.long)]


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize(
    ("kind", "size"),
    [(job.name, size) for size in SIZES[1:] for job in jobs_of(size) if job.name in TOLERANCES],
)
def test_ranks_of_one_global_batch_train_alike(
    starts: Starts, framework: str, kind: str, size: int, controller: str
) -> None:
    one = starts.weights(framework, kind, size=1, controller=controller)
    more = starts.weights(framework, kind, size=size, controller=controller)
    assert sorted(one) == sorted(more)
    differences = {name: relative_difference(more[name], one[name]) for name in one}
    worst = max(differences, key=lambda name: differences[name])
    assert differences[worst] <= TOLERANCES[kind], (worst, differences[worst])
    hashes = [
        read_run(starts.run_folder(framework, kind, size=number, controller=controller)).record.hashes
        for number in (1, size)
    ]
    assert all(isinstance(hash_, Hashes) for hash_ in hashes)
    assert hashes[0].initial_weights == hashes[1].initial_weights  # type: ignore[union-attr]
    assert hashes[0].sample_order == hashes[1].sample_order  # type: ignore[union-attr]


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("size", SIZES)
def test_what_does_not_divide_is_left_out_in_training_alone(
    starts: Starts, framework: str, size: int, controller: str
) -> None:
    run = read_run(starts.run_folder(framework, "uneven", size=size, controller=controller))
    data = run.record.data
    assert run.state == "finished" and isinstance(data, DataRecord)
    assert data.training_samples + data.validation_samples == SAMPLES
    assert data.steps_per_epoch == data.training_samples // (7 * size)
    assert data.dropped_samples_per_epoch == data.training_samples % (7 * size) > 0
    totals = run.record.totals
    # Every test sample counts once: the accuracy is a whole number of them.
    accuracy = totals.test_accuracy  # type: ignore[union-attr]
    assert isinstance(accuracy, float)
    assert accuracy * data.test_samples == pytest.approx(round(accuracy * data.test_samples), abs=1e-6)
    assert data.test_samples % size or size == 1
