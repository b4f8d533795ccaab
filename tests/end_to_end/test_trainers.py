"""What both trainers record, print and refuse, on small synthetic data. What goes wrong is one line, no half files."""

import itertools
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import reference_rules
from frameworks import need
from jobs import FRAMEWORKS, Job, Jobs, keras_in_ci, relative_difference, resumed, train
from PIL import Image
from processes import launcher_command, run_command, train_command

from common.data.loading import load_dataset
from common.data.sharding import epoch_order, split_validation
from common.model.specs import model_spec
from common.model.weights import draw_initial_weights, load_weights, weights_hash
from common.run_folder.records import EPOCHS_FILE, NotRecorded, read_run

pytestmark = pytest.mark.ranks
sizes = pytest.mark.parametrize("size", [2, pytest.param(1, marks=pytest.mark.ci)])

DATASET = "synthetic:1200x28x28x1x10"
DATA = ["--dataset", DATASET]
MLP = [*DATA, "--model", "mlp"]
# Dropout, momentum, warm-up and validation: 16 updates of 2 x 32 images an epoch, 1,080 training samples.
WHOLE = [*DATA, "--batch-size", "32", "--validation-share", "0.1"]
# No dropout, no scaling, float64: 16, 16 and 8 updates.
DOUBLE = [*MLP, "--dtype", "float64", "--lr-scaling", "none", "--learning-rate", "0.05", "--validation-share", "0.1"]
FROZEN = ["--dataset", "synthetic:64x32x32x1x3", "--model", "resnet34", "--dtype", "float64", "--batch-size", "8"]
FROZEN += ["--validation-share", "0.25", "--steps-per-epoch", "2", "--epochs", "3", "--validate-every", "2"]
FROZEN += ["--keep", "0", "--batch-norm", "frozen_after_validation"]
AUTO = [*DOUBLE, "--epochs", "2", "--batch-size", "32", "--gradient-groups", "auto"]
CUT = ["--epochs", "3", "--max-steps", "40"]
MLP_LAYERS = ["flatten to fc1", "sigmoid1", "fc2", "loss"]
STEPS = ["--epochs", "2", "--steps-per-epoch", "3"]
ONE_EPOCH = ["--epochs", "1", "--steps-per-epoch", "8"]


# Neither 968 samples nor the 161 for test, nor those for validation, divide by 7 images x 2 or 4 ranks.
UNEVEN_SAMPLES = 968
UNEVEN = {1: "none", 2: "mpirun2", 4: "mpirun4"}  # ranks, and their launcher


def all_jobs():
    """Return the jobs of two ranks, and those of one process."""
    uneven = ["--dataset", f"synthetic:{UNEVEN_SAMPLES}x28x28x1x10", "--model", "mlp", "--epochs", "1"]
    uneven += ["--batch-size", "7", "--validation-share", "0.1"]
    yield from (train(f"uneven{size}", *uneven, launcher=launcher) for size, launcher in UNEVEN.items())
    yield train("whole2", *WHOLE, "--epochs", "3", "--evaluate-first")
    yield train("whole1", *WHOLE, *STEPS, launcher="none")
    yield train("nothing", *MLP, "--epochs", "0", launcher="none")
    for size, launcher in ((1, "none"), (2, "mpirun2")):
        double = [*DOUBLE, *CUT, "--batch-size", str(64 // size)]
        yield train(f"double{size}", *double, launcher=launcher)
        yield train(f"profile{size}", *double, "--profile", launcher=launcher)
        yield train(f"profile_layers{size}", *double, "--profile-layers", launcher=launcher)
    by_hand = ["--dtype", "float64", "--batch-size", "32", "--max-steps", "1", "--evaluate-first"]
    yield train("by_hand", *MLP, *by_hand, "--validation-share", "0.1")
    yield train("auto", *AUTO)
    yield resumed("auto_resumed", "auto", *CUT)
    yield train("scaled", *MLP, *STEPS)
    yield train("shared_gpu", *MLP, *STEPS, "--share-gpu", patch="without_gpu")
    no_progress = ["--learning-rate", "0", "--steps-per-epoch", "2", "--epochs", "9"]
    yield train("early", *MLP, *no_progress, "--validation-share", "0.1", "--early-stop", "2")
    yield train("slow_source", *MLP, *ONE_EPOCH, patch="slow_source")
    yield train("slow_model", *MLP, *ONE_EPOCH, patch="slow_model")
    straggler = ["--max-steps", "13", "--steps-per-epoch", "8", "--profile"]
    yield train("straggler", *MLP, *straggler, patch="slow_source_of_one")
    yield train("frozen", *FROZEN, launcher="none", patch="shallow")
    # What is found only by ranks that have met; `UNEQUAL_RANKS` and `REFUSED` have the line of each.
    for name in UNEQUAL_RANKS:
        yield train(name, *MLP, *STEPS, patch=name)
    yield Job("exists", (*MLP, *STEPS, "--name", "whole2"), watch="runs/whole2", after=("whole2",))
    for name, (arguments, _) in REFUSED.items():
        yield train(name, *arguments)
    yield train("full", *MLP, *STEPS, "--runs-folder", "disk", patch="full_disk")
    yield train("nearly_full", *MLP, *STEPS, "--runs-folder", "disk", patch="nearly_full_disk")
    other_size = ["--resume", "runs/whole2", "--epochs", "9"]
    yield Job("other_size", tuple(other_size), watch="runs/whole2", launcher="none", after=("whole2",))
    settings = ["--resume", "runs/whole2", "--epochs", "9", "--learning-rate", "1"]
    yield Job("settings", tuple(settings), watch="runs/whole2", after=("whole2",))
    yield resumed("done", "double1", launcher="none")
    yield train("timeline", *MLP, "--horovod-timeline", launcher="none")


DIFFER = r"the ranks do not hold the same weights"
UNEQUAL_RANKS = {
    "unaveraged": rf"{DIFFER} after epoch 1: 4 of 4 tensors differ, the first is fc1\.bias\. Received: rank 1 differs "
    r"from rank 0\.",
    "spoiled_average": rf"{DIFFER} after epoch 1: 4 of 4 tensors differ",
    "no_broadcast": rf"{DIFFER} after the broadcast: 4 of 4 tensors differ",
    "one_unscaled": rf"{DIFFER} after epoch 1: 4 of 4 tensors differ",
    "one_differs": rf"{DIFFER} after the broadcast: 1 of 4 tensors differ, the first is fc2\.bias\. Received: rank 1 "
    r"differs from rank 0\.",
}
REFUSED = {
    "batch": (
        [*MLP, "--batch-size", "601"],
        r"the batch is larger than each rank's shard .*Received: --batch-size 601\. Give 600 or less",
    ),
    "steps": (
        [*MLP, "--steps-per-epoch", "100"],
        r"an epoch has 9 whole global batches of 128 images\. Received: --steps-per-epoch 100\. Give 9 or less",
    ),
    "model": ([*DATA, "--model", "resnet50"], r"unknown model\. Received: --model resnet50\. Choose one of mlp, cnn"),
    "dataset": (["--dataset", "mnits"], r"unknown data set\. Received: 'mnits'\. Did you mean mnist\?"),
    "flag": ([*MLP, "--epoch", "3"], r"Unrecognized options: --epoch, 3\. See"),
    "short_profile": (
        [*MLP, "--max-steps", "5", "--profile"],
        r"a profile leaves out the first 5 updates\. Received: --profile and 5 updates\. Train for more",
    ),
    "sizes": (["--dataset", "images:mixed"], r"images of different sizes .*Received: .*Give --image-size"),
    "small": (
        ["--dataset", "synthetic:1200x8x8x1x10", "--model", "cnn"],
        r"the images are too small for cnn.* Received: 8 x 8 pixels",
    ),
    "outputs": ([*MLP, "--outputs", "3"], r"the model has fewer outputs .* classes \(10\)\. Received: --outputs 3\."),
    "gpu": ([*MLP, "--device", "gpu"], r"no GPU was found\. Received: --device gpu\. Use --device cpu"),
    "share_nothing": (
        [*MLP, "--share-gpu"],
        r"there is nothing to share\. Received: --share-gpu and no GPU\. Leave it out",
    ),
    "folder": (
        [*MLP, *STEPS, "--runs-folder", "file/runs"],
        r"making the run folder failed: Not a directory\. Received: file/runs\. Name a folder",
    ),
}
FULL_DISK = r"writing the checkpoint failed: (No space left on device|File too large)\. Received: "
RESUMED_WRONGLY = {
    "exists": r"the run folder exists already and is not overwritten\. Received: runs/whole2\. Give another --name",
    "other_size": r"the run was started with another number of ranks\. Received: -np 1\. Start it with -np 2",
    "settings": r"a resumed run keeps its settings \(learning_rate is 0\.01\)\. Received: --learning-rate 1\.0\.",
    "done": r"the last epoch was cut short by --max-steps and cannot be resumed\. Received: --resume",
    "timeline": r"a timeline shows what ranks exchange, and there is only one rank\. Received: --horovod-timeline\.",
}

RUNS_ON = {"exists": 2, "other_size": 1, "settings": 2, "done": 1, "timeline": 1}  # ranks


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Also a file in the place of a folder, images of different sizes, and a small disk where that is allowed."""
    made = Jobs(tmp_path_factory.mktemp("trainers"), all_jobs())
    for framework in ("torch", "keras"):
        place = made.place(framework)
        (place / "file").write_text("no folder")
        for number in range(4):
            file = place / f"mixed/class {number % 2}/{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (28 + number, 28)).save(file)
        (place / "disk").mkdir()
        if shutil.which("mount"):
            mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place / "disk")]
            subprocess.run(mount, capture_output=True, check=False)  # where it is not allowed, see `full_disk`
    yield made
    for framework in ("torch", "keras"):
        disk = made.place(framework) / "disk"
        if disk.is_mount():
            subprocess.run(["umount", str(disk)], check=True)


def printed(jobs, framework, name):
    """Return what rank 0 printed in a job that went well, where the others printed nothing."""
    outcomes = jobs.outcomes(framework, name)
    assert [outcome.code for outcome in outcomes] == [0] * len(outcomes), outcomes
    assert all(outcome.stdout == "" for outcome in outcomes[1:])
    assert all(outcome.stderr == "" for outcome in outcomes), outcomes
    return outcomes[0].stdout


def check_one_line(outcomes, *, program, message):
    """Check that every rank ended with 2, and that rank 0 alone printed one line."""
    assert [outcome.code for outcome in outcomes] == [2] * len(outcomes), outcomes
    assert [outcome.stderr for outcome in outcomes[1:]] == [""] * (len(outcomes) - 1)
    assert re.fullmatch(rf"{program}: error: {message}.*\n", outcomes[0].stderr), outcomes[0].stderr


@sizes
def test_a_run_is_recorded_and_printed(jobs, framework, size):
    lines = printed(jobs, framework, f"whole{size}").splitlines()
    run = jobs.run(framework, f"whole{size}")
    totals, hashes = run.record.totals, run.record.hashes
    epochs, steps = (3, 16) if size == 2 else (2, 3)

    assert run.state == "finished" and run.record.framework == framework and run.record.origin == "measured"
    world = run.record.world
    started_by = ("mpi", "mpirun") if size == 2 else ("none", "none")
    assert (world.size, world.controller, world.launcher) == (size, *started_by)
    assert [epoch.steps for epoch in run.epochs] == [steps] * epochs
    for epoch in run.epochs:
        assert epoch.images_per_second == pytest.approx(steps * 32 * size / epoch.training_seconds)
        # Whole numbers of right answers among all samples of all ranks.
        assert epoch.training_accuracy * steps * 32 * size == pytest.approx(
            round(epoch.training_accuracy * steps * 32 * size)
        )
        assert epoch.validation_accuracy * 120 == pytest.approx(round(epoch.validation_accuracy * 120))
    assert [epoch.learning_rate for epoch in run.epochs] == [0.01 * size] * epochs  # warmed up at the end of the first
    assert (totals.epochs, totals.steps) == (epochs, steps * epochs)
    assert (
        hashes.final_weights
        == weights_hash(load_weights(run.folder / "weights.safetensors"))
        == run.epochs[-1].weights_hash
    )
    assert hashes.final_weights != hashes.initial_weights
    assert [folder.name for folder in (run.folder / "checkpoints").iterdir()] == [f"epoch-{epochs:04d}"]
    isolation = run.record.isolation
    assert len(isolation.load_average_before) == 1
    assert len(isolation.peak_memory_bytes) == size and min(isolation.peak_memory_bytes) > 1e8
    assert isolation.peak_device_memory_bytes == [None] * size
    # No rank takes another for a stranger, nor its launcher.
    assert not [line for line in isolation.other_processes_before if "mpirun" in line or "orted" in line]

    assert re.sub(" +", " ", lines[0]) == "layer type parameters output shape weights shape padding stride"
    assert "cnn: 21,840 parameters, 0.480 M multiply-adds per image" in lines
    settings = ("data: dataset synthetic", "model: ", "optimizer: ", "schedule: ", "training: ", "device: ", "record: ")
    assert all(sum(line.startswith(start) for line in lines) == 1 for start in settings)
    assert sum(line.startswith("epoch ") for line in lines) == epochs
    figures = r"loss \d\.\d+  accuracy +\d+\.\d\d %"
    for number, line in enumerate((line for line in lines if line.startswith("epoch ")), start=1):
        assert re.match(rf"epoch {number}/{epochs} +[\d,]+ images/s  {figures}  validation {figures}  ", line), line
    correct = round(totals.test_accuracy * 200)
    assert lines[-2].startswith("test loss ") and lines[-2].endswith(f"({correct}/200)")
    assert lines[-1] == f"run folder: runs/whole{size}"


@pytest.mark.ci
def test_no_epochs_leave_the_first_weights(jobs, framework):
    run = jobs.run(framework, "nothing")
    assert run.record.hashes.final_weights == run.record.hashes.initial_weights and run.epochs == []


def test_it_learns(jobs, framework):
    run = jobs.run(framework, "double2")
    losses = [epoch.training_loss for epoch in run.epochs]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.8 * losses[0]
    assert run.epochs[-1].training_accuracy > 0.5  # chance: 0.1
    assert run.record.totals.test_accuracy > 0.3


@keras_in_ci
def test_max_steps_cuts_the_last_epoch(jobs, framework):
    assert [epoch.steps for epoch in jobs.run(framework, "double2").epochs] == [16, 16, 8]


@keras_in_ci
def test_measured_groups_are_recorded_and_kept_when_a_run_is_resumed(jobs, framework):
    run = jobs.run(framework, "auto_resumed")
    groups = run.record.groups
    assert run.record.config.device.gradient_groups == "auto"
    assert list(groups.milliseconds) == ["one", "2", "4", "each"] and min(groups.milliseconds.values()) > 0
    assert groups.milliseconds[groups.chosen] <= groups.milliseconds["one"]
    lines = [
        [line for line in printed(jobs, framework, job).splitlines() if line.startswith("gradient groups: ")]
        for job in ("auto", "auto_resumed")
    ]
    assert lines[0] == lines[1] and lines[0][0].startswith(f"gradient groups: {groups.chosen} (milliseconds per update")
    assert run.record.status.resumed_after_epochs == [2]
    assert run.record.hashes.final_weights == jobs.run(framework, "double2").record.hashes.final_weights


@keras_in_ci
def test_evaluates_before_training_where_asked(jobs, framework):
    run = jobs.run(framework, "whole2")
    assert 2 < run.record.initial_test.loss < 3 and run.record.initial_test.loss != run.record.totals.test_loss
    assert "before training: test loss" in printed(jobs, framework, "whole2")
    assert "before training" not in printed(jobs, framework, "double2")
    assert jobs.run(framework, "double2").record.initial_test is None


def mlp_by_hand(run, images, labels, weights):
    """Return mean loss and accuracy of the model mlp, in NumPy alone: images (samples, height, width, 1) uint8."""
    data = run.record.data
    pixels = (images.reshape(len(images), -1) / 255 - data.mean[0]) / data.standard_deviation[0]
    hidden = 1 / (1 + np.exp(-(pixels @ weights["fc1.weight"].T + weights["fc1.bias"])))
    outputs = hidden @ weights["fc2.weight"].T + weights["fc2.bias"]
    return reference_rules.cross_entropy(outputs, labels), float(np.mean(outputs.argmax(axis=1) == labels))


def test_losses_and_accuracies_are_those_worked_out_by_hand(jobs, framework):
    """An update of two ranks: the test before it, its own batch, validation and test after it."""
    run, dataset = jobs.run(framework, "by_hand"), load_dataset(DATASET)
    config, first, last = run.record.config, run.record.initial_test, run.record.totals
    training, validation = split_validation(1200, share=0.1, seed=config.training.seed)
    batch = training[epoch_order(len(training), seed=config.training.seed, epoch=1)[:64]]
    spec = model_spec("mlp", input_shape=(1, 28, 28), outputs=10)
    before = draw_initial_weights(spec, seed=config.training.seed, dtype="float64")
    after = load_weights(run.folder / "weights.safetensors")
    (epoch,) = run.epochs
    for found, split, rows, weights in (
        ((first.loss, first.accuracy), dataset.test, slice(None), before),
        ((epoch.training_loss, epoch.training_accuracy), dataset.train, batch, before),
        ((epoch.validation_loss, epoch.validation_accuracy), dataset.train, validation, after),
        ((last.test_loss, last.test_accuracy), dataset.test, slice(None), after),
    ):
        loss, accuracy = mlp_by_hand(run, split.images[rows], split.labels[rows], weights)
        assert found == (pytest.approx(loss, rel=1e-12), pytest.approx(accuracy, rel=1e-12))
    assert epoch.images_per_second == pytest.approx(64 / epoch.training_seconds)
    assert relative_difference(after["fc1.weight"], before["fc1.weight"]) > 0


@pytest.mark.ci
def test_batch_norm_frozen_after_the_first_validation(jobs, framework):
    """Which comes after epoch 2: epoch 3 leaves the statistics alone, and trains what BatchNorm scales by."""
    folder = jobs.run(framework, "frozen").folder / "checkpoints"
    epochs = [load_weights(folder / f"epoch-000{epoch}" / "weights.safetensors") for epoch in (1, 2, 3)]
    for name in epochs[0]:
        changes = [not np.array_equal(before[name], after[name]) for before, after in itertools.pairwise(epochs)]
        assert changes == [True, "running" not in name], name


@keras_in_ci
def test_the_learning_rate_grows_with_the_ranks(jobs, framework):
    assert [epoch.learning_rate for epoch in jobs.run(framework, "scaled").epochs] == [0.02, 0.02]


def test_frameworks_start_at_the_same_loss(jobs):
    for framework in FRAMEWORKS:
        need(framework)
    torch, keras = (jobs.run(framework, "whole2").record.initial_test.loss for framework in FRAMEWORKS)
    assert torch == pytest.approx(keras, rel=1e-5)


@pytest.mark.ci
@pytest.mark.parametrize("size", UNEVEN)
def test_what_does_not_divide_is_left_out_in_training_alone(jobs, framework, size):
    run = jobs.run(framework, f"uneven{size}")
    data = run.record.data
    assert data.training_samples + data.validation_samples == UNEVEN_SAMPLES
    assert data.steps_per_epoch == data.training_samples // (7 * size)
    assert data.dropped_samples_per_epoch == data.training_samples % (7 * size) > 0
    # Every test sample counts once: the accuracy is a whole number of them.
    correct = run.record.totals.test_accuracy * data.test_samples
    assert correct == pytest.approx(round(correct), abs=1e-6)
    assert data.test_samples % size or size == 1


@keras_in_ci
def test_ranks_that_share_a_gpu_say_so(jobs, framework):
    words = "ranks share GPUs and exchange gradients in host memory"
    assert words in printed(jobs, framework, "shared_gpu")
    assert jobs.run(framework, "shared_gpu").record.config.device.share_gpu


@keras_in_ci
def test_a_slow_source_is_waited_for_and_a_slow_model_is_not(jobs, framework):
    (epoch,) = jobs.run(framework, "slow_source").epochs
    assert epoch.training_seconds / 2 < epoch.data_wait_seconds <= epoch.training_seconds
    (epoch,) = jobs.run(framework, "slow_model").epochs
    assert epoch.data_wait_seconds < epoch.training_seconds / 2


@keras_in_ci
@sizes
@pytest.mark.parametrize("kind", ["profile", "profile_layers"])
def test_a_profiled_run_trains_as_a_timed_one(jobs, framework, size, kind):
    shown = printed(jobs, framework, f"{kind}{size}")
    assert "do not compare its times" in shown and "a step of 35, mean over ranks" in shown
    run, timed = jobs.run(framework, f"{kind}{size}"), jobs.run(framework, f"double{size}")
    for name, array in load_weights(timed.folder / "weights.safetensors").items():
        assert relative_difference(load_weights(run.folder / "weights.safetensors")[name], array) < 1e-12, name
    for ours, theirs in zip(run.epochs, timed.epochs, strict=True):
        assert ours.training_loss == pytest.approx(theirs.training_loss, rel=1e-12)
        assert ours.training_accuracy == theirs.training_accuracy
    profile = run.record.profile
    assert timed.record.profile is None
    assert (profile.steps, profile.left_out_steps) == (35, 5)
    assert profile.parts_over_step == pytest.approx(1.0, abs=0.02)
    assert sum(profile.parts_seconds.values()) == pytest.approx(profile.step_seconds, rel=0.02)
    idle = {part for part, seconds in profile.parts_seconds.items() if seconds == 0}
    assert idle == ({"waiting", "allreduce"} if size == 1 else set())
    if kind == "profile":
        assert profile.layers is None
        return
    assert list(profile.layers) == MLP_LAYERS
    for way in ("forward", "backward"):
        of_layers = [getattr(layer, way) for layer in profile.layers.values()]
        assert all(seconds > 0 for seconds in of_layers) and sum(of_layers) <= profile.parts_seconds[way] * 1.000001
    assert "    sigmoid1: forward " in shown


@keras_in_ci
def test_a_straggler_reads_and_the_other_rank_waits(jobs, framework):
    profile = jobs.run(framework, "straggler").record.profile
    assert profile.steps == 13 - 5
    quick, late = zip(profile.parts_seconds_of_ranks["input"], profile.parts_seconds_of_ranks["waiting"], strict=True)
    (quick_input, quick_waiting), (late_input, late_waiting) = quick, late
    assert quick_input < late_input and late_waiting < quick_waiting
    assert profile.parts_over_step == pytest.approx(1.0, abs=0.02)


@pytest.mark.ci
@pytest.mark.parametrize("launcher", ["mpi", "gloo"])
def test_the_timeline_is_a_whole_list_of_trace_events(framework, launcher, tmp_path):
    arguments = [*MLP, "--steps-per-epoch", "3", "--epochs", "2", "--horovod-timeline", "--name", "timeline"]
    command = [*launcher_command(f"{launcher}2"), *train_command(framework, arguments)]
    finished = run_command(command, folder=tmp_path)
    assert finished.code == 0, finished
    events = json.loads((tmp_path / "runs/timeline/timeline.json").read_text())
    assert sum(event.get("name", "").endswith("ALLREDUCE") and event["ph"] == "B" for event in events) >= 6


@keras_in_ci
def test_early_stop(jobs, framework):
    run = jobs.run(framework, "early")
    assert [epoch.steps for epoch in run.epochs] == [2, 2, 2]  # the first is the best, then patience for two
    assert "early stop: the validation loss has not improved" in printed(jobs, framework, "early")


@keras_in_ci
def test_pinned_memory_is_recorded(jobs, framework):
    pinned = jobs.run(framework, "scaled").record.world.pinned_memory
    assert pinned is False if framework == "torch" else isinstance(pinned, NotRecorded)


@pytest.mark.parametrize("job", REFUSED)
def test_bad_input_is_one_line_and_code_2_of_every_rank(jobs, framework, job):
    check_one_line(jobs.outcomes(framework, job), program=f"{framework}_impl/train.py", message=REFUSED[job][1])
    assert not (jobs.place(framework) / "runs" / job).exists()


@pytest.mark.parametrize("job", UNEQUAL_RANKS)
def test_ranks_that_train_apart_are_found_and_the_run_fails(jobs, framework, job):
    outcomes = jobs.outcomes(framework, job)
    check_one_line(outcomes, program=f"{framework}_impl/train.py", message=UNEQUAL_RANKS[job])
    run = read_run(jobs.place(framework) / "runs" / job)
    assert run.state == "failed" and run.epochs == [] and not (run.folder / "weights.safetensors").exists()


@keras_in_ci
@pytest.mark.parametrize(("job", "states"), [("nearly_full", {"failed"}), ("full", {"running", "killed"})])
def test_a_full_disk_leaves_no_half_files(jobs, framework, job, states):
    check_one_line(jobs.outcomes(framework, job), program=f"{framework}_impl/train.py", message=FULL_DISK)
    run = read_run(jobs.place(framework) / "disk" / job)
    assert run.state in states and run.epochs == []  # where nothing can be written, not even that it failed
    files = sorted(str(file.relative_to(run.folder)) for file in run.folder.rglob("*"))
    assert files == ["checkpoints", EPOCHS_FILE, "run.json"]


@pytest.mark.parametrize(
    "job",
    ["exists", "settings", *(pytest.param(job, marks=pytest.mark.ci) for job in ("other_size", "done", "timeline"))],
)
def test_a_run_that_cannot_go_on_is_left_alone(jobs, framework, job):
    outcomes = jobs.outcomes(framework, job)
    check_one_line(outcomes, program=f"{framework}_impl/train.py", message=RESUMED_WRONGLY[job])
    assert all(outcome.untouched in (None, True) for outcome in outcomes)
