"""`--strategy layers` and `split`: what they send and record, where models are too large, and on several hosts.

That they are one process is in `test_same_training.py`, their resumption in `test_resumed.py`.
"""

import json
import re
from itertools import pairwise

import pytest
from jobs import Job, Jobs, keras_in_ci, relative_difference, train
from made_power import make_zone
from processes import launcher_command, run_command, train_command
from slow_link import AS_ROOT, start_on
from two_hosts import several_hosts

from common.measurement.energy import EnergyRecord
from common.model.weights import load_weights
from common.run_folder.records import read_run

pytestmark = pytest.mark.ranks

BATCH, STEPS, EPOCHS = 32, 6, 2
DATA = ["--dataset", "synthetic:1200x28x28x1x10", "--validation-share", "0.1", "--steps-per-epoch", str(STEPS)]
DATA += ["--epochs", str(EPOCHS), "--dtype", "float64", "--lr-scaling", "none", "--batch-size", str(BATCH)]


def model(name):
    return [*DATA, "--model", name, "--no-dropout"]


def layers(*flags):
    return ["--strategy", "layers", "--stages", "2", *flags]


SPLIT = ["--strategy", "split", "--model-ranks", "2"]
WHOLE = [*DATA, "--model", "cnn"]  # with dropout
DIVIDED = {"layers": layers(), "split": SPLIT}
CASES = {
    "mlp": (*model("mlp"), *layers("--microbatches", "2")),
    "cnn": (*model("cnn"), *layers("--cut-after", "relu2")),
    "cnn_gpipe": (*model("cnn"), *layers("--pipeline-schedule", "gpipe", "--microbatches", "8")),
    "simplecnn": (*model("simplecnn"), *layers("--microbatches", "1")),
    "mlp_split": (*model("mlp"), *SPLIT),
    "cnn_split": (*model("cnn"), *SPLIT),
}
MORE = ("cnn_gpipe", "simplecnn")


def all_jobs(powercap):
    """Return the jobs of two ranks.

    Args:
        powercap: folder of a made meter.
    """
    yield from (train(name, *arguments) for name, arguments in CASES.items())
    meter = ["--horovod-timeline", "--energy", "--powercap-folder", str(powercap), "--idle-seconds", "0.1"]
    for name, flags in DIVIDED.items():
        yield train(f"{name}_whole", *WHOLE, *flags)
        yield Job(f"predict_{name}", (f"runs/{name}_whole",), program="predict", after=(f"{name}_whole",))
        yield train(f"{name}_measured", *WHOLE, *flags, *meter, "--epochs", "1")
    yield train("split_differs", *WHOLE, *SPLIT, patch="one_differs")
    other = ["--epochs", "0", "--start-weights", "runs/layers_whole"]
    yield train("from_other", *WHOLE, *SPLIT, *other, after=("layers_whole",))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    make_zone(folder / "powercap" / "intel-rapl:0", "package-0", microjoules=5, largest=10**12)
    return Jobs(folder, all_jobs(folder / "powercap"))


def names(names):
    return [pytest.param(name, marks=pytest.mark.ci) if name in MORE else name for name in names]


VALUE = 8  # bytes
SENT = {  # by the two ranks, for each image
    "mlp": (192, 192),  # the outputs of fc1, and their gradient
    "cnn": (320, 320),
    "simplecnn": (8 * 12 * 12, 8 * 12 * 12),
    "mlp_split": (10, 10),  # of fc2; the gradient of the images is not needed
    # Forward: 5 channels of relu1 and 10 of relu2, the sum of fc2. Backward: sums over the inputs of conv2 and fc1.
    "cnn_split": (5 * 144 + 10 * 16 + 10 + 10 * 144 + 320,) * 2,
}


@keras_in_ci
@pytest.mark.parametrize("name", names(SENT))
def test_bytes_are_counted_where_they_are_sent(jobs, framework, name):
    sharing = jobs.run(framework, name).record.sharing
    assert sharing and [worker.updates for worker in sharing.workers] == [STEPS * EPOCHS] * 2
    assert [worker.sent_bytes for worker in sharing.workers] == [VALUE * BATCH * values for values in SENT[name]]
    if "split" not in name:
        assert sharing.formula_bytes == VALUE * BATCH * sum(SENT[name]) / 2


@keras_in_ci
@pytest.mark.parametrize("name", names(["cnn", "cnn_gpipe"]))
def test_the_record_tells_what_each_stage_did(jobs, framework, name):
    run = jobs.run(framework, name)
    assert run.record.sharing and run.record.sharing.pipeline
    first, last = run.record.sharing.pipeline
    assert (first.first_layer, last.last_layer) == ("conv1", "fc2")
    microbatches = 8 if name == "cnn_gpipe" else 4
    assert (first.held_microbatches, last.held_microbatches) == ((8, 8) if name == "cnn_gpipe" else (2, 1))
    for stage in (first, last):
        assert len(stage.passes) == 2 * microbatches
        assert all(0 <= one.start <= one.end < 60 for one in stage.passes)
        assert 0 < stage.waiting_seconds < run.record.totals.training_seconds
    for number in range(microbatches):  # forward on the first stage, then on the last; backward the other way round
        times = [
            next(one for one in stage.passes if (one.is_forward, one.microbatch) == (is_forward, number))
            for stage, is_forward in ((first, True), (last, True), (last, False), (first, False))
        ]
        assert all(one.end <= other.end for one, other in pairwise(times))


@keras_in_ci
def test_weights_of_a_pipeline_start_a_split_model(jobs, framework):
    run, source = jobs.run(framework, "from_other"), jobs.run(framework, "layers_whole")
    assert run.record.hashes.final_weights == source.record.hashes.final_weights
    assert run.record.totals.test_loss == pytest.approx(source.record.totals.test_loss, rel=1e-12)


@keras_in_ci
@pytest.mark.parametrize("name", DIVIDED)
def test_predict_reads_the_run_of_a_divided_model(jobs, framework, name):
    run, (first, _) = jobs.run(framework, f"{name}_whole"), jobs.outcomes(framework, f"predict_{name}")
    assert first.code == 0
    found = re.search(r"test loss (\d\.\d+), accuracy .* \((\d+)/(\d+)\)\n", first.stdout)
    assert found, first.stdout
    assert float(found[1]) == pytest.approx(run.record.totals.test_loss, abs=1e-4)
    assert int(found[2]) / int(found[3]) == pytest.approx(run.record.totals.test_accuracy)


@keras_in_ci
def test_a_rank_whose_whole_layer_differs_from_that_of_its_copy_ends_the_run(jobs, framework):
    for rank in jobs.outcomes(framework, "split_differs"):
        assert rank.code == 2
    message = jobs.outcomes(framework, "split_differs")[0].stderr
    assert "after the broadcast" in message and "the first is fc2.bias. Received: rank 1 differs from rank 0" in message


@pytest.mark.ci
@pytest.mark.parametrize("name", DIVIDED)
def test_energy_and_horovods_timeline_of_a_divided_model(jobs, framework, name):
    run = jobs.run(framework, f"{name}_measured")
    assert isinstance(run.record.energy, EnergyRecord)
    events = json.loads((run.folder / "timeline.json").read_text())
    sums = [event for event in events if event.get("name", "").endswith("ALLREDUCE") and event["ph"] == "B"]
    assert len(sums) >= STEPS if name == "split" else not sums, "messages of a pipeline are not Horovod's"


@keras_in_ci
def test_the_record_has_the_memory_of_each_rank_and_its_forecast(jobs, framework):
    record = jobs.run(framework, "cnn").record
    assert record.isolation.memory_before_bytes and len(record.isolation.memory_before_bytes) == 2
    assert record.model.forecast_bytes and len(record.model.forecast_bytes) == 2
    assert all(0 < forecast < 10**7 for forecast in record.model.forecast_bytes)


@pytest.mark.cluster
def test_a_pipeline_goes_over_two_hosts(tmp_path):
    arguments = [*model("cnn"), *layers(), "--threads", "1", "--device", "cpu", "--runs-folder", str(tmp_path / "runs")]
    with several_hosts(tmp_path, names=["a", "b"]) as hosts:
        start = start_on(hosts, tmp_path)
        for side in ("torch", "keras"):
            flags = [*arguments, "--name", side]
            command = start.command(f"{side}_impl/train.py", np=2, controller="mpi", arguments=flags)
            done = hosts.run("a", command, environment=AS_ROOT)
            assert done.returncode == 0, done.stderr
    torch, keras = (read_run(tmp_path / "runs" / side) for side in ("torch", "keras"))
    assert torch.record.world.hosts == ["a", "b"]
    ours, theirs = (load_weights(run.folder / "weights.safetensors") for run in (torch, keras))
    assert max(relative_difference(ours[name], theirs[name]) for name in theirs) < 1e-9


DEEP = ["--dataset", "synthetic:1200x28x28x1x10", "--model", "deep:8x2048", "--epochs", "1", "--steps-per-epoch", "3"]
LIMITS = {"torch": 450, "keras": 800}  # MB, between what one rank takes and what each of two does


@pytest.mark.ci
def test_a_model_too_large_for_one_rank_trains_on_two(framework, tmp_path):
    """Weights, gradients and momentum are 3 x 127 MB."""
    limit = ["--memory-limit", str(LIMITS[framework])]
    command = train_command(framework, [*DEEP, *limit, "--name", "limited"])
    done = run_command(command, folder=tmp_path)
    assert done.code == 2 and f"may have. Received: {' '.join(limit)}, and " in done.stderr, done.stderr
    record = read_run(tmp_path / "runs/limited").record
    assert record.status.state == "failed"
    assert "needs more memory than it may have" in str(record.status.message)
    divided = {"torch": SPLIT, "keras": layers()}[framework]
    command = train_command(framework, [*DEEP, *limit, *divided, "--name", "divided"])
    done = run_command([*launcher_command("mpirun2"), *command], folder=tmp_path)
    assert done.code == 0, done.stderr
    assert read_run(tmp_path / "runs/divided").state == "finished"


@pytest.mark.cluster
def test_a_memory_limit_on_another_host_is_recorded(tmp_path):
    """The second stage, on host b, has seven of the eight layers."""
    divided = [*layers(), "--cut-after", "relu1", "--memory-limit", "300", "--threads", "1", "--device", "cpu"]
    flags = [*DEEP, *divided, "--runs-folder", str(tmp_path / "runs"), "--name", "limited"]
    with several_hosts(tmp_path, names=["a", "b"]) as hosts:
        command = start_on(hosts, tmp_path).command("torch_impl/train.py", np=2, controller="mpi", arguments=flags)
        done = hosts.run("a", command, environment=AS_ROOT)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("error: rank 1 needs more memory than it may have") == 1, done.stderr
    record = read_run(tmp_path / "runs/limited").record
    assert record.status.state == "failed"
    assert "rank 1 needs more memory than it may have" in str(record.status.message)
