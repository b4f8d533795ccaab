"""`--compile` on two ranks and in one process, against runs that do not compile and against the other framework.

One start of two ranks and one of one process do the runs of a framework (`trainer_worker.py`); another one does those
of resnet34, which take longest to compile. `make test` has a run without a C++ compiler in `test_trainers.py`.
"""

import importlib.util
from pathlib import Path

import pytest
from strategy_runs import BATCH, DATASET, OFTEN, Starts, check_resumed, differences, weights_of
from trainer_runs import Job, launcher_command, run_command, train_command

from common.model.weights import Weights
from common.run_folder.records import Hashes

pytestmark = [pytest.mark.ranks, pytest.mark.ci]

TOLERANCE = 1e-11
CNN = ["--dataset", DATASET, "--model", "cnn", "--dtype", "float64", "--lr-scaling", "none", "--threads", "1"]
CNN += ["--epochs", "2", "--steps-per-epoch", "5", "--learning-rate", "0.05"]
EXACT, HALF, WHOLE = [*CNN, "--no-dropout"], ["--batch-size", str(BATCH)], ["--batch-size", str(2 * BATCH)]
AVERAGING = [*EXACT, *HALF, "--strategy", "averaging", "--average-every", "3"]
FROZEN = ["--dataset", "synthetic:64x32x32x1x3", "--model", "resnet34", "--dtype", "float64", "--batch-size", "8"]
FROZEN += ["--validation-share", "0.25", "--steps-per-epoch", "2", "--epochs", "2", "--momentum", "0"]
FROZEN += ["--batch-norm", "frozen_after_validation", "--threads", "1"]


def jobs(start: str) -> list[Job]:
    """Return the jobs of a start: of two ranks (`mpirun2`), of one process (`none`), or `frozen`."""

    def train(name: str, *arguments: str, patch: str = "") -> Job:
        return Job(name, [*arguments, "--name", name], patch=patch)

    if start == "frozen":
        return [
            train("frozen", *FROZEN, patch="shallow"),
            train("frozen_compiled", *FROZEN, "--compile", patch="shallow"),
        ]
    if start == "none":
        return [
            train("plain", *EXACT, *WHOLE),
            train("half", *EXACT, *HALF),
            train("compiled", *EXACT, *WHOLE, "--compile"),
            train("passes", *EXACT, *HALF, "--backward-passes-per-step", "2", "--compile"),
        ]
    return [
        train("plain", *EXACT, *HALF),
        train("compiled", *EXACT, *HALF, "--compile"),
        train("slow", *EXACT, *HALF, "--compile", "--slow", "1:1.5"),
        train("averaging", *AVERAGING),
        train("averaging_compiled", *AVERAGING, "--compile"),
        train("served", *EXACT, *HALF, "--strategy", "server", "--servers", "1", "--compile"),
        train("masks", *CNN, *HALF),
        train("masks_compiled", *CNN, *HALF, "--compile"),
        train("part", *CNN, *HALF, "--compile", *OFTEN, patch="stopped"),
        Job("part_resumed", ["--resume", "runs/part"]),
    ]


class AllStarts:
    """The runs of all starts."""

    def __init__(self, folder: Path) -> None:
        launchers = {"mpirun2": "mpirun2", "none": "none", "frozen": "none"}
        self.starts = {start: Starts(folder, jobs(start), launcher=launcher) for start, launcher in launchers.items()}

    def weights(self, framework: str, name: str, start: str = "mpirun2") -> Weights:
        return weights_of(self.starts[start].run(framework, name))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> AllStarts:
    return AllStarts(tmp_path_factory.mktemp("compile"))


@pytest.mark.parametrize(
    ("start", "name", "other_start", "other"),
    [
        ("mpirun2", "compiled", "mpirun2", "plain"),
        ("none", "compiled", "none", "plain"),
        ("none", "compiled", "mpirun2", "compiled"),
        ("none", "passes", "none", "plain"),
        pytest.param("frozen", "frozen_compiled", "frozen", "frozen", marks=pytest.mark.long),
        ("mpirun2", "slow", "mpirun2", "plain"),
        ("mpirun2", "averaging_compiled", "mpirun2", "averaging"),
        ("mpirun2", "served", "none", "half"),
    ],
)
def test_compiled_runs_have_the_weights_of_others(
    framework: str, start: str, name: str, other_start: str, other: str, runs: AllStarts
) -> None:
    ours, theirs = runs.weights(framework, name, start), runs.weights(framework, other, other_start)
    assert max(differences(ours, theirs).values()) < TOLERANCE


@pytest.mark.parametrize("start", ["none", "mpirun2"])
def test_both_frameworks_compiled_agree(start: str, runs: AllStarts) -> None:
    if any(importlib.util.find_spec(name) is None for name in ("torch", "tensorflow")):
        pytest.skip("needs both frameworks")
    one, other = (runs.weights(name, "compiled", start) for name in ("torch", "keras"))
    assert max(differences(one, other).values()) < 1e-8


def test_only_pytorch_keeps_the_masks_of_dropout(framework: str, runs: AllStarts) -> None:
    ours, theirs = runs.weights(framework, "masks_compiled"), runs.weights(framework, "masks")
    assert (max(differences(ours, theirs).values()) < TOLERANCE) == (framework == "torch")


def test_a_compiled_run_with_dropout_resumes_bit_for_bit(framework: str, runs: AllStarts) -> None:
    starts = runs.starts["mpirun2"]
    starts.outcomes(framework, "part_resumed")
    resumed, whole = starts.run(framework, "part"), starts.run(framework, "masks_compiled")
    check_resumed(resumed, whole, steps=[3])


def test_evaluation_stays_as_it_is(framework: str, runs: AllStarts) -> None:
    """The losses of compiled and other weights are equal as far as these are, by the same code."""
    run, plain = (runs.starts["none"].run(framework, name) for name in ("compiled", "plain"))
    assert isinstance(run.record.hashes, Hashes) and isinstance(plain.record.hashes, Hashes)
    assert run.record.hashes.initial_weights == plain.record.hashes.initial_weights
    for ours, theirs in zip(run.epochs, plain.epochs, strict=True):
        assert ours.training_loss == pytest.approx(theirs.training_loss, rel=TOLERANCE)


def test_a_missing_compiler_is_one_line_on_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    train = train_command("torch", [*EXACT, *HALF, "--compile", "--name", "none"])
    finished = run_command([*launcher_command("mpirun2"), *train], folder=tmp_path)
    (line,) = [line for line in finished.stderr.splitlines() if "error" in line]
    assert finished.code == 2 and "Traceback" not in finished.stderr
    assert "torch_impl/train.py: error: PyTorch cannot compile the model. Received: --compile, " in line
    assert "no-such-compiler" in line and line.endswith("or leave it out")
