"""Both trainers as real processes, on small synthetic data: runs, resume, signals, and everything that can go wrong.

For each framework one start of two ranks and one of one process do many runs each (`trainer_worker.py`); signals, and
the ends of ranks under a launcher, are tested on the programs as users start them.
"""

import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import reference_rules
from PIL import Image
from rule_workers import relative_difference
from trainer_runs import (
    END_SECONDS,
    Finished,
    Job,
    Outcome,
    Outcomes,
    finish,
    launcher_command,
    our_lines,
    recording_command,
    run_command,
    run_jobs,
    start_command,
    train_command,
    wait_until,
)

from common.config import Config
from common.data.loading import load_dataset
from common.data.sharding import epoch_order, split_validation
from common.measurement.interference import Interference
from common.model.specs import model_spec
from common.model.weights import draw_initial_weights, load_weights, weights_hash
from common.run_folder.records import (
    EPOCHS_FILE,
    DataRecord,
    Evaluation,
    Hashes,
    NotRecorded,
    Run,
    Status,
    Totals,
    World,
    read_run,
)

pytestmark = pytest.mark.ranks
sizes = pytest.mark.parametrize("size", [2, pytest.param(1, marks=pytest.mark.ci)])

FRAMEWORKS = ("torch", "keras")
OTHER = {"torch": "keras", "keras": "torch"}
EXPORTED = {"torch": ".pt", "keras": ".keras"}
DATASET = "synthetic:1200x28x28x1x10"
DATA = ["--dataset", DATASET]
MLP = [*DATA, "--model", "mlp"]
# Dropout, momentum, warm-up and validation: 16 updates of 2 x 32 images an epoch, 1,080 training samples.
WHOLE = [*DATA, "--batch-size", "32", "--validation-share", "0.1"]
# No dropout, no scaling, float64: what two ranks and one process must agree on. 16, 16 and 8 updates.
DOUBLE = [*MLP, "--dtype", "float64", "--lr-scaling", "none", "--learning-rate", "0.05", "--validation-share", "0.1"]
FROZEN = ["--dataset", "synthetic:64x32x32x1x3", "--model", "resnet34", "--dtype", "float64", "--batch-size", "8"]
FROZEN += ["--validation-share", "0.25", "--steps-per-epoch", "2", "--epochs", "3", "--validate-every", "2"]
FROZEN += ["--keep", "0", "--batch-norm", "frozen_after_validation"]
DOUBLE += ["--epochs", "3", "--max-steps", "40"]
MLP_LAYERS = ["flatten to fc1", "sigmoid1", "fc2", "loss"]


def two_rank_jobs(framework: str) -> list[Job]:
    """Return the jobs of two ranks."""

    def train(name: str, *arguments: str, patch: str = "", watch: str = "", named: bool = True) -> Job:
        name_arguments = ["--name", f"{framework}2-{name}"] if named else []
        return Job(name, [*arguments, *name_arguments], patch=patch, watch=watch)

    steps = ["--epochs", "2", "--steps-per-epoch", "3"]
    return [
        train("whole", *WHOLE, "--epochs", "3", "--evaluate-first"),
        train("part", *WHOLE, "--epochs", "2", "--evaluate-first"),
        train("resumed", "--resume", f"runs/{framework}2-part", "--epochs", "3", named=False),
        train("double", *DOUBLE, "--batch-size", "32"),
        train("compiled", *DOUBLE, "--batch-size", "32", "--compile", patch="without_compiler"),
        train("replicated", *DOUBLE, "--batch-size", "32", "--validation", "replicated"),
        train("by_hand", *MLP, "--dtype", "float64", "--batch-size", "32", "--max-steps", "1", "--evaluate-first",
              "--validation-share", "0.1"),
        train("groups2", *DOUBLE, "--batch-size", "32", "--gradient-groups", "2"),
        train("groups4", *DOUBLE, "--batch-size", "32", "--gradient-groups", "4"),
        train("auto", *DOUBLE[:-4], "--epochs", "2", "--batch-size", "32", "--gradient-groups", "auto"),
        train("auto_resumed", "--resume", f"runs/{framework}2-auto", "--epochs", "3", "--max-steps", "40", named=False),
        train("float16", *MLP, *steps, "--compression", "fp16"),
        train("bfloat16", *MLP, *steps, "--mixed-precision", "bfloat16"),
        train("each", *MLP, *steps, "--gradient-groups", "each"),
        train("one", *MLP, *steps),
        train("share_gpu", *MLP, *steps, "--share-gpu", patch="without_gpu+unlike_starts"),
        train("share_nothing", *MLP, "--share-gpu"),
        train("channels_last", *DATA, "--model", "cnn", "--no-dropout", *steps),
        train("channels_first", *DATA, "--model", "cnn", "--no-dropout", *steps, "--no-channels-last"),
        train("early", *MLP, "--learning-rate", "0", "--steps-per-epoch", "2", "--epochs", "9",
              "--validation-share", "0.1", "--early-stop", "2"),
        train("unaveraged", *MLP, *steps, patch="unaveraged"),
        train("spoiled_average", *MLP, *steps, patch="spoiled_average"),
        train("unlike_starts", *MLP, *steps, patch="unlike_starts"),
        train("no_broadcast", *MLP, *steps, patch="no_broadcast"),
        train("unsharded", *DOUBLE, "--batch-size", "32", patch="unsharded"),
        train("unscaled", *MLP, *steps, patch="unscaled"),
        train("one_unscaled", *MLP, *steps, patch="one_unscaled"),
        train("one_differs", *MLP, *steps, patch="one_differs"),
        train("slow_source", *MLP, "--steps-per-epoch", "8", "--epochs", "1", patch="slow_source"),
        train("profile", *DOUBLE, "--batch-size", "32", "--profile"),
        train("profile_layers", *DOUBLE, "--batch-size", "32", "--profile-layers"),
        train("profile_straggler", *MLP, "--max-steps", "13", "--steps-per-epoch", "8", "--profile",
              patch="slow_source_of_one"),
        train("slow_model", *MLP, "--steps-per-epoch", "8", "--epochs", "1", patch="slow_model"),
        # `BAD_INPUT` contains the problem of each of the following.
        train("exists", *MLP, *steps, "--name", f"{framework}2-whole", named=False, watch=f"runs/{framework}2-whole"),
        train("batch", *MLP, "--batch-size", "601"),
        train("steps", *MLP, "--steps-per-epoch", "100"),
        train("model", *DATA, "--model", "resnet50"),
        train("dataset", "--dataset", "mnits"),
        train("flag", *MLP, "--epoch", "3"),
        train("short_profile", *MLP, "--max-steps", "5", "--profile"),
        train("sizes", "--dataset", "images:mixed"),
        train("small", "--dataset", "synthetic:1200x8x8x1x10", "--model", "cnn"),
        train("outputs", *MLP, "--outputs", "3"),
        train("gpu", *MLP, "--device", "gpu"),
        train("folder", *MLP, *steps, "--runs-folder", "file/runs"),
        train("full", *MLP, *steps, "--runs-folder", "disk", patch="full_disk"),
        train("nearly_full", *MLP, *steps, "--runs-folder", "disk", patch="nearly_full_disk"),
    ]  # fmt: skip


# job -> what its one line of error says
BAD_INPUT = {
    "exists": r"the run folder exists already and is not overwritten\. Received: runs/\w+2-whole\. Give another --name",
    "batch": r"the batch is larger than each rank's shard .*Received: --batch-size 601\. Give 600 or less",
    "steps": r"an epoch has 9 whole global batches of 128 images\. Received: --steps-per-epoch 100\. Give 9 or less",
    "model": r"unknown model\. Received: --model resnet50\. Choose one of mlp, cnn",
    "dataset": r"unknown data set\. Received: 'mnits'\. Did you mean mnist\?",
    "flag": r"Unrecognized options: --epoch, 3\. See",
    "short_profile": r"a profile leaves out the first 5 updates\. Received: --profile and 5 updates\. Train for more",
    "sizes": r"images of different sizes .*Received: .*Give --image-size",
    "small": r"the images are too small for cnn.* Received: 8 x 8 pixels",
    "outputs": r"the model has fewer outputs .* classes \(10\)\. Received: --outputs 3\.",
    "gpu": r"no GPU was found\. Received: --device gpu\. Use --device cpu",
    "share_nothing": r"there is nothing to share\. Received: --share-gpu and no GPU\. Leave it out",
    "folder": r"making the run folder failed: Not a directory\. Received: file/runs\. Name a folder",
    "full": r"writing the checkpoint failed: (No space left on device|File too large)\. Received: ",
    "nearly_full": r"writing the checkpoint failed: (No space left on device|File too large)\. Received: ",
    "unaveraged": r"the ranks do not hold the same weights after epoch 1: 4 of 4 tensors differ, the first is "
    r"fc1\.bias\. Received: rank 1 differs from rank 0\.",
    "spoiled_average": r"the ranks do not hold the same weights after epoch 1: 4 of 4 tensors differ",
    "no_broadcast": r"the ranks do not hold the same weights after the broadcast: 4 of 4 tensors differ",
    "one_unscaled": r"the ranks do not hold the same weights after epoch 1: 4 of 4 tensors differ",
    "one_differs": r"the ranks do not hold the same weights after the broadcast: 1 of 4 tensors differ, the first is "
    r"fc2\.bias\. Received: rank 1 differs from rank 0\.",
}


def one_process_jobs(framework: str, killed_epochs: int) -> list[Job]:
    """Return the jobs of one process, after those of two ranks of both frameworks and after the signals.

    Args:
        framework: torch or keras.
        killed_epochs: finished epochs of the killed run.
    """
    own, epochs = f"runs/{framework}2-whole", ["--epochs", str(killed_epochs + 1)]
    jobs = [
        Job("whole", [*WHOLE, "--epochs", "2", "--steps-per-epoch", "3", "--name", f"{framework}1-whole"]),
        Job(
            "averaging",
            [
                *WHOLE,
                "--epochs",
                "2",
                "--steps-per-epoch",
                "3",
                "--name",
                f"{framework}1-averaging",
                "--strategy",
                "averaging",
                "--average-every",
                "2",
                "--no-average-state",
            ],
        ),
        Job("double", [*DOUBLE, "--batch-size", "64", "--name", f"{framework}1-double"]),
        Job("profile", [*DOUBLE, "--batch-size", "64", "--profile", "--name", f"{framework}1-profile"]),
        Job(
            "profile_layers",
            [*DOUBLE, "--batch-size", "64", "--profile-layers", "--name", f"{framework}1-profile_layers"],
        ),
        Job("timeline", [*MLP, "--horovod-timeline"]),
        Job("frozen", [*FROZEN, "--name", f"{framework}1-frozen"], patch="shallow"),
        Job("nothing", [*MLP, "--epochs", "0", "--name", f"{framework}1-nothing"]),
        Job("ranks", ["--resume", f"runs/{framework}2-part", "--epochs", "9"], watch=f"runs/{framework}2-part"),
        Job(
            "foreign", ["--resume", f"runs/{framework}-foreign", "--epochs", "99999"], watch=f"runs/{framework}-foreign"
        ),
        Job("settings", ["--resume", own, "--epochs", "9", "--learning-rate", "1"], watch=own),
        Job("done", ["--resume", f"runs/{framework}1-double"]),
        Job("evaluate", [own], program="predict", watch=own),
        Job("classify", [own, *map(str, image_files())], program="predict"),
        Job("no_run", ["runs/none"], program="predict"),
        Job("no_image", [own, "file"], program="predict"),
        Job("outputs", [own], program="outputs"),
        Job("after_kill", ["--resume", f"runs/{framework}-SIGKILL", *epochs]),
        Job("never_killed", [*SIGNALLED, *epochs, "--name", f"{framework}1-never-killed"]),
    ]
    theirs = f"runs/{OTHER[framework]}2-whole"
    if importlib.util.find_spec(OTHER[framework]):
        jobs += [
            Job("other", ["--resume", theirs, "--epochs", "9"], watch=theirs),
            Job("evaluate_other", [theirs], program="predict", watch=theirs),
            Job("classify_other", [theirs, *map(str, image_files())], program="predict"),
            Job("outputs_other", [theirs], program="outputs"),
            Job("export_other", [theirs, "--output", f"model{EXPORTED[framework]}"], program="export", watch=theirs),
        ]
    return jobs


# job -> what its one line of error says
BAD_RESUME = {
    "ranks": r"the run was started with another number of ranks\. Received: -np 1\. Start it with -np 2",
    "foreign": r"these weights do not belong to mlp .* Received: ",
    "settings": r"a resumed run keeps its settings \(learning_rate is 0\.01\)\. Received: --learning-rate 1\.0\.",
    "timeline": r"a timeline shows what ranks exchange, and there is only one rank\. Received: --horovod-timeline\.",
    "done": r"the last epoch was cut short by --max-steps and cannot be resumed\. Received: --resume",
    "no_run": r"not a run folder: No such file or directory\. Received: runs/none/run\.json\.",
    "no_image": r"cannot read the image\. Received: file ",
    "other": r"a run is resumed by the framework that started it\. Received: runs/\S+ of \w+\. Use \w+_impl/train",
}

SIGNALLED = [*MLP, "--steps-per-epoch", "4", "--keep", "2"]
IMAGE_COUNT = 6


def image_files() -> list[Path]:
    """Return the files that `Starts.make_files` writes: test images in folders named as their classes."""
    labels = load_dataset(DATASET).test.labels[:IMAGE_COUNT]
    return [Path(f"images/class {label}/{number}.png") for number, label in enumerate(labels)]


class Starts:
    """Starts what a test asks for, once, and what that needs before it. All runs are in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._done: dict[str, Outcomes | str] = {}
        self._signals: dict[tuple[str, str], tuple[Finished, int]] = {}
        self.make_files()

    def make_files(self) -> None:
        """Make a file in the place of a folder, images, images of different sizes, and a small disk where allowed."""
        (self.folder / "file").write_text("no folder and no image")
        images = load_dataset(DATASET).test.images
        for number, file in enumerate(image_files()):
            (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[number, :, :, 0]).save(self.folder / file)
        for number in range(4):
            file = self.folder / f"mixed/class {number % 2}/{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (28 + number, 28)).save(file)
        (self.folder / "disk").mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(self.folder / "disk")]
        if shutil.which("mount"):
            subprocess.run(mount, capture_output=True, check=False)  # where it is not allowed, see `full_disk`

    def close(self) -> None:
        """Take the small disk away."""
        if (self.folder / "disk").is_mount():
            subprocess.run(["umount", str(self.folder / "disk")], check=True)

    def ranks(self, framework: str, size: int) -> Outcomes:
        """Return the outcomes of the jobs of one or two ranks."""
        if size == 2:
            return self._jobs(framework, two_rank_jobs(framework), launcher="mpirun2")
        if f"{framework}-none" not in self._done:
            for side in filter(importlib.util.find_spec, FRAMEWORKS):
                self.ranks(side, 2)
            self.signalled(framework, "SIGKILL")
            self._make_foreign(framework)
        killed = len(self.run(f"{framework}-SIGKILL").epochs)
        return self._jobs(framework, one_process_jobs(framework, killed), launcher="none")

    def long(self, framework: str, launcher: str, jobs: list[Job]) -> Outcomes:
        """Return the outcomes of jobs of two ranks."""
        return self._jobs(framework, jobs, launcher=f"{launcher}2")

    def _jobs(self, framework: str, jobs: list[Job], *, launcher: str) -> Outcomes:
        key = f"{framework}-{launcher}"
        if key not in self._done:
            self._done[key] = run_jobs(framework, jobs, folder=self.folder, launcher=launcher)
        outcomes = self._done[key]
        assert isinstance(outcomes, dict), outcomes
        return outcomes

    def _make_foreign(self, framework: str) -> None:
        """Make a run whose checkpoint is of another model."""
        runs = self.folder / "runs"
        shutil.copytree(runs / f"{framework}-SIGKILL", runs / f"{framework}-foreign")
        theirs = runs / f"{framework}2-whole/checkpoints/epoch-0003/weights.safetensors"
        for checkpoint in (runs / f"{framework}-foreign/checkpoints").glob("epoch-*"):
            shutil.copy(theirs, checkpoint)

    def signalled(self, framework: str, name: str) -> tuple[Finished, int]:
        """Return how a trainer ended that was sent a signal after its first epoch, and its process number."""
        key = (framework, name)
        if key not in self._signals:
            arguments = [*SIGNALLED, "--epochs", "100000", "--name", f"{framework}-{name}"]
            process = start_command(train_command(framework, arguments), folder=self.folder)
            epochs = self.folder / f"runs/{framework}-{name}" / EPOCHS_FILE
            wait_until(lambda: epochs.exists() and epochs.stat().st_size > 0, process=process)
            process.send_signal(getattr(signal, name))
            self._signals[key] = finish(process, within_seconds=END_SECONDS), process.pid
        return self._signals[key]

    def run(self, name: str) -> Run:
        """Return a run, validated."""
        return read_run(self.folder / "runs" / name)


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starts]:
    made = Starts(tmp_path_factory.mktemp("trainers"))
    yield made
    made.close()


def first(outcomes: Outcomes, job: str) -> Outcome:
    """Return rank 0's outcome of a job that went well on all ranks, where the others printed nothing."""
    assert [outcome.code for outcome in outcomes[job]] == [0] * len(outcomes[job]), outcomes[job]
    assert all(outcome.stdout == "" for outcome in outcomes[job][1:])
    assert all(outcome.stderr == "" for outcome in outcomes[job]), outcomes[job]
    return outcomes[job][0]


def totals(run: Run) -> Totals:
    assert isinstance(run.record.totals, Totals)
    return run.record.totals


def initial_loss(run: Run) -> float:
    assert isinstance(run.record.initial_test, Evaluation) and run.record.initial_test.loss is not None
    return run.record.initial_test.loss


def hashes(run: Run) -> Hashes:
    assert isinstance(run.record.hashes, Hashes)
    return run.record.hashes


def status(run: Run) -> Status:
    assert isinstance(run.record.status, Status)
    return run.record.status


def figure(value: float | NotRecorded | None) -> float:
    assert isinstance(value, float)
    return value


def weights_of(run: Run) -> dict[str, np.ndarray]:
    return load_weights(run.folder / "weights.safetensors")


def check_one_line(outcomes: list[Outcome], *, program: str, message: str) -> None:
    """Check that every rank ended with 2, and that rank 0 alone printed one line."""
    assert [outcome.code for outcome in outcomes] == [2] * len(outcomes), outcomes
    assert [outcome.stderr for outcome in outcomes[1:]] == [""] * (len(outcomes) - 1)
    assert re.fullmatch(rf"{program}: error: {message}.*\n", outcomes[0].stderr), outcomes[0].stderr
    assert len(outcomes[0].stderr.splitlines()) == 1


@sizes
def test_a_run_is_recorded_and_printed(starts: Starts, framework: str, size: int) -> None:
    printed = first(starts.ranks(framework, size), "whole").stdout
    run = starts.run(f"{framework}{size}-whole")
    epochs, steps = (3, 16) if size == 2 else (2, 3)

    assert run.state == "finished" and run.record.framework == framework and run.record.origin == "measured"
    assert isinstance(run.record.world, World)
    world = run.record.world
    started_by = ("mpi", "mpirun") if size == 2 else ("none", "none")
    assert (world.size, world.controller, world.launcher) == (size, *started_by)
    assert [epoch.steps for epoch in run.epochs] == [steps] * epochs
    for epoch in run.epochs:
        assert isinstance(epoch.images_per_second, float) and isinstance(epoch.training_seconds, float)
        assert epoch.images_per_second == pytest.approx(steps * 32 * size / epoch.training_seconds)
        assert isinstance(epoch.training_accuracy, float) and isinstance(epoch.validation_accuracy, float)
        # Whole numbers of right answers among all samples of all ranks.
        assert epoch.training_accuracy * steps * 32 * size == pytest.approx(
            round(epoch.training_accuracy * steps * 32 * size)
        )
        assert epoch.validation_accuracy * 120 == pytest.approx(round(epoch.validation_accuracy * 120))
    assert [epoch.learning_rate for epoch in run.epochs] == [0.01 * size] * epochs  # warmed up at the end of the first
    assert (totals(run).epochs, totals(run).steps) == (epochs, steps * epochs)
    assert isinstance(totals(run).test_accuracy, float)
    assert hashes(run).final_weights == weights_hash(weights_of(run)) == run.epochs[-1].weights_hash
    assert hashes(run).final_weights != hashes(run).initial_weights
    assert [folder.name for folder in (run.folder / "checkpoints").iterdir()] == [f"epoch-{epochs:04d}"]
    isolation = run.record.isolation
    assert isinstance(isolation, Interference) and len(isolation.load_average_before) == 1
    assert len(isolation.peak_memory_bytes) == size and min(isolation.peak_memory_bytes) > 1e8
    assert isolation.peak_device_memory_bytes == [None] * size
    # No rank takes another for a stranger, nor its launcher.
    assert not [line for line in isolation.other_processes_before if "mpirun" in line or "orted" in line]

    lines = printed.splitlines()
    assert re.sub(" +", " ", lines[0]) == "layer type parameters output shape weights shape padding stride"
    assert "cnn: 21,840 parameters, 0.480 M multiply-adds per image" in lines
    settings = ("data: dataset synthetic", "model: ", "optimizer: ", "schedule: ", "training: ", "device: ", "record: ")
    assert all(sum(line.startswith(start) for line in lines) == 1 for start in settings)
    assert sum(line.startswith("epoch ") for line in lines) == epochs
    figures = r"loss \d\.\d+  accuracy +\d+\.\d\d %"
    for number, line in enumerate((line for line in lines if line.startswith("epoch ")), start=1):
        assert re.match(rf"epoch {number}/{epochs} +[\d,]+ images/s  {figures}  validation {figures}  ", line), line
    correct = round(figure(totals(run).test_accuracy) * 200)
    assert lines[-2].startswith("test loss ") and lines[-2].endswith(f"({correct}/200)")
    assert lines[-1] == f"run folder: runs/{framework}{size}-whole"


@pytest.mark.ci
def test_same_first_weights_and_order_everywhere(starts: Starts) -> None:
    frameworks = list(filter(importlib.util.find_spec, FRAMEWORKS))
    found = set()
    for side in frameworks:
        for size in (1, 2):
            starts.ranks(side, size)
            run = starts.run(f"{side}{size}-whole")
            found.add((hashes(run).initial_weights, hashes(run).sample_order))
    assert len(found) == 1
    other = {hashes(starts.run(f"{side}1-double")).initial_weights for side in frameworks}
    assert len(other) == 1 and other != {next(iter(found))[0]}


@pytest.mark.ci
def test_no_epochs_leave_the_first_weights(starts: Starts, framework: str) -> None:
    first(starts.ranks(framework, 1), "nothing")
    run = starts.run(f"{framework}1-nothing")
    assert hashes(run).final_weights == hashes(run).initial_weights and run.epochs == []


def test_it_learns(starts: Starts, framework: str) -> None:
    first(starts.ranks(framework, 2), "double")
    run = starts.run(f"{framework}2-double")
    losses = [figure(epoch.training_loss) for epoch in run.epochs]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.8 * losses[0]
    assert figure(run.epochs[-1].training_accuracy) > 0.5  # chance: 0.1
    assert figure(totals(run).test_accuracy) > 0.3


def test_compiled_passes_train_the_same_weights(starts: Starts, framework: str) -> None:
    """PyTorch's without a C++ compiler, which takes long: those are in `test_compile.py`."""
    first(starts.ranks(framework, 2), "compiled")
    plain, compiled = (starts.run(f"{framework}2-{name}") for name in ("double", "compiled"))
    ours, theirs = (load_weights(run.folder / "weights.safetensors") for run in (plain, compiled))
    assert ours.keys() == theirs.keys()
    assert max(relative_difference(ours[name], theirs[name]) for name in ours) < 1e-11
    assert isinstance(compiled.record.config, Config) and compiled.record.config.model.compile


def test_groups_of_gradients_train_the_same_weights(starts: Starts, framework: str) -> None:
    """Bit for bit: a sum of two numbers is the same in either order."""
    outcomes = starts.ranks(framework, 2)
    for job in ("groups2", "groups4", "auto_resumed"):
        first(outcomes, job)
    runs = [starts.run(f"{framework}2-{job}") for job in ("double", "groups2", "groups4", "auto")]
    assert len({hashes(run).final_weights for run in runs}) == 1
    sharing = [run.record.sharing for run in runs]
    assert all(sharing) and [isinstance(one.workers[0].exchange_seconds, float) for one in sharing[:3] if one] == [
        True,
        False,
        False,
    ]


def test_measured_groups_are_recorded_and_kept_when_a_run_is_resumed(starts: Starts, framework: str) -> None:
    outcomes, run = starts.ranks(framework, 2), starts.run(f"{framework}2-auto")
    groups, config = run.record.groups, run.record.config
    assert groups and isinstance(config, Config) and config.device.gradient_groups == "auto"
    assert list(groups.milliseconds) == ["one", "2", "4", "each"] and min(groups.milliseconds.values()) > 0
    assert groups.milliseconds[groups.chosen] <= groups.milliseconds["one"]
    printed = [first(outcomes, job).stdout.splitlines() for job in ("auto", "auto_resumed")]
    lines = [[line for line in of_job if line.startswith("gradient groups: ")] for of_job in printed]
    assert lines[0] == lines[1] and lines[0][0].startswith(f"gradient groups: {groups.chosen} (milliseconds per update")
    assert status(run).resumed_after_epochs == [2]


def test_max_steps_cuts_the_last_epoch(starts: Starts, framework: str) -> None:
    first(starts.ranks(framework, 2), "double")
    assert [epoch.steps for epoch in starts.run(f"{framework}2-double").epochs] == [16, 16, 8]


def check_resumed(starts: Starts, *, whole: str, resumed: str, after: int) -> None:
    """Check that a resumed run ended as the unbroken one did: weights, optimizer state, figures of each epoch."""
    one, other = starts.run(whole), starts.run(resumed)
    assert other.state == "finished"
    assert status(other).resumed_after_epochs == [after]
    assert hashes(one).final_weights == hashes(other).final_weights
    name = f"checkpoints/epoch-{len(one.epochs):04d}"
    for file in ("optimizer.safetensors", "weights.safetensors"):
        assert (one.folder / name / file).read_bytes() == (other.folder / name / file).read_bytes()
    for ours, theirs in zip(one.epochs, other.epochs, strict=True):
        assert ours.weights_hash == theirs.weights_hash
        assert (ours.training_loss, ours.validation_loss) == (theirs.training_loss, theirs.validation_loss)
        assert (ours.training_accuracy, ours.learning_rate) == (theirs.training_accuracy, theirs.learning_rate)
    assert totals(one).test_loss == totals(other).test_loss
    assert one.record.initial_test == other.record.initial_test


def test_resume_ends_bit_for_bit_as_an_unbroken_run(starts: Starts, framework: str) -> None:
    outcomes = starts.ranks(framework, 2)
    first(outcomes, "whole")
    first(outcomes, "part")
    assert f"resuming runs/{framework}2-part after epoch 2\n" in first(outcomes, "resumed").stdout
    check_resumed(starts, whole=f"{framework}2-whole", resumed=f"{framework}2-part", after=2)


def test_evaluates_before_training_where_asked(starts: Starts, framework: str) -> None:
    outcomes = starts.ranks(framework, 2)
    run = starts.run(f"{framework}2-whole")
    before = initial_loss(run)
    assert 2 < before < 3 and before != totals(run).test_loss
    assert "before training: test loss" in first(outcomes, "whole").stdout
    assert "before training" not in first(outcomes, "double").stdout
    assert starts.run(f"{framework}2-double").record.initial_test is None


def mlp_by_hand(
    run: Run, images: np.ndarray, labels: np.ndarray, weights: dict[str, np.ndarray]
) -> tuple[float, float]:
    """Return mean loss and accuracy of the model mlp, in NumPy alone: images (samples, height, width, 1) uint8."""
    data = run.record.data
    assert isinstance(data, DataRecord)
    pixels = (images.reshape(len(images), -1) / 255 - data.mean[0]) / data.standard_deviation[0]
    hidden = 1 / (1 + np.exp(-(pixels @ weights["fc1.weight"].T + weights["fc1.bias"])))
    outputs = hidden @ weights["fc2.weight"].T + weights["fc2.bias"]
    return reference_rules.cross_entropy(outputs, labels), float(np.mean(outputs.argmax(axis=1) == labels))


def test_losses_and_accuracies_are_those_worked_out_by_hand(starts: Starts, framework: str) -> None:
    """An update of two ranks: the test before it, its own batch, validation and test after it."""
    starts.ranks(framework, 2)
    run = starts.run(f"{framework}2-by_hand")
    config, dataset, totals_ = run.record.config, load_dataset(DATASET), totals(run)
    assert isinstance(config, Config) and isinstance(run.record.initial_test, Evaluation)
    training, validation = split_validation(1200, share=0.1, seed=config.training.seed)
    batch = training[epoch_order(len(training), seed=config.training.seed, epoch=1)[:64]]
    spec = model_spec("mlp", input_shape=(1, 28, 28), outputs=10)
    before = draw_initial_weights(spec, seed=config.training.seed, dtype="float64")
    after = weights_of(run)
    (epoch,) = run.epochs
    for found, split, rows, weights in (
        ((run.record.initial_test.loss, run.record.initial_test.accuracy), dataset.test, slice(None), before),
        ((epoch.training_loss, epoch.training_accuracy), dataset.train, batch, before),
        ((epoch.validation_loss, epoch.validation_accuracy), dataset.train, validation, after),
        ((totals_.test_loss, totals_.test_accuracy), dataset.test, slice(None), after),
    ):
        loss, accuracy = mlp_by_hand(run, split.images[rows], split.labels[rows], weights)
        assert found == (pytest.approx(loss, rel=1e-12), pytest.approx(accuracy, rel=1e-12))
    assert epoch.images_per_second == pytest.approx(64 / figure(epoch.training_seconds))
    assert relative_difference(after["fc1.weight"], before["fc1.weight"]) > 0


@pytest.mark.ci
def test_one_rank_by_averaging_is_one_process(starts: Starts, framework: str) -> None:
    starts.ranks(framework, 1)
    one, other = (starts.run(f"{framework}1-{name}") for name in ("averaging", "whole"))
    assert isinstance(one.record.hashes, Hashes) and one.record.hashes == other.record.hashes
    assert [epoch.training_loss for epoch in one.epochs] == [epoch.training_loss for epoch in other.epochs]


@pytest.mark.ci
def test_batch_norm_frozen_after_the_first_validation(starts: Starts, framework: str) -> None:
    """Which comes after epoch 2: epoch 3 leaves the statistics alone, and trains what BatchNorm scales by."""
    starts.ranks(framework, 1)
    folder = starts.run(f"{framework}1-frozen").folder / "checkpoints"
    epochs = [load_weights(folder / f"epoch-000{epoch}" / "weights.safetensors") for epoch in (1, 2, 3)]
    for name in epochs[0]:
        changes = [not np.array_equal(before[name], after[name]) for before, after in itertools.pairwise(epochs)]
        assert changes == [True, "running" not in name], name


@pytest.mark.ci
def test_frozen_batch_norm_trains_alike_in_both_frameworks(starts: Starts) -> None:
    for framework in FRAMEWORKS:
        starts.ranks(framework, 1)
    torch, keras = (weights_of(starts.run(f"{framework}1-frozen")) for framework in FRAMEWORKS)
    assert max(relative_difference(torch[name], keras[name]) for name in torch) < 1e-6


def test_frameworks_start_at_the_same_loss(starts: Starts) -> None:
    if any(importlib.util.find_spec(side) is None for side in FRAMEWORKS):
        pytest.skip("only one framework is installed")
    for side in FRAMEWORKS:
        starts.ranks(side, 2)
    one, other = (initial_loss(starts.run(f"{side}2-whole")) for side in FRAMEWORKS)
    assert one == pytest.approx(other, rel=1e-5)


def test_frameworks_train_alike_in_float64(starts: Starts) -> None:
    if any(importlib.util.find_spec(side) is None for side in FRAMEWORKS):
        pytest.skip("only one framework is installed")
    for side in FRAMEWORKS:
        starts.ranks(side, 2)
    one, other = (starts.run(f"{side}2-double") for side in FRAMEWORKS)
    for name, array in weights_of(one).items():
        assert relative_difference(weights_of(other)[name], array) < 1e-10, name
    for ours, theirs in zip(one.epochs, other.epochs, strict=True):
        assert ours.training_loss == pytest.approx(theirs.training_loss, rel=1e-12)
        assert ours.validation_accuracy == theirs.validation_accuracy


@pytest.mark.ci
def test_two_ranks_are_one_process_with_twice_the_batch(starts: Starts, framework: str) -> None:
    first(starts.ranks(framework, 2), "double")
    first(starts.ranks(framework, 1), "double")
    two, one = starts.run(f"{framework}2-double"), starts.run(f"{framework}1-double")
    for name, array in weights_of(one).items():
        assert array.dtype == np.float64
        assert relative_difference(weights_of(two)[name], array) < 1e-12, name
    for ours, theirs in zip(two.epochs, one.epochs, strict=True):
        assert ours.training_loss == pytest.approx(theirs.training_loss, rel=1e-6)
        assert ours.training_accuracy == theirs.training_accuracy
        assert ours.validation_accuracy == theirs.validation_accuracy


def test_without_sharding_two_ranks_train_differently(starts: Starts, framework: str) -> None:
    """What the test above compares would differ if every rank took the same samples."""
    outcomes = starts.ranks(framework, 2)
    first(outcomes, "unsharded")
    first(outcomes, "double")
    unsharded, sharded = starts.run(f"{framework}2-unsharded"), starts.run(f"{framework}2-double")
    differences = [
        relative_difference(weights_of(unsharded)[name], array) for name, array in weights_of(sharded).items()
    ]
    assert min(differences) > 1e-6


def test_the_learning_rate_grows_with_the_ranks(starts: Starts, framework: str) -> None:
    outcomes = starts.ranks(framework, 2)
    first(outcomes, "one")
    first(outcomes, "unscaled")
    scaled, unscaled = starts.run(f"{framework}2-one"), starts.run(f"{framework}2-unscaled")
    assert [epoch.learning_rate for epoch in scaled.epochs] == [0.02, 0.02]
    assert [epoch.learning_rate for epoch in unscaled.epochs] == [0.01, 0.01]
    assert hashes(scaled).final_weights != hashes(unscaled).final_weights


def test_the_broadcast_fixes_unlike_starts(starts: Starts, framework: str) -> None:
    outcomes = starts.ranks(framework, 2)
    first(outcomes, "one")
    first(outcomes, "unlike_starts")
    assert (
        hashes(starts.run(f"{framework}2-one")).final_weights
        == hashes(starts.run(f"{framework}2-unlike_starts")).final_weights
    )


def test_replicated_validation_finds_what_sharded_does(starts: Starts, framework: str) -> None:
    outcomes = starts.ranks(framework, 2)
    first(outcomes, "double")
    first(outcomes, "replicated")
    sharded, replicated = starts.run(f"{framework}2-double"), starts.run(f"{framework}2-replicated")
    assert hashes(sharded).final_weights == hashes(replicated).final_weights
    for ours, theirs in zip(sharded.epochs, replicated.epochs, strict=True):
        assert ours.validation_accuracy == theirs.validation_accuracy
        assert ours.validation_loss == pytest.approx(theirs.validation_loss, rel=1e-6)


def test_a_slow_source_is_waited_for_and_a_slow_model_is_not(starts: Starts, framework: str) -> None:
    outcomes = starts.ranks(framework, 2)
    seconds = {}
    for job in ("slow_source", "slow_model"):
        first(outcomes, job)
        (epoch,) = starts.run(f"{framework}2-{job}").epochs
        seconds[job] = figure(epoch.data_wait_seconds), figure(epoch.training_seconds)
    waiting, training = seconds["slow_source"]
    assert training / 2 < waiting <= training
    waiting, training = seconds["slow_model"]
    assert waiting < training / 2


@sizes
@pytest.mark.parametrize("kind", ["profile", "profile_layers"])
def test_a_profiled_run_trains_as_a_timed_one(starts: Starts, framework: str, size: int, kind: str) -> None:
    shown = first(starts.ranks(framework, size), kind).stdout
    assert "do not compare its times" in shown and "a step of 35, mean over ranks" in shown
    run, timed = starts.run(f"{framework}{size}-{kind}"), starts.run(f"{framework}{size}-double")
    for name, array in weights_of(timed).items():
        assert relative_difference(weights_of(run)[name], array) < 1e-12, name
    for ours, theirs in zip(run.epochs, timed.epochs, strict=True):
        assert figure(ours.training_loss) == pytest.approx(figure(theirs.training_loss), rel=1e-12)
        assert ours.training_accuracy == theirs.training_accuracy
    profile = run.record.profile
    assert profile is not None and timed.record.profile is None
    assert (profile.steps, profile.left_out_steps) == (35, 5)
    assert profile.parts_over_step == pytest.approx(1.0, abs=0.02)
    assert sum(profile.parts_seconds.values()) == pytest.approx(profile.step_seconds, rel=0.02)
    idle = {part for part, seconds in profile.parts_seconds.items() if seconds == 0}
    assert idle == ({"waiting", "allreduce"} if size == 1 else set())
    if kind == "profile":
        assert profile.layers is None
        return
    assert profile.layers is not None and list(profile.layers) == MLP_LAYERS
    for way in ("forward", "backward"):
        of_layers = [getattr(layer, way) for layer in profile.layers.values()]
        assert all(seconds > 0 for seconds in of_layers) and sum(of_layers) <= profile.parts_seconds[way] * 1.000001
    assert "    sigmoid1: forward " in shown


def test_a_straggler_reads_and_the_other_rank_waits(starts: Starts, framework: str) -> None:
    first(starts.ranks(framework, 2), "profile_straggler")
    profile = starts.run(f"{framework}2-profile_straggler").record.profile
    assert profile is not None and profile.steps == 13 - 5
    quick, late = zip(profile.parts_seconds_of_ranks["input"], profile.parts_seconds_of_ranks["waiting"], strict=True)
    (quick_input, quick_waiting), (late_input, late_waiting) = quick, late
    assert quick_input < late_input and late_waiting < quick_waiting
    assert profile.parts_over_step == pytest.approx(1.0, abs=0.02)


@pytest.mark.ci
@pytest.mark.parametrize("launcher", ["mpi", "gloo"])
def test_the_timeline_is_a_whole_list_of_trace_events(framework: str, launcher: str, tmp_path: Path) -> None:
    arguments = [*MLP, "--steps-per-epoch", "3", "--epochs", "2", "--horovod-timeline", "--name", "timeline"]
    command = [*launcher_command(f"{launcher}2"), *train_command(framework, arguments)]
    finished = run_command(command, folder=tmp_path)
    assert finished.code == 0, finished
    events = json.loads((tmp_path / "runs/timeline/timeline.json").read_text())
    assert sum(event.get("name", "").endswith("ALLREDUCE") and event["ph"] == "B" for event in events) >= 6


def test_early_stop(starts: Starts, framework: str) -> None:
    printed = first(starts.ranks(framework, 2), "early").stdout
    run = starts.run(f"{framework}2-early")
    assert run.state == "finished"
    assert [epoch.steps for epoch in run.epochs] == [2, 2, 2]  # the first is the best, then patience for two
    assert "early stop: the validation loss has not improved" in printed


def test_compressed_grouped_and_less_precise_gradients_keep_ranks_equal(starts: Starts, framework: str) -> None:
    outcomes = starts.ranks(framework, 2)
    for job in ("float16", "bfloat16", "each", "one"):
        first(outcomes, job)  # the run itself compares the weights of the ranks after every epoch
    jobs = ("one", "each", "float16", "bfloat16")
    plain, each, half, mixed = (weights_of(starts.run(f"{framework}2-{job}")) for job in jobs)
    for name, array in plain.items():
        assert relative_difference(each[name], array) < 1e-6, name
        assert 0 < relative_difference(half[name], array) < 1e-2, name
        assert 0 < relative_difference(mixed[name], array) < 5e-2, name
        assert mixed[name].dtype == np.float32, name


def test_gradients_and_first_weights_go_through_host_memory_where_ranks_share_a_gpu(
    starts: Starts, framework: str
) -> None:
    """On CPUs, and from unlike first weights: the rank that draws others has to receive rank 0's."""
    outcomes = starts.ranks(framework, 2)
    assert "ranks share GPUs and exchange gradients in host memory" in first(outcomes, "share_gpu").stdout
    run, plain = (starts.run(f"{framework}2-{job}") for job in ("share_gpu", "one"))
    assert run.record.config.device.share_gpu  # type: ignore[union-attr]
    for name, array in weights_of(plain).items():
        assert np.array_equal(weights_of(run)[name], array), name


def test_channels_first_train_alike_under_pytorch_and_need_a_gpu_under_keras(starts: Starts, framework: str) -> None:
    outcomes = starts.ranks(framework, 2)
    first(outcomes, "channels_last")
    last = starts.run(f"{framework}2-channels_last")
    assert isinstance(last.record.world, World)
    if framework == "keras":
        assert isinstance(last.record.world.pinned_memory, NotRecorded)
        words = r"TensorFlow's kernels for CPUs need channels last\. Received: --no-channels-last and no GPU\."
        check_one_line(outcomes["channels_first"], program="keras_impl/train.py", message=words)
        return
    assert last.record.world.pinned_memory is False
    first(outcomes, "channels_first")
    moved = weights_of(starts.run("torch2-channels_first"))
    for name, array in weights_of(last).items():
        assert relative_difference(moved[name], array) < 1e-5, name


@pytest.mark.parametrize("job", BAD_INPUT)
def test_bad_input_is_one_line_and_code_2_of_every_rank(starts: Starts, framework: str, job: str) -> None:
    outcomes = starts.ranks(framework, 2)[job]
    check_one_line(outcomes, program=f"{framework}_impl/train.py", message=BAD_INPUT[job])
    assert all(outcome.untouched in (None, True) for outcome in outcomes)
    run = starts.folder / "runs" / f"{framework}2-{job}"
    if BAD_INPUT[job].startswith("the ranks do not hold"):
        assert read_run(run).state == "failed" and read_run(run).epochs == []
        assert not (run / "weights.safetensors").exists()
    else:
        assert not run.exists()


@pytest.mark.parametrize(("job", "states"), [("nearly_full", {"failed"}), ("full", {"running", "killed"})])
def test_full_disk_leaves_no_half_files(starts: Starts, framework: str, job: str, states: set[str]) -> None:
    starts.ranks(framework, 2)
    run = read_run(starts.folder / f"disk/{framework}2-{job}")
    assert run.state in states and run.epochs == []  # where nothing can be written, not even that it failed
    files = sorted(str(file.relative_to(run.folder)) for file in run.folder.rglob("*"))
    assert files == ["checkpoints", EPOCHS_FILE, "run.json"]


@pytest.mark.ci
@pytest.mark.parametrize("job", BAD_RESUME)
def test_bad_resume_and_prediction_touch_nothing(starts: Starts, framework: str, job: str) -> None:
    outcomes = starts.ranks(framework, 1)
    if job == "other" and job not in outcomes:
        pytest.skip("only one framework is installed")
    program = "predict" if job.startswith("no_") else "train"
    check_one_line(outcomes[job], program=f"{framework}_impl/{program}.py", message=BAD_RESUME[job])
    assert outcomes[job][0].untouched in (None, True)


@pytest.mark.ci
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_interrupts_at_once(starts: Starts, framework: str, name: str) -> None:
    finished, _ = starts.signalled(framework, name)
    assert finished.code == 128 + getattr(signal, name), finished.stderr
    assert our_lines(finished.stderr) == [f"interrupted by {name}; finished epochs are kept, continue with --resume"], (
        finished.stderr
    )
    assert "Traceback" not in finished.stderr
    run = starts.run(f"{framework}-{name}")
    assert run.state == "interrupted" and status(run).message == f"received {name}"
    assert status(run).ended_at is not None
    assert run.epochs and not (run.folder / "weights.safetensors").exists()


@pytest.mark.ci
def test_a_killed_run_is_reported_and_resumes(starts: Starts, framework: str) -> None:
    finished, process = starts.signalled(framework, "SIGKILL")
    assert finished.code == -signal.SIGKILL
    outcomes = starts.ranks(framework, 1)  # which resume it
    first(outcomes, "after_kill")
    first(outcomes, "never_killed")
    run = starts.run(f"{framework}-SIGKILL")
    check_resumed(
        starts,
        whole=f"{framework}1-never-killed",
        resumed=f"{framework}-SIGKILL",
        after=len(run.epochs) - 1,
    )
    # As it was found before: still "running", by a process that is gone.
    record = json.loads((run.folder / "run.json").read_text())
    record["status"] |= {"state": "running", "process": process, "host": socket.gethostname()}
    (run.folder / "run.json").write_text(json.dumps(record))
    assert read_run(run.folder).state == "killed"


@pytest.mark.ci
def test_predict_finds_what_training_recorded(starts: Starts, framework: str) -> None:
    printed = first(starts.ranks(framework, 1), "evaluate").stdout
    check_evaluation(printed, starts.run(f"{framework}2-whole"))


def check_evaluation(printed: str, run: Run) -> None:
    """Check that `predict.py` found the test loss and accuracy of the run folder."""
    match = re.match(rf"{DATASET}: test loss (\d\.\d+), accuracy \d+\.\d\d % \((\d+)/200\)\n", printed)
    assert match, printed
    assert float(match[1]) == pytest.approx(totals(run).test_loss, abs=1e-4)
    assert int(match[2]) == round(figure(totals(run).test_accuracy) * 200)
    rows = [line for line in printed.splitlines()[1:] if re.match(r"class \d ", line)]
    matrix = np.array([[int(cell) for cell in row.split()[2:]] for row in rows])
    assert matrix.shape == (10, 10) and matrix.sum() == 200 and np.trace(matrix) == int(match[2])


@pytest.mark.ci
def test_predict_reads_runs_of_the_other_framework(starts: Starts, framework: str) -> None:
    outcomes, other = starts.ranks(framework, 1), OTHER[framework]
    if "evaluate_other" not in outcomes:
        pytest.skip("only one framework is installed")
    check_evaluation(first(outcomes, "evaluate_other").stdout, starts.run(f"{other}2-whole"))
    ours, theirs = first(outcomes, "outputs_other").value, first(starts.ranks(other, 1), "outputs").value
    assert relative_difference(np.array(ours), np.array(theirs)) < 1e-5
    assert outcomes["evaluate_other"][0].untouched and outcomes["export_other"][0].untouched
    exported = first(outcomes, "export_other").stdout
    assert exported.startswith(f"export: model{EXPORTED[framework]} (0.1 MB): cnn for images of 28 x 28 pixels")
    # Image files: the same classes, and probabilities to the digit that is shown or its neighbor.
    lines, twins = first(outcomes, "classify_other").stdout, first(starts.ranks(other, 1), "classify").stdout
    number = r"\d+\.\d"
    assert re.sub(number, "", lines) == re.sub(number, "", twins)
    assert np.abs(np.array(re.findall(number, lines), float) - np.array(re.findall(number, twins), float)).max() < 0.11


@pytest.mark.ci
def test_predict_classifies_image_files(starts: Starts, framework: str) -> None:
    outcomes = starts.ranks(framework, 1)
    lines = first(outcomes, "classify").stdout.splitlines()
    outputs = np.array(first(outcomes, "outputs").value)[:IMAGE_COUNT]
    probabilities = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    assert len(lines) == IMAGE_COUNT + 1 + 10  # then the confusion matrix, as the folders are named after the classes
    for line, file, row in zip(lines, image_files(), probabilities, strict=False):
        assert line.startswith(str(file))
        shown = [(int(name), float(share)) for name, share in re.findall(r" class (\d) (\d+\.\d) %", line)]
        assert [share for _, share in shown] == pytest.approx(sorted(100 * row)[:-4:-1], abs=0.06)
        assert [100 * row[name] for name, _ in shown] == pytest.approx([share for _, share in shown], abs=0.06)
    rows = [[int(cell) for cell in line.split()[2:]] for line in lines[IMAGE_COUNT + 1 :]]
    correct = [int(file.parent.name.split()[1]) for file in image_files()] == outputs.argmax(axis=1)
    assert np.sum(rows) == IMAGE_COUNT and np.trace(np.array(rows)) == correct.sum()


# What only rank 0 finds out under MPI (the run folder), what every rank does under Gloo (the batch).
LAUNCHED = [
    ("torch", "mpi"),
    pytest.param("keras", "mpi", marks=pytest.mark.ci),
    pytest.param("torch", "gloo", marks=pytest.mark.ci),
    pytest.param("keras", "gloo", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("side", "launcher"), LAUNCHED)
def test_every_rank_ends_with_2_under_a_launcher(side: str, launcher: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(side) is None:
        pytest.skip(f"{side} is not installed")
    arguments, message = [*MLP, "--batch-size", "601"], "the batch is larger than each rank's shard"
    if launcher == "mpi":
        arguments, message = [*MLP, "--max-steps", "4", "--name", "taken"], "the run folder exists already"
        (tmp_path / "runs/taken").mkdir(parents=True)
        (tmp_path / "runs/taken/file").write_text("mine")
    codes = tmp_path / "codes"
    codes.mkdir()
    command = [*launcher_command(f"{launcher}2"), *recording_command(side, arguments, codes=codes)]
    finished = run_command(command, folder=tmp_path)
    lines = our_lines(finished.stdout + finished.stderr)
    assert len(lines) == 1 and f"{side}_impl/train.py: error: {message}" in lines[0], finished
    assert "Traceback" not in lines[0] and finished.code in (1, 2)
    assert {file.name: file.read_text() for file in codes.glob("rank?")} == {"rank0": "2\n", "rank1": "2\n"}, finished
    if launcher == "mpi":
        assert [file.read_text() for file in (tmp_path / "runs/taken").iterdir()] == ["mine"]


LONG_CASES = {
    "adam": [*DATA, "--optimizer", "adam", "--learning-rate", "0.001"],
    "adamw": [*DATA, "--optimizer", "adamw", "--learning-rate", "0.001", "--weight-decay", "0.1"],
    "rmsprop": [*DATA, "--optimizer", "rmsprop", "--learning-rate", "0.001"],
    "nesterov": [*DATA, "--nesterov", "--weight-decay", "0.001", "--compression", "fp16"],
    "resnet34": ["--dataset", "synthetic:120x33x37x1x3", "--model", "resnet34", "--batch-size", "4"],
}


@pytest.mark.long
@pytest.mark.parametrize("case", LONG_CASES)
def test_resume_of_every_optimizer_and_of_batch_norm(starts: Starts, framework: str, case: str) -> None:
    outcomes = starts.long(framework, "mpi", long_jobs(framework))
    for job in (f"{case}-whole", f"{case}-part", f"{case}-resumed"):
        first(outcomes, job)
    check_resumed(starts, whole=f"{framework}-{case}-whole", resumed=f"{framework}-{case}-part", after=1)


def long_jobs(framework: str, *, cases: tuple[str, ...] = tuple(LONG_CASES), prefix: str = "") -> list[Job]:
    """Return an unbroken run, a broken one and its resumption for each case."""
    jobs = []
    for case in cases:
        settings, name = [*LONG_CASES[case], "--steps-per-epoch", "4"], f"{prefix}{framework}-{case}"
        jobs += [
            Job(f"{case}-whole", [*settings, "--epochs", "2", "--name", f"{name}-whole"]),
            Job(f"{case}-part", [*settings, "--epochs", "1", "--name", f"{name}-part"]),
            Job(f"{case}-resumed", ["--resume", f"runs/{name}-part", "--epochs", "2"]),
        ]
    return jobs


@pytest.mark.long
def test_resume_over_gloo(starts: Starts, framework: str) -> None:
    outcomes = starts.long(framework, "gloo", long_jobs(framework, cases=("adam",), prefix="gloo-"))
    for outcome in outcomes:
        first(outcomes, outcome)
    run = starts.run(f"gloo-{framework}-adam-whole")
    assert isinstance(run.record.world, World) and run.record.world.controller == "gloo"
    check_resumed(starts, whole=f"gloo-{framework}-adam-whole", resumed=f"gloo-{framework}-adam-part", after=1)


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["mpi", "gloo"])
@pytest.mark.parametrize("way", ["Ctrl-C", "launch and SIGTERM"])
def test_interrupted_under_a_launcher(framework: str, launcher: str, way: str, tmp_path: Path) -> None:
    arguments = [*SIGNALLED, "--epochs", "100000", "--name", "interrupted"]
    launch = [sys.executable, "-m", "launch", "train", "--framework", framework, "--np", "2", "--controller", launcher]
    start = [*launcher_command(f"{launcher}2"), *train_command(framework, [])] if way == "Ctrl-C" else [*launch, "--"]
    process = start_command([*start, *arguments], folder=tmp_path)
    epochs = tmp_path / "runs/interrupted" / EPOCHS_FILE
    wait_until(lambda: epochs.exists() and epochs.stat().st_size > 0, process=process)
    if way == "Ctrl-C":
        os.killpg(process.pid, signal.SIGINT)  # a terminal signals all processes
    else:
        process.send_signal(signal.SIGTERM)  # `kill` and batch systems signal one
    finished = finish(process, within_seconds=END_SECONDS)
    assert finished.code not in (0, 124), finished
    run = read_run(tmp_path / "runs/interrupted")
    assert run.state == "interrupted" and run.epochs
    resume = ["--resume", "runs/interrupted", "--epochs", str(len(run.epochs) + 1)]
    finished = run_command([*start, *resume], folder=tmp_path)
    assert finished.code == 0 and "run folder: runs/interrupted" in finished.stdout, finished
    assert read_run(tmp_path / "runs/interrupted").state == "finished"
