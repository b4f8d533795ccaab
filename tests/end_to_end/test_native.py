"""`--strategy native` against Horovod's all-reduce, and against itself after a resume.

One start of two ranks does all runs of a framework (`trainer_worker.py`), MirroredStrategy one of its own: the devices
of TensorFlow are set before its first operation.
"""

import importlib.util
from pathlib import Path

import pytest
from rule_workers import relative_difference
from slow_link import AS_ROOT, start_on
from strategy_runs import check_killed
from trainer_runs import (
    Job,
    Outcome,
    Outcomes,
    run_jobs,
)
from two_hosts import several_hosts

from common.model.weights import load_weights
from common.run_folder.checkpoints import checkpoint_folders
from common.run_folder.records import Hashes, NotRecorded, Run, Status, Totals, World, read_run
from common.run_folder.sharing import SharingRecord

pytestmark = [pytest.mark.ranks, pytest.mark.ci]

DATA = ["--dataset", "synthetic:1200x28x28x1x10", "--validation-share", "0.1", "--batch-size", "32", "--epochs", "2"]
DATA += ["--steps-per-epoch", "6", "--dtype", "float64"]
RESNET34 = ["--dataset", "synthetic:48x17x19x1x3", "--model", "resnet34", "--batch-size", "4", "--dtype", "float64"]
WHOLE = ["--epochs", "2", "--steps-per-epoch", "5", "--momentum", "0.9"]  # of what is resumed
CASES = {
    "mlp": [*DATA, "--model", "mlp"],
    "cnn": [*DATA, "--model", "cnn", "--optimizer", "adam", "--learning-rate", "0.001"],  # with dropout
    # Few updates and no momentum: rounding grows fast in batches as small as these.
    "resnet34": [*RESNET34, "--epochs", "1", "--steps-per-epoch", "3", "--momentum", "0"],
}
TOLERANCE = {"mlp": 1e-12, "cnn": 1e-12, "resnet34": 1e-11}
OFTEN = ["--checkpoint-minutes", "1e-9"]  # after every update
STARTS = {"mirrored": ("keras", "none"), "multiworker": ("keras", "mpirun2"), "ddp": ("torch", "mpirun2")}
REPLICAS = "mirrored resumed"  # a start of its own: replicas have statistics of their own, and resnet34 takes long

BAD_INPUT = {
    "ddp": {
        "other_framework": ("--native mirrored --replicas 2", "mirrored is a strategy of the other framework"),
        "compression": ("--native ddp --compression fp16", "--strategy native --compression fp16"),
    },
    "mirrored": {"other_framework": ("--native ddp", "ddp is a strategy of the other framework")},
    "multiworker": {"profile": ("--native multiworker --profile", "--strategy native --profile")},
}


def native(name: str) -> list[str]:
    """Return the flags of a native strategy with two data ranks."""
    return ["--strategy", "native", "--native", name, *(("--replicas", "2") if name == "mirrored" else ())]


def jobs_of(strategy: str) -> list[Job]:
    """Return the jobs of a start."""

    def train(name: str, arguments: list[str], patch: str = "", *, run: str = "") -> Job:
        patches = [patch] if patch else []
        if "resnet34" in arguments or "resnet34" in name:
            patches.append("shallow")
        return Job(name, [*arguments, "--name", run or name], patch="+".join(patches))

    def resumed(name: str) -> list[Job]:
        whole, run = [*CASES[name], *WHOLE, *flags], f"{name}_part"
        part = [*whole, *OFTEN, "--resume-or-start"]
        return [
            train(f"{name}_whole", whole),
            train(f"{name}_part", part, "stopped"),
            train(f"{name}_again", part, "stopped_later", run=run),
            train(f"{name}_resumed", part, run=run),
        ]

    flags = native(strategy.split()[0])
    if strategy == REPLICAS:
        return resumed("resnet34")
    return [
        *(train(name, [*arguments, *flags]) for name, arguments in CASES.items()),
        *resumed("cnn"),
        *(
            train(name, [*CASES["mlp"], "--strategy", "native", *options.split()])
            for name, (options, _) in BAD_INPUT[strategy].items()
        ),
        *(train(f"allreduce_{name}", arguments) for name, arguments in CASES.items() if strategy != "mirrored"),
    ]


class Starts:
    """Starts what a test asks for, once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._done: dict[str, Outcomes | str] = {}

    def outcomes(self, strategy: str, name: str) -> list[Outcome]:
        """Return what a job did on each rank."""
        if strategy not in self._done:
            framework, launcher = STARTS[strategy.split()[0]]
            if importlib.util.find_spec(framework) is None:
                pytest.skip(f"{framework} is not installed")
            (self.folder / strategy).mkdir()
            self._done[strategy] = run_jobs(
                framework, jobs_of(strategy), folder=self.folder / strategy, launcher=launcher
            )
        outcomes = self._done[strategy]
        assert isinstance(outcomes, dict), outcomes
        return outcomes[name]

    def run(self, strategy: str, name: str) -> Run:
        """Return a run that has ended well on all ranks."""
        self.outcomes(strategy, name)
        run = read_run(self.folder / strategy / "runs" / name)
        assert run.state == "finished"
        return run


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Starts:
    return Starts(tmp_path_factory.mktemp("native"))


@pytest.fixture(params=list(STARTS))
def strategy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def differences(one: Run, other: Run) -> dict[str, float]:
    ours, theirs = (load_weights(run.folder / "weights.safetensors") for run in (one, other))
    assert ours.keys() == theirs.keys()
    return {name: relative_difference(ours[name], theirs[name]) for name in theirs}


@pytest.mark.parametrize("name", CASES)
def test_a_native_strategy_equals_all_reduce(starts: Starts, strategy: str, name: str) -> None:
    """With dropout, for its masks are those of the ranks, and with BatchNorm's statistics."""
    reference = starts.run("multiworker" if strategy == "mirrored" else strategy, f"allreduce_{name}")
    run = starts.run(strategy, name)
    apart = differences(run, reference)
    assert max(apart.values()) < TOLERANCE[name], apart
    for ours, theirs in zip(run.epochs, reference.epochs, strict=True):
        assert ours.training_loss == pytest.approx(theirs.training_loss, rel=1e-12)
        assert (ours.training_accuracy, ours.validation_accuracy) == (
            theirs.training_accuracy,
            theirs.validation_accuracy,
        )
        assert ours.learning_rate == theirs.learning_rate


@pytest.mark.parametrize(
    ("strategy", "name"),
    [*((one, "cnn") for one in STARTS), pytest.param(REPLICAS, "resnet34", marks=pytest.mark.long)],
)
def test_a_resumed_run_ends_bit_for_bit_as_an_unbroken_one(starts: Starts, strategy: str, name: str) -> None:
    whole, run = starts.run(strategy, f"{name}_whole"), starts.run(strategy, f"{name}_part")
    assert isinstance(run.record.status, Status) and run.record.status.resumed_after_steps == [3, 7]
    assert isinstance(run.record.hashes, Hashes) and run.record.hashes == whole.record.hashes
    assert isinstance(run.record.totals, Totals) and isinstance(whole.record.totals, Totals)
    assert run.record.totals.test_loss == whole.record.totals.test_loss
    for ours, theirs in zip(run.epochs, whole.epochs, strict=True):
        assert (ours.weights_hash, ours.training_loss) == (theirs.weights_hash, theirs.training_loss)
    (checkpoint,), (twin,) = checkpoint_folders(run.folder), checkpoint_folders(whole.folder)
    for file in ("weights.safetensors", "optimizer.safetensors"):
        assert (checkpoint / file).read_bytes() == (twin / file).read_bytes()


def test_the_record_says_who_shared_the_work(starts: Starts, strategy: str) -> None:
    """Two workers, of which mirrored has both in one process; PyTorch's gradients are counted."""
    run = starts.run(strategy, "mlp")
    assert isinstance(run.record.world, World) and run.record.world.size == (1 if strategy == "mirrored" else 2)
    sharing = run.record.sharing
    assert isinstance(sharing, SharingRecord)
    assert [(worker.batch_size, worker.images, worker.updates) for worker in sharing.workers] == [(32, 384, 12)] * 2
    hidden = NotRecorded("TensorFlow exchanges gradients inside its strategy")
    for worker in sharing.workers:
        assert worker.sent_bytes == worker.received_bytes == (8 * 152_650 if strategy == "ddp" else hidden)
    assert sharing.formula_bytes == 8 * 152_650


def test_what_contradicts_is_refused_on_all_ranks(starts: Starts, strategy: str) -> None:
    for name, (_, message) in BAD_INPUT[strategy].items():
        ranks = starts.outcomes(strategy, name)
        assert {outcome.code for outcome in ranks} == {2} and message in ranks[0].stderr


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "multiworker"])
def test_a_killed_rank_ends_the_run_which_resumes(strategy: str, tmp_path: Path) -> None:
    framework, launcher = STARTS[strategy]
    check_killed(framework, [*CASES["mlp"], *native(strategy)], launcher=launcher, folder=tmp_path)


@pytest.mark.long
@pytest.mark.cluster
def test_ranks_on_two_hosts_find_each_other(tmp_path: Path) -> None:
    """Whose own names mean something else on the hosts themselves: all that counts is what the others call them."""
    arguments = [*CASES["mlp"], "--lr-scaling", "none", "--threads", "1", "--runs-folder", str(tmp_path / "runs")]
    with several_hosts(tmp_path, names=["a", "b"]) as hosts:
        start = start_on(hosts, tmp_path)
        for strategy, program in (("ddp", "torch_impl/train.py"), ("multiworker", "keras_impl/train.py")):
            flags = [*arguments, "--device", "cpu", *native(strategy), "--name", strategy]
            done = hosts.run("a", start.command(program, np=2, controller="mpi", arguments=flags), environment=AS_ROOT)
            assert done.returncode == 0, done.stderr
    ddp, multiworker = (read_run(tmp_path / "runs" / name) for name in ("ddp", "multiworker"))
    assert isinstance(ddp.record.world, World) and ddp.record.world.hosts == ["a", "b"]
    assert max(differences(ddp, multiworker).values()) < 1e-10
