"""`--strategy layers` and `split` against one process, against their formulas, and against themselves after a resume.

One start of two ranks does all runs of a framework in which the ranks hold one model, one of four ranks those with two
copies of it (`trainer_worker.py`).
"""

import importlib.util
import json
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from made_power import make_zone
from slow_link import AS_ROOT, start_on
from strategy_runs import OFTEN, Starts, check_killed, check_resumed, differences, more, weights_of
from trainer_runs import Job, launcher_command, run_command, train_command
from two_hosts import several_hosts

from common.measurement.energy import EnergyRecord
from common.measurement.interference import Interference
from common.pipeline.schedule import ideal_bubble
from common.run_folder.records import Hashes, ModelRecord, Run, Status, Totals, World, read_run

pytestmark = pytest.mark.ranks

BATCH, STEPS, EPOCHS = 32, 6, 2
DATA = ["--dataset", "synthetic:1200x28x28x1x10", "--validation-share", "0.1", "--steps-per-epoch", str(STEPS)]
DATA += ["--epochs", str(EPOCHS), "--dtype", "float64", "--lr-scaling", "none", "--learning-rate", "0.05"]
RESNET34 = ["--dataset", "synthetic:96x17x19x1x3", "--epochs", "1", "--steps-per-epoch", "3", "--dtype", "float64"]
RESNET34 += ["--lr-scaling", "none", "--momentum", "0", "--model", "resnet34"]


@dataclass(frozen=True)
class Case:
    """A run by `layers` or `split`, and the run of one process that it equals.

    Attributes:
        alone: the settings of the one process, but for its batch.
        flags: of the strategy.
        images: of an update.
        passes: of the one process, where it has to see the microbatches of the pipeline (BatchNorm).
    """

    alone: tuple[str, ...]
    flags: tuple[str, ...]
    copies: int = 1
    images: int = BATCH
    passes: int = 1
    tolerance: float = 1e-12

    def arguments(self) -> list[str]:
        """The settings of the run."""
        return [*self.alone, *self.flags, "--batch-size", str(self.images // self.copies)]

    def arguments_alone(self) -> list[str]:
        """The settings of the one process."""
        passes = ["--backward-passes-per-step", str(self.passes)]
        return [*self.alone, *passes, "--batch-size", str(self.images // self.passes)]


def model(name: str, *flags: str) -> tuple[str, ...]:
    return (*DATA, "--model", name, "--no-dropout", *flags)


def layers(*flags: str, stages: int = 2) -> tuple[str, ...]:
    return ("--strategy", "layers", "--stages", str(stages), *flags)


SPLIT = ("--strategy", "split", "--model-ranks", "2")
ADAM = ("--optimizer", "adam", "--learning-rate", "0.002")
CASES = {
    "mlp": Case(model("mlp"), layers("--microbatches", "2")),
    "cnn": Case(model("cnn", *ADAM), layers("--cut-after", "relu2")),
    "cnn_gpipe": Case(model("cnn", *ADAM), layers("--pipeline-schedule", "gpipe", "--microbatches", "8")),
    "simplecnn": Case(model("simplecnn"), layers("--microbatches", "1")),
    "dense500": Case(model("dense500"), layers()),
    "resnet34": Case(tuple(RESNET34), layers("--microbatches", "2"), images=8, passes=2, tolerance=1e-11),
    "mlp_split": Case(model("mlp"), SPLIT),
    "cnn_split": Case(model("cnn", *ADAM), SPLIT),
    "simplecnn_split": Case(model("simplecnn"), SPLIT),
    "dense500_split": Case(model("dense500"), SPLIT),
}
MORE = ("cnn_gpipe", "simplecnn", "dense500", "resnet34", "simplecnn_split", "dense500_split")
ON_FOUR = {
    "cnn_copies": Case(model("cnn", *ADAM), layers("--microbatches", "2"), copies=2, tolerance=1e-11),
    "cnn_split_copies": Case(model("cnn", *ADAM), SPLIT, copies=2, tolerance=1e-11),
    "four_stages": Case(model("cnn", *ADAM), layers("--microbatches", "8", stages=4)),
}
WHOLE = [*DATA, "--model", "cnn", "--batch-size", str(BATCH)]  # with dropout
RESUMED = {"layers": layers(), "split": SPLIT}
BAD_INPUT = {
    "three_stages": (layers(stages=3), "every copy of the model needs as many ranks. Received: --stages 3 on 2. Start"),
    "no_stages": (("--strategy", "layers"), "layers are divided among a number of ranks. Received: --strategy layers."),
    "no_such_layer": (layers("--cut-after", "conv9"), "there is no such layer. Received: --cut-after conv9 for cnn."),
    "microbatches": (layers("--microbatches", "5"), "a batch is divided into equal microbatches. Received: --batch-"),
    "both": ((*layers(), "--model-ranks", "2"), "--model-ranks is an option of --strategy split. Received: --strategy"),
    "shares": ((*SPLIT, "--shares", "2:1"), "ranks that hold one model take the same batches. Received: --strategy"),
    "batch_norm": ((*SPLIT, "--model", "resnet34"), "resnet34 has layers that are not split: BatchNorm. Received:"),
}


def train(name: str, arguments: list[str], patch: str = "") -> Job:
    shallow = ["shallow"] if "resnet34" in name else []
    return Job(name, [*arguments, "--name", name], patch="+".join([*shallow, *([patch] if patch else [])]))


def two_ranks() -> list[Job]:
    resumed = []
    for name, flags in RESUMED.items():
        part = [*WHOLE, *flags, *OFTEN, "--resume-or-start"]
        resumed += [
            train(f"{name}_whole", [*WHOLE, *flags]),
            train(f"{name}_part", part, "stopped"),
            Job(f"{name}_again", [*part, "--name", f"{name}_part"], patch="stopped_later"),
            Job(f"{name}_resumed", [*part, "--name", f"{name}_part"]),
        ]
    return [
        *(train(name, case.arguments()) for name, case in CASES.items()),
        *resumed,
        *(Job(f"predict_{name}", [f"runs/{name}_whole"], program="predict") for name in RESUMED),
        train("split_differs", [*WHOLE, *SPLIT], "one_differs"),
        train("gpipe_dropout", [*WHOLE, *RESUMED["layers"], "--pipeline-schedule", "gpipe"]),
        train("from_other", [*WHOLE, *SPLIT, "--epochs", "0", "--start-weights", "runs/layers_whole"]),
        *(train(name, [*WHOLE, *flags]) for name, (flags, _) in BAD_INPUT.items()),
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Starts:
    cases = CASES | ON_FOUR
    jobs = [train(name, case.arguments_alone()) for name, case in cases.items()]
    return Starts(tmp_path_factory.mktemp("alone"), jobs, more=(*MORE, *ON_FOUR), launcher="none")


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Starts:
    return Starts(tmp_path_factory.mktemp("parts"), two_ranks(), more=MORE, launcher="mpirun2")


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Starts:
    jobs = [train(name, case.arguments()) for name, case in ON_FOUR.items()]
    return Starts(tmp_path_factory.mktemp("copies"), jobs, launcher="mpirun4")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Starts:
    """A start of their own: Horovod has to know of a timeline before it starts."""
    folder = tmp_path_factory.mktemp("measured")
    make_zone(folder / "powercap" / "intel-rapl:0", "package-0", microjoules=5, largest=10**12)
    flags = ["--horovod-timeline", "--energy", "--powercap-folder", str(folder / "powercap"), "--idle-seconds", "0.1"]
    jobs = [train(name, [*WHOLE, *strategy, *flags, "--epochs", "1"]) for name, strategy in RESUMED.items()]
    return Starts(folder, jobs, launcher="mpirun2")


@pytest.fixture(params=["torch", pytest.param("keras", marks=pytest.mark.ci)])
def framework(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.mark.parametrize("name", [more(name) if name in MORE else name for name in CASES])
def test_ranks_that_hold_a_model_together_train_it_like_one(
    alone: Starts, starts: Starts, framework: str, name: str
) -> None:
    check_equal(starts.run(framework, name), alone.run(framework, name), tolerance=CASES[name].tolerance)


@pytest.mark.ci
@pytest.mark.parametrize("name", ON_FOUR)
def test_copies_of_a_divided_model_train_it_like_one(alone: Starts, copies: Starts, framework: str, name: str) -> None:
    run = copies.run(framework, name)
    check_equal(run, alone.run(framework, name), tolerance=ON_FOUR[name].tolerance)
    world = run.record.world
    assert isinstance(world, World) and (world.size, world.parts) == (4, 4 // ON_FOUR[name].copies)


def check_equal(run: Run, alone: Run, *, tolerance: float) -> None:
    apart = differences(weights_of(run), weights_of(alone))
    assert max(apart.values()) < tolerance, apart
    assert isinstance(run.record.totals, Totals) and isinstance(alone.record.totals, Totals)
    assert run.record.totals.test_loss == pytest.approx(alone.record.totals.test_loss, rel=10 * tolerance)
    assert run.record.totals.test_accuracy == alone.record.totals.test_accuracy
    for ours, theirs in zip(run.epochs, alone.epochs, strict=True):
        assert ours.training_loss == pytest.approx(theirs.training_loss, rel=10 * tolerance)
        assert (ours.training_accuracy, ours.validation_accuracy) == (
            theirs.training_accuracy,
            theirs.validation_accuracy,
        )
    assert isinstance(run.record.hashes, Hashes) and isinstance(alone.record.hashes, Hashes)
    assert run.record.hashes.initial_weights == alone.record.hashes.initial_weights


VALUE = 8  # bytes
SENT = {  # by the two ranks, for each image
    "mlp": (192, 192),  # the outputs of fc1, and their gradient
    "cnn": (320, 320),
    "simplecnn": (8 * 12 * 12, 8 * 12 * 12),
    "mlp_split": (10, 10),  # of fc2; the gradient of the images is not needed
    # Forward: 5 channels of relu1 and 10 of relu2, the sum of fc2. Backward: sums over the inputs of conv2 and fc1.
    "cnn_split": (5 * 144 + 10 * 16 + 10 + 10 * 144 + 320,) * 2,
}


@pytest.mark.parametrize("name", [more(name) if name in MORE else name for name in SENT])
def test_bytes_are_counted_where_they_are_sent(starts: Starts, framework: str, name: str) -> None:
    sharing = starts.run(framework, name).record.sharing
    assert sharing and [worker.updates for worker in sharing.workers] == [STEPS * EPOCHS] * 2
    assert [worker.sent_bytes for worker in sharing.workers] == [VALUE * BATCH * values for values in SENT[name]]
    if "split" not in name:
        assert sharing.formula_bytes == VALUE * BATCH * sum(SENT[name]) / 2


@pytest.mark.parametrize("name", ["cnn", more("cnn_gpipe")])
def test_the_record_tells_what_each_stage_did(starts: Starts, framework: str, name: str) -> None:
    run = starts.run(framework, name)
    assert run.record.sharing and run.record.sharing.pipeline and isinstance(run.record.totals, Totals)
    first, last = run.record.sharing.pipeline
    assert (first.first_layer, last.last_layer) == ("conv1", "fc2")
    microbatches = 8 if name == "cnn_gpipe" else 4
    assert (first.held_microbatches, last.held_microbatches) == ((8, 8) if name == "cnn_gpipe" else (2, 1))
    for stage in (first, last):
        assert len(stage.passes) == 2 * microbatches
        assert all(0 <= one.start <= one.end < 60 for one in stage.passes)
        assert isinstance(run.record.totals.training_seconds, float)
        assert 0 < stage.waiting_seconds < run.record.totals.training_seconds
    for number in range(microbatches):  # forward on the first stage, then on the last; backward the other way round
        times = [
            next(one for one in stage.passes if (one.is_forward, one.microbatch) == (is_forward, number))
            for stage, is_forward in ((first, True), (last, True), (last, False), (first, False))
        ]
        assert all(one.end <= other.end for one, other in pairwise(times))
    assert 0 < ideal_bubble(stages=2, microbatches=microbatches) < 1


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_ends_bit_for_bit_as_an_unbroken_one(starts: Starts, framework: str, name: str) -> None:
    """With dropout, whose masks each rank draws of its own part."""
    check_resumed(starts.run(framework, f"{name}_part"), starts.run(framework, f"{name}_whole"), steps=[3, 8])


def test_masks_of_dropout_do_not_depend_on_the_schedule(starts: Starts, framework: str) -> None:
    """The same microbatches in another order of passes: sums of gradients in the same order."""
    gpipe, whole = starts.run(framework, "gpipe_dropout"), starts.run(framework, "layers_whole")
    assert max(differences(weights_of(gpipe), weights_of(whole)).values()) < 1e-12


def test_weights_of_a_pipeline_start_a_split_model(starts: Starts, framework: str) -> None:
    run, source = starts.run(framework, "from_other"), starts.run(framework, "layers_whole")
    assert isinstance(run.record.hashes, Hashes) and isinstance(source.record.hashes, Hashes)
    assert run.record.hashes.final_weights == source.record.hashes.final_weights
    assert isinstance(run.record.totals, Totals) and isinstance(source.record.totals, Totals)
    assert run.record.totals.test_loss == pytest.approx(source.record.totals.test_loss, rel=1e-12)


@pytest.mark.parametrize("name", RESUMED)
def test_predict_reads_the_run_of_a_divided_model(starts: Starts, framework: str, name: str) -> None:
    run, (first, _) = starts.run(framework, f"{name}_whole"), starts.outcomes(framework, f"predict_{name}")
    assert first.code == 0 and isinstance(run.record.totals, Totals)
    found = re.search(r"test loss (\d\.\d+), accuracy .* \((\d+)/(\d+)\)\n", first.stdout)
    assert found, first.stdout
    assert float(found[1]) == pytest.approx(run.record.totals.test_loss, abs=1e-4)
    assert int(found[2]) / int(found[3]) == pytest.approx(run.record.totals.test_accuracy)


def test_a_rank_whose_whole_layer_differs_from_that_of_its_copy_ends_the_run(starts: Starts, framework: str) -> None:
    for rank in starts.outcomes(framework, "split_differs"):
        assert rank.code == 2
    message = starts.outcomes(framework, "split_differs")[0].stderr
    assert "after the broadcast" in message and "the first is fc2.bias. Received: rank 1 differs from rank 0" in message


@pytest.mark.ci
@pytest.mark.parametrize("name", RESUMED)
def test_energy_and_horovods_timeline_of_a_divided_model(measured: Starts, framework: str, name: str) -> None:
    run = measured.run(framework, name)
    assert isinstance(run.record.energy, EnergyRecord)
    events = json.loads((run.folder / "timeline.json").read_text())
    sums = [event for event in events if event.get("name", "").endswith("ALLREDUCE") and event["ph"] == "B"]
    assert len(sums) >= STEPS if name == "split" else not sums, "messages of a pipeline are not Horovod's"


def test_what_contradicts_is_refused_on_all_ranks(starts: Starts, framework: str) -> None:
    for name, (_, message) in BAD_INPUT.items():
        ranks = starts.outcomes(framework, name)
        assert [outcome.code for outcome in ranks] == [2, 2] and message in ranks[0].stderr, ranks[0].stderr


@pytest.mark.ci
def test_both_frameworks_train_divided_models_alike(starts: Starts) -> None:
    if any(importlib.util.find_spec(side) is None for side in ("torch", "keras")):
        pytest.skip("only one framework is installed")
    for name in ("cnn", "cnn_split"):
        apart = differences(*(weights_of(starts.run(side, name)) for side in ("keras", "torch")))
        assert max(apart.values()) < 1e-9, apart


@pytest.mark.ci
@pytest.mark.parametrize("side", ["torch", pytest.param("keras", marks=pytest.mark.long)])
def test_a_killed_stage_ends_the_run_which_resumes(side: str, tmp_path: Path) -> None:
    check_killed(side, [*WHOLE, *layers()], launcher="mpirun2", folder=tmp_path)


@pytest.mark.long
@pytest.mark.cluster
def test_a_pipeline_goes_over_two_hosts(tmp_path: Path) -> None:
    arguments = [*model("cnn"), *layers(), "--threads", "1", "--device", "cpu", "--runs-folder", str(tmp_path / "runs")]
    with several_hosts(tmp_path, names=["a", "b"]) as hosts:
        start = start_on(hosts, tmp_path)
        for side in ("torch", "keras"):
            flags = [*arguments, "--name", side]
            command = start.command(f"{side}_impl/train.py", np=2, controller="mpi", arguments=flags)
            done = hosts.run("a", command, environment=AS_ROOT)
            assert done.returncode == 0, done.stderr
    torch, keras = (read_run(tmp_path / "runs" / side) for side in ("torch", "keras"))
    assert isinstance(torch.record.world, World) and torch.record.world.hosts == ["a", "b"]
    assert max(differences(weights_of(torch), weights_of(keras)).values()) < 1e-9


DEEP = ["--dataset", "synthetic:1200x28x28x1x10", "--model", "deep:8x2048", "--epochs", "1", "--steps-per-epoch", "3"]
LIMITS = {"torch": 450, "keras": 800}  # MB, between what one rank takes and what each of two does


@pytest.mark.ci
def test_a_model_too_large_for_one_rank_trains_on_two(framework: str, tmp_path: Path) -> None:
    """Weights, gradients and momentum are 3 x 127 MB."""
    limit = ["--memory-limit", str(LIMITS[framework])]
    command = train_command(framework, [*DEEP, *limit, "--name", "limited"])
    done = run_command(command, folder=tmp_path)
    assert done.code == 2 and f"may have. Received: {' '.join(limit)}, and " in done.stderr, done.stderr
    record = read_run(tmp_path / "runs/limited").record
    assert isinstance(record.status, Status) and record.status.state == "failed"
    assert "needs more memory than it may have" in str(record.status.message)
    divided = {"torch": SPLIT, "keras": layers()}[framework]
    command = train_command(framework, [*DEEP, *limit, *divided, "--name", "divided"])
    done = run_command([*launcher_command("mpirun2"), *command], folder=tmp_path)
    assert done.code == 0, done.stderr
    assert read_run(tmp_path / "runs/divided").state == "finished"


@pytest.mark.cluster
def test_a_memory_limit_on_another_host_is_recorded(tmp_path: Path) -> None:
    """The second stage, on host b, has seven of the eight layers."""
    divided = [*layers(), "--cut-after", "relu1", "--memory-limit", "300", "--threads", "1", "--device", "cpu"]
    flags = [*DEEP, *divided, "--runs-folder", str(tmp_path / "runs"), "--name", "limited"]
    with several_hosts(tmp_path, names=["a", "b"]) as hosts:
        command = start_on(hosts, tmp_path).command("torch_impl/train.py", np=2, controller="mpi", arguments=flags)
        done = hosts.run("a", command, environment=AS_ROOT)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("error: rank 1 needs more memory than it may have") == 1, done.stderr
    record = read_run(tmp_path / "runs/limited").record
    assert isinstance(record.status, Status) and record.status.state == "failed"
    assert "rank 1 needs more memory than it may have" in str(record.status.message)


def test_the_record_has_the_memory_of_each_rank_and_its_forecast(starts: Starts, framework: str) -> None:
    record = starts.run(framework, "cnn").record
    assert isinstance(record.isolation, Interference) and isinstance(record.model, ModelRecord)
    assert record.isolation.memory_before_bytes and len(record.isolation.memory_before_bytes) == 2
    assert record.model.forecast_bytes and len(record.model.forecast_bytes) == 2
    assert all(0 < forecast < 10**7 for forecast in record.model.forecast_bytes)
