"""`--strategy layers` and `split`: their runs and energy, where models are too large, and on several hosts.

That they are one process, what they send and record is in `test_same_training.py`, their resumption in
`test_resumed.py`. Also strategies of the frameworks on several hosts.
"""

import json
import sys

import pytest
from jobs import Jobs, keras_in_ci, relative_difference, train
from made_power import make_zone
from processes import ROOT, launcher_command, run_command, train_command
from slow_link import AS_ROOT, start_on
from two_hosts import several_hosts

from common.measurement.energy import EnergyRecord
from common.model.weights import load_weights
from common.run_folder.records import read_run

pytestmark = pytest.mark.ranks

BATCH, STEPS, EPOCHS = 32, 6, 2
DATA = ["--dataset", "synthetic:1200x28x28x1x10", "--validation-share", "0.1", "--steps-per-epoch", str(STEPS)]
DATA += ["--epochs", str(EPOCHS), "--dtype", "float64", "--lr-scaling", "none", "--batch-size", str(BATCH)]


def layers(*flags):
    return ["--strategy", "layers", "--stages", "2", *flags]


SPLIT = ["--strategy", "split", "--model-ranks", "2"]
WHOLE = [*DATA, "--model", "cnn"]  # with dropout
DIVIDED = {"layers": layers(), "split": SPLIT}


def all_jobs(powercap):
    """Return the jobs of two ranks.

    Args:
        powercap: folder of a made meter.
    """
    meter = ["--horovod-timeline", "--energy", "--powercap-folder", str(powercap), "--idle-seconds", "0.1"]
    for name, flags in DIVIDED.items():
        yield train(f"{name}_measured", *WHOLE, *flags, *meter, "--epochs", "1")
    yield train("over_gloo", *WHOLE, "--horovod-timeline", "--epochs", "1", launcher="gloo2")
    yield train("layers_whole", *WHOLE, *DIVIDED["layers"])
    yield train("split_differs", *WHOLE, *SPLIT, patch="one_differs")
    other = ["--epochs", "0", "--start-weights", "runs/layers_whole"]
    yield train("from_other", *WHOLE, *SPLIT, *other, after=("layers_whole",))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    make_zone(folder / "powercap" / "intel-rapl:0", "package-0", microjoules=5, largest=10**12)
    return Jobs(folder, all_jobs(folder / "powercap"))


@keras_in_ci
def test_weights_of_a_pipeline_start_a_split_model(jobs, framework):
    run, source = jobs.run(framework, "from_other"), jobs.run(framework, "layers_whole")
    assert run.record.hashes.final_weights == source.record.hashes.final_weights
    assert run.record.totals.test_loss == pytest.approx(source.record.totals.test_loss, rel=1e-12)


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


@pytest.mark.ci
@pytest.mark.parametrize("framework", ["torch"], indirect=True)
def test_horovods_timeline_over_gloo(jobs, framework):
    events = json.loads((jobs.run(framework, "over_gloo").folder / "timeline.json").read_text())
    assert sum(event.get("name") == "GLOO_ALLREDUCE" and event["ph"] == "B" for event in events) >= STEPS


PLANTED = """
import os, runpy, sys
import torch_impl
from torch_impl.strategies import layers

def planted(*_, **__):
    raise RuntimeError("planted")

if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    layers.Layers._backward_pass = planted
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.ci
def test_a_bug_in_one_stage_ends_the_other_that_waits_for_it(tmp_path):
    program, *settings = [str(ROOT / "torch_impl" / "train.py"), *WHOLE, *DIVIDED["layers"]]
    start = f"import sys; sys.argv = {[program, *settings]!r}; sys.path.insert(0, {str(ROOT)!r})\n{PLANTED}"
    done = run_command([*launcher_command("mpirun2"), sys.executable, "-c", start], folder=tmp_path)
    assert done.code != 0 and "RuntimeError: planted" in done.stderr


NATIVE = ["--model", "mlp", "--strategy", "native", "--native"]
PIPELINE = ["--model", "cnn", *layers()]
TWO_HOSTS = {  # flags of both frameworks, and the largest relative difference of a tensor
    "pipeline": ({"torch": PIPELINE, "keras": PIPELINE}, 1e-9),
    "native": ({"torch": [*NATIVE, "ddp"], "keras": [*NATIVE, "multiworker"]}, 1e-10),
}


@pytest.mark.cluster
@pytest.mark.parametrize("name", TWO_HOSTS)
def test_ranks_on_two_hosts_find_each_other_and_train_alike(name, tmp_path):
    """Whose own names mean something else on the hosts themselves: all that counts is what the others call them."""
    flags_of, tolerance = TWO_HOSTS[name]
    arguments = [*DATA, "--no-dropout", "--threads", "1", "--device", "cpu", "--runs-folder", str(tmp_path / "runs")]
    with several_hosts(tmp_path, names=["a", "b"]) as hosts:
        start = start_on(hosts, tmp_path)
        for side, flags in flags_of.items():
            settings = [*arguments, *flags, "--name", side]
            command = start.command(f"{side}_impl/train.py", np=2, controller="mpi", arguments=settings)
            done = hosts.run("a", command, environment=AS_ROOT)
            assert done.returncode == 0, done.stderr
    torch, keras = (read_run(tmp_path / "runs" / side) for side in ("torch", "keras"))
    assert torch.record.world.hosts == keras.record.world.hosts == ["a", "b"]
    ours, theirs = (load_weights(run.folder / "weights.safetensors") for run in (torch, keras))
    assert max(relative_difference(ours[name], theirs[name]) for name in theirs) < tolerance


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
