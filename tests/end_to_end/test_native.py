"""What a run of `--strategy native` records, and its ranks on two hosts.

That it is all-reduce is in `test_same_training.py`, its resumption in `test_resumed.py`.
"""

import pytest
from jobs import Jobs, relative_difference, train
from slow_link import AS_ROOT, start_on
from two_hosts import several_hosts

from common.model.weights import load_weights
from common.run_folder.records import NotRecorded, read_run

pytestmark = [pytest.mark.ranks, pytest.mark.ci]

MLP = ["--dataset", "synthetic:1200x28x28x1x10", "--validation-share", "0.1", "--batch-size", "32", "--epochs", "2"]
MLP += ["--steps-per-epoch", "6", "--dtype", "float64", "--model", "mlp"]
FLAGS = {name: ["--strategy", "native", "--native", name] for name in ("ddp", "multiworker", "mirrored")}
FLAGS["mirrored"] += ["--replicas", "2"]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    launchers = {"mirrored": "none"}
    runs = [train(name, *MLP, *flags, launcher=launchers.get(name, "mpirun2")) for name, flags in FLAGS.items()]
    return Jobs(tmp_path_factory.mktemp("native"), runs)


@pytest.mark.parametrize(
    ("framework", "name"), [("torch", "ddp"), ("keras", "multiworker"), ("keras", "mirrored")], indirect=["framework"]
)
def test_the_record_says_who_shared_the_work(jobs, framework, name):
    """Two workers, of which mirrored has both in one process; PyTorch's gradients are counted."""
    run = jobs.run(framework, name)
    assert run.record.world.size == (1 if name == "mirrored" else 2)
    sharing = run.record.sharing
    assert [(worker.batch_size, worker.images, worker.updates) for worker in sharing.workers] == [(32, 384, 12)] * 2
    hidden = NotRecorded("TensorFlow exchanges gradients inside its strategy")
    for worker in sharing.workers:
        assert worker.sent_bytes == worker.received_bytes == (8 * 152_650 if name == "ddp" else hidden)
    assert sharing.formula_bytes == 8 * 152_650


@pytest.mark.cluster
def test_ranks_on_two_hosts_find_each_other(tmp_path):
    """Whose own names mean something else on the hosts themselves: all that counts is what the others call them."""
    arguments = [*MLP, "--lr-scaling", "none", "--threads", "1", "--runs-folder", str(tmp_path / "runs")]
    with several_hosts(tmp_path, names=["a", "b"]) as hosts:
        start = start_on(hosts, tmp_path)
        for name, program in (("ddp", "torch_impl/train.py"), ("multiworker", "keras_impl/train.py")):
            flags = [*arguments, "--device", "cpu", *FLAGS[name], "--name", name]
            done = hosts.run("a", start.command(program, np=2, controller="mpi", arguments=flags), environment=AS_ROOT)
            assert done.returncode == 0, done.stderr
    ddp, multiworker = (read_run(tmp_path / "runs" / name) for name in ("ddp", "multiworker"))
    assert ddp.record.world.hosts == ["a", "b"]
    ours, theirs = (load_weights(run.folder / "weights.safetensors") for run in (ddp, multiworker))
    assert max(relative_difference(ours[name], theirs[name]) for name in theirs) < 1e-10
