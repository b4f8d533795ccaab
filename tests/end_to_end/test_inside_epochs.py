"""Checkpoints inside an epoch, both trainers as real processes: interrupted runs resume bit for bit.

For each framework one start of two ranks and one of one process do many runs each (`trainer_worker.py`). A patch ends
runs on all ranks at a known step; that a killed process leaves what is needed is tested on one that really is.
"""

import importlib.util
import json
import signal
from pathlib import Path

import psutil
import pytest
from builders import forget_hashes
from trainer_runs import (
    END_SECONDS,
    Job,
    Outcome,
    Outcomes,
    finish,
    run_jobs,
    start_command,
    train_command,
    wait_until,
)

from common.run_folder.checkpoints import checkpoint_folders, usable_checkpoints
from common.run_folder.records import EPOCHS_FILE, Hashes, Run, Status, Totals, read_run

pytestmark = pytest.mark.ranks
sizes = pytest.mark.parametrize("size", [2, pytest.param(1, marks=pytest.mark.ci)])

DATA = ["--dataset", "synthetic:1200x28x28x1x10", "--validation-share", "0.1"]
# Runs of 2 epochs of 6 updates. Dropout, momentum, a learning rate that grows in the first epoch.
CNN = [*DATA, "--model", "cnn", "--batch-size", "32", "--steps-per-epoch", "6", "--epochs", "2"]
# BatchNorm, whose running statistics are each rank's own until the end of an epoch.
RESNET34 = ["--dataset", "synthetic:96x17x19x1x3", "--model", "resnet34", "--batch-size", "4", "--steps-per-epoch", "6"]
RESNET34 += ["--epochs", "1"]
PROFILE = [*DATA, "--model", "mlp", "--steps-per-epoch", "6", "--epochs", "2", "--profile"]
OFTEN = ["--checkpoint-minutes", "1e-9"]  # after every update
NOW_AND_THEN = ["--checkpoint-minutes", "0.0005"]  # of 30 ms: after some updates, as it happens
UNTIL_KILLED = [*DATA, "--model", "cnn", "--steps-per-epoch", "16"]
RESUMING = [*OFTEN, "--resume-or-start"]


def jobs_of(size: int) -> list[Job]:
    """Return the jobs of one or two ranks, but for those of the killed run."""
    begin = [*CNN, *RESUMING, "--name", f"part{size}"]
    # A folder is watched when all ranks have done another job since it was written: the first writes after the others.
    jobs = [
        Job("part", begin, patch="stopped"),
        Job("part_again", begin, patch="stopped_later"),
        Job("cnn", [*CNN, "--name", f"cnn{size}"]),
        Job("too_short", ["--resume", f"runs/part{size}", "--max-steps", "8"], watch=f"runs/part{size}"),
        Job("part_resumed", ["--resume", f"runs/part{size}"]),
        Job("parts", [*CNN, *NOW_AND_THEN, "--name", f"parts{size}"]),
        Job("after_its_end", begin, watch=f"runs/part{size}"),
    ]
    if size == 2:
        return [
            *jobs,
            *resnet34_jobs("shallow2", patch="shallow"),
            Job("full_disk", [*CNN, *OFTEN, "--name", "full"], patch="full_disk"),
        ]
    return [
        *jobs,
        Job("profile", [*PROFILE, "--name", "profile"]),
        Job("profile_part", [*PROFILE, *OFTEN, "--name", "profile-part"], patch="stopped"),
        Job("profile_resumed", ["--resume", "runs/profile-part"]),
    ]


def resnet34_jobs(name: str, *, patch: str = "") -> list[Job]:
    """Return an unbroken run, one that is ended inside its epoch, and its resumption."""
    return [
        Job(name, [*RESNET34, "--name", name], patch=patch),
        Job(f"{name}-part", [*RESNET34, *OFTEN, "--name", f"{name}-part"], patch=f"{patch}+stopped"),
        Job(f"{name}-resumed", ["--resume", f"runs/{name}-part"], patch=patch),
    ]


class Starts:
    """Starts what a test asks for, once; each framework has a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._done: dict[tuple[str, int, bool], Outcomes | str] = {}

    def outcomes(self, framework: str, size: int, *, deep: bool = False) -> Outcomes:
        """Return what the jobs of one or two ranks did; those of the model in its whole depth have their own start."""
        key = (framework, size, deep)
        if key not in self._done:
            folder, jobs = self.folder / framework, resnet34_jobs(f"deep{size}") if deep else jobs_of(size)
            folder.mkdir(exist_ok=True)
            if size == 1 and not deep:
                epochs = ["--epochs", str(self._kill(framework) + 1)]
                jobs += [
                    Job("after_kill", [*UNTIL_KILLED, *RESUMING, *epochs, "--name", "killed"]),
                    Job("never_killed", [*UNTIL_KILLED, *epochs, "--name", "never-killed"]),
                ]
            launcher = "none" if size == 1 else f"mpirun{size}"
            self._done[key] = run_jobs(framework, jobs, folder=folder, launcher=launcher)
        outcomes = self._done[key]
        assert isinstance(outcomes, dict), outcomes
        return outcomes

    def _kill(self, framework: str) -> int:
        """Kill a run inside its second epoch or a later one; return how many it has finished.

        Seconds are added to those that its checkpoint holds, so that they are found again.
        """
        folder, run = self.folder / framework, self.folder / framework / "runs/killed"
        arguments = [*UNTIL_KILLED, *RESUMING, "--epochs", "100000", "--name", "killed"]
        process = start_command(train_command(framework, arguments), folder=folder)

        def finished_epochs() -> int:
            epochs = run / EPOCHS_FILE
            return len(epochs.read_text().splitlines()) if epochs.exists() else 0

        def newest() -> Path | None:
            return next(reversed(usable_checkpoints(run, recorded_epochs=finished_epochs())), None)

        def is_inside() -> bool:
            found = newest()
            return finished_epochs() > 0 and found is not None and "-step-" in found.name

        def stopped() -> bool:
            return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED

        while True:
            wait_until(is_inside, process=process)
            process.send_signal(signal.SIGSTOP)
            wait_until(stopped, process=process)
            if is_inside():  # else it has just finished an epoch
                break
            process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGKILL)
        assert finish(process, within_seconds=END_SECONDS).code == -signal.SIGKILL
        checkpoint = newest()
        assert checkpoint is not None
        forget_hashes(checkpoint)
        state = json.loads((checkpoint / "state.json").read_text())
        for rank in state["ranks"]:
            rank["training_seconds"] += 2000.0
            rank["data_wait_seconds"] += 1000.0
        state["checkpoint_seconds"] += 3000.0
        (checkpoint / "state.json").write_text(json.dumps(state))
        return finished_epochs()

    def run(self, framework: str, name: str) -> Run:
        """Return a run, validated."""
        return read_run(self.folder / framework / "runs" / name)


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Starts:
    return Starts(tmp_path_factory.mktemp("inside"))


@pytest.fixture(params=["torch", pytest.param("keras", marks=pytest.mark.ci)])
def framework(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


def code_and_output(outcomes: list[Outcome]) -> tuple[int, str]:
    """Return the exit code, which is the same on every rank, and what rank 0 printed."""
    codes = {outcome.code for outcome in outcomes}
    assert len(codes) == 1, outcomes
    return codes.pop(), outcomes[0].stdout + outcomes[0].stderr


def check_same(one: Run, other: Run) -> None:
    """Check that two runs ended alike, bit for bit: weights, optimizer state, figures of every epoch, test."""
    assert one.state == other.state == "finished"
    assert isinstance(one.record.hashes, Hashes) and one.record.hashes == other.record.hashes
    for ours, theirs in zip(one.epochs, other.epochs, strict=True):
        assert (ours.epoch, ours.steps, ours.weights_hash) == (theirs.epoch, theirs.steps, theirs.weights_hash)
        assert (ours.training_loss, ours.training_accuracy) == (theirs.training_loss, theirs.training_accuracy)
        assert (ours.validation_loss, ours.validation_accuracy) == (theirs.validation_loss, theirs.validation_accuracy)
    assert isinstance(one.record.totals, Totals) and isinstance(other.record.totals, Totals)
    assert (one.record.totals.test_loss, one.record.totals.steps) == (
        other.record.totals.test_loss,
        other.record.totals.steps,
    )
    checkpoint, twin = checkpoint_folders(one.folder), checkpoint_folders(other.folder)
    assert (
        [folder.name for folder in checkpoint] == [folder.name for folder in twin] == [f"epoch-{len(one.epochs):04d}"]
    )
    for file in ("optimizer.safetensors", "weights.safetensors", "state.json"):
        assert (checkpoint[0] / file).read_bytes() == (twin[0] / file).read_bytes()


def status(run: Run) -> Status:
    assert isinstance(run.record.status, Status)
    return run.record.status


@sizes
def test_segments_change_nothing(starts: Starts, framework: str, size: int) -> None:
    outcomes = starts.outcomes(framework, size)
    assert code_and_output(outcomes["cnn"])[0] == code_and_output(outcomes["parts"])[0] == 0
    check_same(starts.run(framework, f"cnn{size}"), starts.run(framework, f"parts{size}"))


@sizes
def test_a_run_ended_inside_epochs_ends_bit_for_bit_as_an_unbroken_one(
    starts: Starts, framework: str, size: int
) -> None:
    outcomes = starts.outcomes(framework, size)
    assert [code_and_output(outcomes[job])[0] for job in ("part", "part_again", "part_resumed")] == [2, 2, 0]
    assert f"resuming runs/part{size} after epoch 0 and 3 updates of the next\n" in outcomes["part_again"][0].stdout
    assert f"resuming runs/part{size} after epoch 1 and 2 updates of the next\n" in outcomes["part_resumed"][0].stdout
    run = starts.run(framework, f"part{size}")
    check_same(starts.run(framework, f"cnn{size}"), run)
    assert (status(run).resumed_after_epochs, status(run).resumed_after_steps) == ([0, 1], [3, 8])


@pytest.mark.parametrize(
    ("depth", "size"), [("shallow", 2), *(pytest.param("deep", size, marks=pytest.mark.long) for size in (2, 1))]
)
def test_ranks_resume_with_their_own_batch_norm_statistics(
    starts: Starts, framework: str, depth: str, size: int
) -> None:
    outcomes, name = starts.outcomes(framework, size, deep=depth == "deep"), f"{depth}{size}"
    assert [code_and_output(outcomes[f"{name}{job}"])[0] for job in ("", "-part", "-resumed")] == [0, 2, 0]
    run = starts.run(framework, f"{name}-part")
    check_same(starts.run(framework, name), run)
    assert status(run).resumed_after_steps == [3]


@pytest.mark.ci
def test_a_profiled_run_resumes_too(starts: Starts, framework: str) -> None:
    starts.outcomes(framework, 1)
    run = starts.run(framework, "profile-part")
    check_same(starts.run(framework, "profile"), run)
    assert status(run).resumed_after_steps == [3]
    assert run.record.profile is not None and run.record.profile.steps == 12 - 3 - run.record.profile.left_out_steps
    assert run.record.profile.parts_over_step == pytest.approx(1.0, abs=0.05)


@pytest.mark.ci
def test_a_killed_run_resumes_by_the_same_command(starts: Starts, framework: str) -> None:
    outcomes = starts.outcomes(framework, 1)
    assert code_and_output(outcomes["after_kill"])[0] == code_and_output(outcomes["never_killed"])[0] == 0
    run = starts.run(framework, "killed")
    check_same(starts.run(framework, "never-killed"), run)
    assert status(run).resumed_after_epochs == [len(run.epochs) - 1]
    assert 0 < status(run).resumed_after_steps[0] - 16 * (len(run.epochs) - 1) < 16
    last = run.epochs[-1]
    assert [last.training_seconds, last.data_wait_seconds, last.checkpoint_seconds] == [
        pytest.approx(seconds, abs=900.0) for seconds in (2000.0, 1000.0, 3000.0)
    ]


@sizes
def test_a_command_that_is_run_again_after_the_end_does_nothing(starts: Starts, framework: str, size: int) -> None:
    ranks = starts.outcomes(framework, size)["after_its_end"]
    assert code_and_output(ranks) == (0, f"the run is finished already: runs/part{size}\n")
    assert all(outcome.untouched for outcome in ranks)


@sizes
def test_settings_that_end_before_the_checkpoint_are_refused(starts: Starts, framework: str, size: int) -> None:
    ranks = starts.outcomes(framework, size)["too_short"]
    code, output = code_and_output(ranks)
    assert code == 2 and all(outcome.untouched for outcome in ranks)
    assert "the checkpoint is inside an epoch, after update 8. Received: settings that end after update 8." in output


def test_a_full_disk_ends_all_ranks_inside_an_epoch(starts: Starts, framework: str) -> None:
    code, output = code_and_output(starts.outcomes(framework, 2)["full_disk"])
    assert code == 2 and "writing the checkpoint failed: " in output
    assert starts.run(framework, "full").epochs == []
