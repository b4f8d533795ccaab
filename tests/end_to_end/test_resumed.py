"""A run that was ended and resumed is the unbroken one, bit for bit, checkpoint included.

One table, `CASES`. A patch ends each run on all ranks inside its first epoch, after update 3, and inside its second,
after its update 2; then it is resumed once more. What a killed process leaves is in `test_killed.py`.
"""

from dataclasses import dataclass

import pytest
from jobs import FRAMEWORKS, Job, Jobs, check_bit_for_bit, last_value, on_frameworks, resumed, train

pytestmark = pytest.mark.ranks

OFTEN = ("--checkpoint-minutes", "1e-9")  # after every update
EPOCHS, STEPS = 2, 6
DATA = ("--dataset", "synthetic:1200x28x28x1x10", "--validation-share", "0.1", "--steps-per-epoch", str(STEPS))
DATA += ("--epochs", str(EPOCHS), "--batch-size", "32")
# Dropout, momentum, and a learning rate that grows in the first epoch.
CNN = (*DATA, "--model", "cnn")
MLP = (*DATA, "--model", "mlp")
# Small batches of a model with BatchNorm, whose statistics are each rank's own until the end of an epoch.
RESNET34 = ("--dataset", "synthetic:96x17x19x1x3", "--model", "resnet34", "--batch-size", "4", "--epochs", str(EPOCHS))
RESNET34 += ("--steps-per-epoch", str(STEPS))
# The interval divides neither the updates of an epoch nor those before an end.
AVERAGING = ("--strategy", "averaging", "--average-every", "5", "--no-average-state")
SERVER = ("--strategy", "server", "--batch-size", "24", "--threads", "1")
ADAM = ("--optimizer", "adam", "--learning-rate", "0.001", "--weight-decay", "0.01")


@dataclass(frozen=True)
class Case:
    """Settings of a run that is ended and resumed.

    Attributes:
        settings: of the run.
        launcher: of its ranks.
        patch: of the model.
        frameworks: those that have it.
        quick: those whose case is in `make test`.
    """

    settings: tuple[str, ...]
    launcher: str = "mpirun2"
    patch: str = ""
    frameworks: tuple[str, ...] = FRAMEWORKS
    quick: tuple[str, ...] = ()


CASES = {
    "cnn": Case(CNN, quick=("torch",)),
    "adamw": Case((*MLP, "--optimizer", "adamw", "--learning-rate", "0.001", "--weight-decay", "0.1")),
    "rmsprop": Case((*MLP, "--optimizer", "rmsprop", "--learning-rate", "0.001")),
    "nesterov": Case((*CNN, "--nesterov", "--weight-decay", "0.001", "--compression", "fp16")),
    "gloo": Case((*MLP, *ADAM), launcher="gloo2"),
    "resnet34": Case(RESNET34, patch="shallow", quick=("torch",)),
    "profile": Case((*MLP, "--steps-per-epoch", "12", "--profile"), launcher="none"),
    "averaging": Case((*CNN, *AVERAGING), quick=("torch",)),
    "unequal": Case((*CNN, "--shares", "2.4:1", *AVERAGING, "--slow", "1:1.5:0.5")),
    "passes": Case((*CNN, "--shares", "2.4:1", "--backward-passes-per-step", "2")),
    "adasum": Case((*CNN, "--adasum")),
    "layers": Case((*CNN, "--strategy", "layers", "--stages", "2"), quick=("torch",)),
    "split": Case((*CNN, "--strategy", "split", "--model-ranks", "2")),
    "servers": Case((*CNN, *SERVER, "--servers", "2", "--lr-scaling", "none"), launcher="mpirun4"),
    "ddp": Case((*CNN, *ADAM, "--strategy", "native", "--native", "ddp"), frameworks=("torch",)),
    "multiworker": Case((*CNN, *ADAM, "--strategy", "native", "--native", "multiworker"), frameworks=("keras",)),
    "mirrored": Case(
        (*CNN, "--strategy", "native", "--native", "mirrored", "--replicas", "2"),
        launcher="none",
        frameworks=("keras",),
    ),
    "mirrored resnet34": Case(  # replicas have statistics of their own
        (*RESNET34, "--strategy", "native", "--native", "mirrored", "--replicas", "2"),
        launcher="none",
        patch="shallow",
        frameworks=("keras",),
    ),
    "compiled": Case((*CNN, "--compile", "--threads", "1")),
}
# Ended at the end of an epoch, and resumed by --resume.
AT_AN_EPOCHS_END = {
    "whole": Case((*CNN, "--evaluate-first"), quick=FRAMEWORKS),
    "intervals": Case((*CNN, *AVERAGING)),  # which an epoch ends inside of
    # With one worker, whose order of pushes is always the same.
    "one worker": Case(
        (*MLP, *ADAM, *SERVER, "--servers", "3", "--staleness", "none", "--push-every", "2", "--lr-scaling", "none"),
        launcher="mpirun4",
        quick=("torch",),
    ),
}


def all_jobs():
    """Return, for each case, an unbroken run and one that is ended and resumed."""
    for name, case in CASES.items():
        yield train(f"{name} whole", *case.settings, launcher=case.launcher, patch=case.patch)
        run = f"{name} part".replace(" ", "_")
        part = (*case.settings, *OFTEN, "--resume-or-start", "--name", run)
        patches = {"part": "stopped", "again": "stopped_later", "resumed": "no_second_broadcast"}
        for number, (job, patch) in enumerate(patches.items()):
            after = () if number == 0 else (f"{name} {list(patches)[number - 1]}",)
            if (name, job) == ("cnn", "resumed"):
                after = (*after, "too short")
            patch = "+".join(filter(None, (case.patch, patch)))
            yield Job(f"{name} {job}", part, launcher=case.launcher, patch=patch, after=after)
    for name, case in AT_AN_EPOCHS_END.items():
        yield train(f"{name} whole", *case.settings, launcher=case.launcher)
        yield train(f"{name} part", *case.settings, "--epochs", "1", launcher=case.launcher)
        yield resumed(f"{name} resumed", f"{name} part", "--epochs", str(EPOCHS), launcher=case.launcher)
    # Checkpoints now and then, after some 30 ms; and commands that are repeated after the run of "cnn" has ended.
    yield train("segments", *CNN, "--checkpoint-minutes", "0.0005")
    yield Job(
        "after its end",
        (*CNN, *OFTEN, "--resume-or-start", "--name", "cnn_part"),
        watch="runs/cnn_part",
        after=("cnn resumed", "cnn whole"),
    )
    short = ("--resume", "runs/cnn_part", "--max-steps", "8")
    yield Job("too short", short, watch="runs/cnn_part", after=("cnn again", "cnn whole"))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(tmp_path_factory.mktemp("resumed"), all_jobs())


def rows(table):
    return on_frameworks(table, frameworks=lambda name: table[name].frameworks, quick=lambda name: table[name].quick)


@rows(CASES)
def test_a_run_ended_inside_epochs_ends_bit_for_bit_as_an_unbroken_one(jobs, framework, name):
    run, whole = jobs.run(framework, f"{name} resumed"), jobs.run(framework, f"{name} whole")
    for job in ("part", "again"):
        assert {outcome.code for outcome in jobs.outcomes(framework, f"{name} {job}")} == {2}
    first = {"again": "epoch 0 and 3 updates", "resumed": "epoch 1 and 2 updates"}
    for job, where in first.items():
        assert f"after {where} of the next\n" in jobs.outcomes(framework, f"{name} {job}")[0].stdout
    assert run.record.status.resumed_after_epochs == [0, 1]
    steps = int(last_value("--steps-per-epoch", CASES[name].settings))
    assert run.record.status.resumed_after_steps == [3, steps + 2]
    if name == "profile":
        assert run.record.profile.steps == EPOCHS * steps - (steps + 2) - run.record.profile.left_out_steps
        assert run.record.profile.parts_over_step == pytest.approx(1.0, abs=0.05)
    check_bit_for_bit(run, whole)


@rows(AT_AN_EPOCHS_END)
def test_a_run_resumed_after_an_epoch_ends_bit_for_bit_as_an_unbroken_one(jobs, framework, name):
    run, whole = jobs.run(framework, f"{name} resumed"), jobs.run(framework, f"{name} whole")
    assert "after epoch 1\n" in jobs.outcomes(framework, f"{name} resumed")[0].stdout
    assert run.record.status.resumed_after_epochs == [1]
    check_bit_for_bit(run, whole)


def test_segments_change_nothing(jobs, framework):
    check_bit_for_bit(jobs.run(framework, "segments"), jobs.run(framework, "cnn whole"))


def test_settings_that_end_before_the_checkpoint_are_refused(jobs, framework):
    ranks = jobs.outcomes(framework, "too short")
    assert [outcome.code for outcome in ranks] == [2, 2] and all(outcome.untouched for outcome in ranks)
    words = "the checkpoint is inside an epoch, after update 8. Received: settings that end after update 8."
    assert words in ranks[0].stderr


def test_a_command_that_is_run_again_after_the_end_does_nothing(jobs, framework):
    ranks = jobs.outcomes(framework, "after its end")
    assert [outcome.code for outcome in ranks] == [0, 0] and all(outcome.untouched for outcome in ranks)
    assert ranks[0].stdout == "the run is already finished: runs/cnn_part\n"
