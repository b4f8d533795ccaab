"""What both trainers record and print, on small synthetic data. What goes wrong is one line, and leaves no half files.

What they refuse is in `refusals/ranks.toml`.
"""

import itertools
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest
from by_hand import first_weights, loss_and_accuracy
from jobs import Jobs, jobs_in, keras_in_ci, relative_difference

from common.data.loading import load_dataset
from common.data.sharding import epoch_order, split_validation
from common.model.weights import load_weights, weights_hash
from common.run_folder.records import EPOCHS_FILE, NotRecorded, read_run

pytestmark = pytest.mark.ranks

DATASET = "synthetic:1200x28x28x1x10"
MLP_LAYERS = ["flatten to fc1", "sigmoid1", "fc2", "loss"]


FILE = Path(__file__).with_name("trainers.toml")
UNEQUAL_RANKS = tomllib.loads(FILE.read_text())["unequal"]
FULL_DISK = r"writing the checkpoint failed: (No space left on device|File too large)\. Received: "


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Also a small disk where that is allowed."""
    made = Jobs(tmp_path_factory.mktemp("trainers"), jobs_in(FILE))
    for framework in ("torch", "keras"):
        disk = made.place(framework) / "disk"
        disk.mkdir()
        if shutil.which("mount"):
            mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
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


def test_a_run_is_recorded_and_printed(jobs, framework):
    """It is also evaluated before training."""
    lines, run = printed(jobs, framework, "whole").splitlines(), jobs.run(framework, "whole")
    totals, hashes, world, first = run.record.totals, run.record.hashes, run.record.world, run.record.initial_test
    assert run.state == "finished" and run.record.framework == framework and run.record.origin == "measured"
    assert 2 < first.loss < 3 and first.loss != totals.test_loss
    assert world.pinned_memory is False if framework == "torch" else isinstance(world.pinned_memory, NotRecorded)
    assert (world.size, world.controller, world.launcher) == (2, "mpi", "mpirun")
    assert [epoch.steps for epoch in run.epochs] == [16] * 3
    for epoch in run.epochs:
        assert epoch.images_per_second == pytest.approx(16 * 64 / epoch.training_seconds)
        # Whole numbers of right answers among all samples of all ranks.
        for correct in (epoch.training_accuracy * 16 * 64, epoch.validation_accuracy * 120):
            assert correct == pytest.approx(round(correct))
    assert [epoch.learning_rate for epoch in run.epochs] == [0.02] * 3  # warmed up at the end of the first
    assert (totals.epochs, totals.steps) == (3, 48)
    weights = weights_hash(load_weights(run.folder / "weights.safetensors"))
    assert hashes.initial_weights != hashes.final_weights == weights == run.epochs[-1].weights_hash
    assert [folder.name for folder in (run.folder / "checkpoints").iterdir()] == ["epoch-0003"]
    isolation = run.record.isolation
    assert len(isolation.load_average_before) == 1
    assert len(isolation.peak_memory_bytes) == 2 and min(isolation.peak_memory_bytes) > 1e8
    assert isolation.peak_device_memory_bytes == [None] * 2
    # No rank takes another for a stranger, nor its launcher.
    assert not [line for line in isolation.other_processes_before if "mpirun" in line or "orted" in line]

    started = next(number for number, line in enumerate(lines) if line.startswith("before training: test loss"))
    facts = [line for line in lines[:started] if not line.startswith("Warning: ")]
    assert len(facts) <= 10 and lines[: len(facts)] == facts, "warnings stand last"
    assert facts[0].startswith("2 ranks") and "model: cnn, 21,840 parameters" in facts
    figures = r"{0} loss \d\.\d+  {0} accuracy +\d+\.\d\d %"
    figures = "  ".join(figures.format(part) for part in ("train", "validation"))
    of_epochs = [line for line in lines if line.startswith("epoch ")]
    for number, line in enumerate(of_epochs, start=1):
        assert re.match(rf"epoch {number}/3  {figures}  [\d,]+ images/s  ", line), line
    test, trained, folder, following, last = lines[-5:]
    assert test.startswith("test: loss ") and test.endswith(f"({round(totals.test_accuracy * 200)}/200)")
    assert trained.startswith("trained 3 epochs in ") and folder == "run folder: runs/whole" and len(of_epochs) == 3
    assert following.startswith("next: python -m launch train --framework ") and "python -m analysis" in last


def test_it_learns_until_its_last_epoch_is_cut(jobs, framework):
    run = jobs.run(framework, "double")
    assert [epoch.steps for epoch in run.epochs] == [16, 16, 8]
    losses = [epoch.training_loss for epoch in run.epochs]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.8 * losses[0]
    assert run.epochs[-1].training_accuracy > 0.5  # chance: 0.1
    assert run.record.totals.test_accuracy > 0.3


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
    assert run.record.hashes.final_weights == jobs.run(framework, "double").record.hashes.final_weights


def test_losses_and_accuracies_are_those_worked_out_by_hand(jobs, framework):
    """An update of two ranks: the test before it, its own batch, validation and test after it."""
    run, dataset = jobs.run(framework, "by_hand"), load_dataset(DATASET)
    config, first, last = run.record.config, run.record.initial_test, run.record.totals
    training, validation = split_validation(1200, share=0.1, seed=config.training.seed)
    batch = training[epoch_order(len(training), seed=config.training.seed, epoch=1)[:64]]
    before, after = first_weights(), load_weights(run.folder / "weights.safetensors")
    (epoch,) = run.epochs
    for recorded, split, rows, weights in (
        ((first.loss, first.accuracy), dataset.test, slice(None), before),
        ((epoch.training_loss, epoch.training_accuracy), dataset.train, batch, before),
        ((epoch.validation_loss, epoch.validation_accuracy), dataset.train, validation, after),
        ((last.test_loss, last.test_accuracy), dataset.test, slice(None), after),
    ):
        loss, accuracy = loss_and_accuracy(weights, run, split, rows)
        assert recorded == (pytest.approx(loss, rel=1e-12), pytest.approx(accuracy, rel=1e-12))
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


@pytest.mark.ci
def test_what_does_not_divide_is_left_out_in_training_alone(jobs, framework):
    run = jobs.run(framework, "uneven")
    data = run.record.data
    assert data.training_samples + data.validation_samples == 968
    assert data.steps_per_epoch == data.training_samples // 14
    assert data.dropped_samples_per_epoch == data.training_samples % 14 > 0
    # Every test sample counts once: the accuracy is a whole number of them.
    correct = run.record.totals.test_accuracy * data.test_samples
    assert correct == pytest.approx(round(correct), abs=1e-6) and data.test_samples % 2


@keras_in_ci
def test_a_slow_source_is_waited_for_and_a_slow_model_is_not(jobs, framework):
    (epoch,) = jobs.run(framework, "slow_source").epochs
    assert epoch.training_seconds / 2 < epoch.data_wait_seconds <= epoch.training_seconds
    (epoch,) = jobs.run(framework, "slow_model").epochs
    assert epoch.data_wait_seconds < epoch.training_seconds / 2


@keras_in_ci
@pytest.mark.parametrize("kind", ["profile", "profile_layers"])
def test_a_profiled_run_trains_as_a_timed_one(jobs, framework, kind):
    shown = printed(jobs, framework, kind)
    assert "Timings are invalid" in shown and "a step of 35, mean over ranks" in shown
    run, timed = jobs.run(framework, kind), jobs.run(framework, "double")
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
    assert all(seconds > 0 for seconds in profile.parts_seconds.values())
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


@pytest.mark.parametrize("job", UNEQUAL_RANKS)
def test_ranks_that_train_apart_are_found_and_the_run_fails(jobs, framework, job):
    outcomes = jobs.outcomes(framework, job)
    check_one_line(
        outcomes,
        program=f"{framework}_impl/train.py",
        message=f"the ranks do not have the same weights after {UNEQUAL_RANKS[job]}",
    )
    run = read_run(jobs.place(framework) / "runs" / job)
    assert run.state == "failed" and run.epochs == [] and not (run.folder / "weights.safetensors").exists()


@keras_in_ci
@pytest.mark.parametrize(
    ("job", "states"),
    [("nearly_full", {"failed"}), ("full", {"running", "killed"}), ("full_inside", {"running", "killed"})],
)
def test_a_full_disk_leaves_no_half_files(jobs, framework, job, states):
    """At the end of an epoch, and inside one."""
    check_one_line(jobs.outcomes(framework, job), program=f"{framework}_impl/train.py", message=FULL_DISK)
    run = read_run(jobs.place(framework) / "disk" / job)
    assert run.state in states and run.epochs == []  # where nothing can be written, not even that it failed
    files = sorted(str(file.relative_to(run.folder)) for file in run.folder.rglob("*"))
    assert files == ["checkpoints", EPOCHS_FILE, "run.json"]
