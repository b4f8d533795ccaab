"""The first update and the first evaluation are rehearsed before start-up ends, alike in both frameworks, and undone.

A row is a run with all that it rehearses (`patches.noted_rehearsal`), and the same run without a rehearsal.
"""

from dataclasses import dataclass

import pytest
from jobs import FRAMEWORKS, Job, Jobs, check_bit_for_bit, keras_in_ci, on_frameworks, relative_difference, train

from common.model.weights import load_weights
from common.run_folder.records import WEIGHTS_FILE

pytestmark = pytest.mark.ranks

DATA = ("--dataset", "synthetic:1200x28x28x1x10", "--validation-share", "0.1", "--steps-per-epoch", "3")
DATA += ("--epochs", "2", "--batch-size", "16")
ADAMW = ("--optimizer", "adamw", "--learning-rate", "0.001", "--weight-decay", "0.1")
CNN = (*DATA, "--model", "cnn", *ADAMW)  # dropout
RESNET34 = ("--dataset", "synthetic:96x17x19x1x3", "--model", "resnet34", "--batch-size", "4", "--epochs", "3")
RESNET34 += ("--steps-per-epoch", "2", "--validation-share", "0.25")
SERVER = ("--strategy", "server", "--threads", "1", "--lr-scaling", "none")
CNN_BYTES = 4 * 21_840
# Forward: 5 channels of relu1 and 10 of relu2, the sum of fc2. Backward: sums over the inputs of conv2 and fc1.
SPLIT_BYTES = 4 * 16 * (5 * 144 + 10 * 16 + 10 + 10 * 144 + 320)
EVALUATED, ENDED = ("evaluation", "evaluation"), ("nothing is left of it", "start-up ends")
MOVED = "all tensors moved"


@dataclass(frozen=True)
class Case:
    """A run.

    Attributes:
        settings: of the run.
        noted: what a rank notes between the rehearsed evaluations and the end of start-up.
        launcher: of its ranks.
        patch: of the model, or of the compiler.
        frameworks: those that have it.
        quick: those whose case is in `make test`.
        tolerance: of the weights, relative; 0: the runs are equal bit for bit.
    """

    settings: tuple[str, ...]
    noted: tuple[str, ...] = (MOVED,)
    launcher: str = "mpirun2"
    patch: str = ""
    frameworks: tuple[str, ...] = FRAMEWORKS
    quick: tuple[str, ...] = ()
    tolerance: float = 0.0


SENT = (f"{CNN_BYTES} bytes sent", MOVED)
CASES = {
    "allreduce": Case(CNN, SENT, quick=FRAMEWORKS),
    "alone": Case((*CNN, "--backward-passes-per-step", "2"), ("0 bytes sent", MOVED), launcher="none"),
    "profile": Case((*CNN, "--profile"), ("0 bytes sent", MOVED)),  # its steps average the gradients themselves
    "resnet34": Case(
        (*RESNET34, "--batch-norm", "frozen_after_validation", "--validate-every", "2", "--threads", "1"),
        (f"{4 * 4_901_059} bytes sent", MOVED),
        patch="shallow",
    ),
    # An update that averages gradients, and one that averages weights; neither is the first that averages weights.
    "averaging": Case(
        (*CNN, "--strategy", "averaging", "--average-every", "2", "--warmup-allreduce", "1", "--no-average-state"),
        (f"{CNN_BYTES} bytes sent", f"{2 * CNN_BYTES} bytes sent", MOVED),
        quick=("torch",),
    ),
    "split": Case((*CNN, "--strategy", "split", "--model-ranks", "2"), (f"{SPLIT_BYTES} bytes sent", MOVED)),
    "layers": Case((*CNN, "--strategy", "layers", "--stages", "2")),
    # No gradient is pushed and no item drawn.
    "servers": Case((*CNN, *SERVER, "--servers", "3", "--staleness", "none"), launcher="mpirun4", quick=("torch",)),
    "ddp": Case(
        (*CNN, "--strategy", "native", "--native", "ddp"),
        (f"{CNN_BYTES} bytes sent", f"{2 * CNN_BYTES} bytes sent", MOVED),
        frameworks=("torch",),
    ),
    # Its buckets are made anew before training, so that three ranks add in another order.
    "ddp of 3 ranks": Case(
        (*CNN, "--strategy", "native", "--native", "ddp", "--dtype", "float64"),
        (f"{2 * CNN_BYTES} bytes sent", f"{4 * CNN_BYTES} bytes sent", MOVED),
        launcher="mpirun3",
        frameworks=("torch",),
        tolerance=1e-14,
    ),
    "bfloat16": Case((*CNN, "--mixed-precision", "bfloat16"), SENT),
    "multiworker": Case(
        (*CNN, "--strategy", "native", "--native", "multiworker"),
        ("0 bytes sent", MOVED),
        frameworks=("keras",),
    ),
    "mirrored": Case(
        (*CNN, "--strategy", "native", "--native", "mirrored", "--replicas", "2"),
        ("0 bytes sent", MOVED),
        launcher="none",
        frameworks=("keras",),
    ),
    "compiled": Case((*CNN, "--compile", "--threads", "1"), SENT, patch="without_compiler"),
}


def all_jobs():
    """Return each run with and without a rehearsal."""
    for name, case in CASES.items():
        for job, patch in ((name, "noted_rehearsal"), (f"{name} unrehearsed", "unrehearsed")):
            patch = "+".join(filter(None, (case.patch, patch)))
            yield train(job, *case.settings, launcher=case.launcher, patch=patch)
    inside = (*CNN, "--steps-per-epoch", "6", "--checkpoint-minutes", "1e-9", "--resume-or-start", "--name", "part")
    yield Job("part", inside, patch="stopped")
    yield Job("resumed", inside, patch="noted_rehearsal", after=("part",))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(tmp_path_factory.mktemp("rehearsed"), all_jobs())


cases = on_frameworks(CASES, frameworks=lambda name: CASES[name].frameworks, quick=lambda name: CASES[name].quick)


def noted(jobs, framework, name):
    """Return what each worker noted until its start-up ended."""
    lines = [outcome.stdout.splitlines() for outcome in jobs.outcomes(framework, name)]
    words = [[line.removeprefix("noted: ") for line in rank if line.startswith("noted: ")] for rank in lines]
    return [tuple(rank[: rank.index("start-up ends") + 1]) for rank in words if rank]


@cases
def test_an_update_and_evaluations_are_rehearsed_before_start_up_ends(jobs, framework, name):
    """Forward and backward pass, exchange and update, of which nothing is left; the same in both frameworks."""
    jobs.run(framework, name)
    workers = noted(jobs, framework, name)
    assert workers
    assert set(workers) == {(*EVALUATED, *CASES[name].noted, *ENDED)}


@keras_in_ci
def test_a_run_resumed_inside_an_epoch_rehearses_too(jobs, framework):
    """Momentum and averages of the optimizer included; that it ends as an unbroken run is in `test_resumed.py`."""
    assert jobs.run(framework, "resumed").record.status.resumed_after_steps == [3]
    assert set(noted(jobs, framework, "resumed")) == {(*EVALUATED, *SENT, *ENDED)}


@cases
def test_a_rehearsed_run_trains_the_same_weights(jobs, framework, name):
    run, plain = jobs.run(framework, name), jobs.run(framework, f"{name} unrehearsed")
    if tolerance := CASES[name].tolerance:
        weights, expected = (load_weights(one.folder / WEIGHTS_FILE) for one in (run, plain))
        assert max(relative_difference(weights[tensor], array) for tensor, array in expected.items()) <= tolerance
    else:
        check_bit_for_bit(run, plain)
    counts = [
        [(worker.updates, worker.sent_bytes, worker.received_bytes) for worker in one.record.sharing.workers]
        for one in (run, plain)
        if one.record.sharing
    ]
    assert len(counts) == 0 or counts[0] == counts[1]
