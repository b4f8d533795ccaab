"""Jobs on a real Slurm that the tests start (`real_slurm`): submission, requeue at the time limit, arrays, failures."""

import json
import os
import sys
from dataclasses import dataclass
from datetime import datetime

import pytest
from processes import environment, epochs_of
from real_slurm import NODES, WAIT_SECONDS, Slurm, real_slurm, why_not
from sites_and_jobs import Desk, own_site
from two_hosts import INTERFACE, SSH_PORT, several_hosts
from waiting import wait_until

from analysis import __main__ as analysis
from common.run_folder.records import read_run

pytestmark = pytest.mark.cluster

HELD_AFTER = 3  # epochs
SMALL = ["--device", "cpu", "--threads", "1", "--dataset", "synthetic:600x28x28x1x10", "--batch-size", "50",
         "--epochs", "5"]  # fmt: skip


def site_of(folder, **changes):
    """Write a site as where modules are not set up in batch scripts, and some must stay; return its path."""
    options = {"partition": "tests", "memory": "900M", "notice_seconds": 90, "extra": ["--comment=test"]}
    return own_site(
        folder, "slurm", runs_folder=str(folder / "runs"), modules=["openmpi/4"], purge=False, **changes,
        setup=['module() { echo "module $*, as $TWINS_SITE is the site"; }'],
        environment={"TWINS_SITE": "ours"}, slurm=options,
    )  # fmt: skip


TINY = """
[[cells]]
framework = "torch"
device = "cpu"
epochs = 1
max_steps = 2
dataset = "synthetic:600x28x28x1x10"
model = "mlp"
np = 2
"""

PIPELINE = f'{TINY}name = "pipeline"\nstrategy = "layers"\nstages = 2\nlr_scaling = "none"\n'
SHARED = TINY.replace("np = 2", "np = 1\nthreads = 1\nseed = [1, 2]")  # runs that two tasks of an array share

# Trainers of jobs whose names begin with "held" stop here in the first turn, as long as the test wants them to.
# In the one named "struck" rank 0 ends after its next epoch, at the first start.
HOLD = f"""
import os, signal, sys, time
from pathlib import Path
job = os.environ.get("SLURM_JOB_NAME", "")
if (job.startswith("held") or job == "struck") and "SLURM_RESTART_COUNT" not in os.environ:
    if any(word.endswith("_impl/train.py") for word in sys.orig_argv):
        from common.run.checkpoints import Checkpoints
        save, epoch_recorded = Checkpoints.save, Checkpoints.epoch_recorded
        def struck(self, epoch, own):
            saved = save(self, epoch, own)
            struck = Path(os.environ["SLURM_SUBMIT_DIR"]) / "struck"
            if job == "struck" and epoch.number == {HELD_AFTER + 1} and self.comm.rank == 0 and not struck.exists():
                struck.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return saved
        def held(self, epoch):
            epoch_recorded(self, epoch)
            while job.startswith("held") and epoch.number == {HELD_AFTER}:
                time.sleep(1)
        Checkpoints.save, Checkpoints.epoch_recorded = struck, held
"""


@pytest.fixture(scope="module")
def slurm():
    """A cluster of two nodes for all tests of this file."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with real_slurm() as cluster:
        yield cluster


@dataclass(frozen=True)
class ClusterDesk(Desk):
    """Where jobs are submitted to a cluster."""

    slurm: Slurm

    def submit(self, name, *words, launcher="srun", controller="mpi", code=0, shows="", preflight=("--no-preflight",)):
        """Submit a job by our command; return Slurm's number, None where it is refused."""
        site = site_of(self.folder, name=f"{launcher}-{controller}", launcher=launcher, controller=controller)
        words = ["--site", site, "--name", name, "--minutes", "10", *preflight, *words]
        self.check("submit", *words, code=code, shows=shows)
        assert self.job(name).exists() == (code == 0)
        return None if code else str(json.loads((self.job(name) / "job.json").read_text())["id"])

    def train(self, name, framework, *words, settings=(), **options):
        return self.submit(name, *words, "--", f"{framework}_impl/train.py", *SMALL, *settings, **options)

    def weights(self, name):
        return (self.folder / "runs" / name / "weights.safetensors").read_bytes()

    def log(self, name):
        return "".join(file.read_text() for file in self.job(name).glob("output*.log"))


@pytest.fixture(scope="module")
def desk(slurm, tmp_path_factory):
    """Where the tests of this file submit; what is submitted there has the environment of a user of the cluster."""
    folder = tmp_path_factory.mktemp("desk of $(whoami)")
    (folder / "sitecustomize.py").write_text(HOLD)
    variables = environment() | slurm.environment | {"HOROVOD_TWINS_CACHE": str(folder / "cache")}
    variables["PYTHONPATH"] = os.pathsep.join([str(folder), environment()["PYTHONPATH"]])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield ClusterDesk(folder, slurm)


@pytest.fixture(scope="module")
def done(desk):
    """Submit what takes long, all at once, and wait for its end; return name -> Slurm's number.

    A run is stopped in the middle and then hit by the time limit, in which others are done: PyTorch by mpirun, twice,
    Keras by horovodrun, and with a rank that is killed, an experiment, and a run that fails.
    """
    two = ("--nodes", "2")
    held = desk.train("held", "torch", *two)
    run = desk.folder / "runs/held"
    patience = {"within_seconds": WAIT_SECONDS, "shown": lambda: desk.log("held")}
    wait_until(lambda: epochs_of(run) == HELD_AFTER, **patience)
    _shorten(desk.slurm, held)
    done = {
        "torch": desk.train("torch", "torch", *two, "--repeats", "2", launcher="mpirun"),
        "keras": desk.train("keras", "keras", "--ranks-per-node", "2", launcher="horovodrun", controller="gloo"),
        "struck": desk.train("struck", "keras", *two, "--restarts", "1"),
    }
    images = ["--dataset", "images:/nowhere/$(whoami) 'at' all"]
    failing = desk.train("failing", "torch", settings=images)
    file = desk.folder / "tiny.toml"
    file.write_text(TINY + PIPELINE)
    done["trial"] = desk.submit("trial", *two, "--", "experiment", str(file), preflight=())
    shared = desk.folder / "shared.toml"
    shared.write_text(SHARED)
    done["shared"] = desk.submit("shared", "--", "experiment", str(shared), "--at-once", "2")
    wait_until(lambda: desk.slurm.job(held)["Restarts"] == "1", **patience)
    desk.slurm.command("scontrol", "update", f"JobId={held}", "TimeLimit=60")
    done["held"] = held
    for name, job in done.items():
        for task in [f"{job}_1", f"{job}_2"] if name in ("torch", "shared") else [job]:
            desk.slurm.wait_for(task, "COMPLETED")
    return {**done, "failing": failing}


def _shorten(slurm, job):
    """Bring the time limit of a job near, to 1 to 2 minutes from now, which keeps the test short."""
    hours, minutes, _ = slurm.job(job)["RunTime"].split(":")
    slurm.command("scontrol", "update", f"JobId={job}", f"TimeLimit={60 * int(hours) + int(minutes) + 2}")


def test_interrupted_runs_end_with_the_weights_of_an_uninterrupted_one(desk, done):
    """One is requeued at its time limit, and the ranks of another are restarted within the job."""
    for name, whole in (("held", "torch-r1"), ("struck", "keras")):
        run = desk.run(name)
        assert run.state == "finished" and run.record.site == "slurm", desk.log(name)
        assert run.record.status.resumed_after_epochs == [HELD_AFTER]
        assert run.record.world.hosts == list(NODES)
        assert [epoch.epoch for epoch in run.epochs] == [1, 2, 3, 4, 5]
        assert desk.weights(name) == desk.weights(whole)
    held, struck = desk.log("held"), desk.log("struck")
    assert f"held: 2 ranks on n[1-2], Slurm job {done['held']}, turn 1\n" in held and "turn 2\n" in held
    assert "the time limit is near: requeueing, to resume from what was saved\n" in held
    assert "restart 1 of 1" in struck and "turn 2" not in struck


def test_runs_record_what_their_start_cost(desk, done):
    launchers = {"held": "srun", "torch-r1": "mpirun", "keras": "horovodrun"}
    for name, launcher in launchers.items():
        record = desk.run(name).record
        assert record.world.launcher == launcher
        launch, queue = record.totals.launch_seconds, record.totals.queue_seconds
        assert launch > 0 and queue >= 0
        if name == "held":  # of the last start: what the first turn took is not waiting
            submitted = json.loads((desk.job(name) / "job.json").read_text())["submitted_at"]
            whole = datetime.fromisoformat(record.status.started_at) - datetime.fromisoformat(submitted)
            assert launch + queue < whole.total_seconds() - 10


def test_an_array_runs_each_repeat_with_a_seed_of_its_own(desk, done):
    runs = [desk.run(name) for name in ("torch-r1", "torch-r2")]
    assert [run.record.config.training.seed for run in runs] == [1, 2]
    assert {run.state for run in runs} == {"finished"} and {run.record.site for run in runs} == {"slurm"}
    assert desk.weights("torch-r1") != desk.weights("torch-r2")
    assert desk.check("logs", "torch").count("next: ") == 2
    lines = desk.check("status", "torch", "held", "keras").splitlines()[-3:]
    assert all(" finished " in line for line in lines) and " 2 finished " in lines[0]


def test_a_failing_job_is_reported_as_failed(desk, done):
    assert desk.slurm.wait_for(done["failing"], "FAILED")["ExitCode"] == "2:0", desk.log("failing")
    assert " failed " in desk.check("status", "failing", code=1, shows="exit code 2")
    desk.check("logs", "failing", shows="torch_impl/train.py: error: ")


def test_an_experiment_runs_in_a_job_with_the_memory_and_the_modules_of_its_site(desk, done):
    log = desk.log("trial")
    for number, name in enumerate(("torch-mlp-np2-r1", "pipeline-torch-mlp-np2-r1"), 1):
        run = read_run(desk.folder / "runs/tiny" / name)
        assert run.state == "finished" and run.record.site == "slurm"
        assert run.record.world.hosts == list(NODES)
        assert f"{number}/2 {name}: trained in " in log
    assert desk.slurm.job(done["trial"])["MinMemoryNode"] == "900M"
    modules = [line for line in log.splitlines() if line.startswith("module ")]
    assert modules == ["module load openmpi/4, as ours is the site"]


def test_the_tasks_of_an_array_share_the_runs_of_an_experiment(desk, done):
    runs = [read_run(path.parent) for path in sorted((desk.folder / "runs/shared").glob("*/run.json"))]
    assert [run.state for run in runs] == ["finished", "finished"]
    assert [run.record.world.at_once for run in runs] == [2, 2]
    assert len({run.record.status.slurm_job for run in runs}) == 2
    for part, run in enumerate(runs, 1):
        assert f"1/1 {run.folder.name}: trained in " in (desk.job("shared") / f"output-{part}.log").read_text()
    desk.check("status", "shared", shows=" finished ")


def test_runs_by_srun_over_mpi_are_compared_with_runs_by_ssh_over_gloo(desk, done, tmp_path, capsys):
    """The comparison of a cluster with a cloud: as CTE-POWER starts ranks, and as machines of SkyPilot do."""
    (tmp_path / "hosts").mkdir()
    with several_hosts(tmp_path / "hosts", names=["a", "b"]) as hosts:
        options = {"names": ["a:1", "b:1"], "ssh_port": SSH_PORT, "identity_file": hosts.identity}
        interface = {"controller": "gloo", "network_interface": INTERFACE}
        site = own_site(tmp_path, "hosts", **interface, hosts=options)
        words = ["experiment", "run", str(desk.folder / "tiny.toml"), "--only", "torch-mlp-np2", "--site", str(site)]
        made = hosts.run("a", [sys.executable, "-m", "launch", *words, "--runs-folder", str(tmp_path / "runs")])
    assert made.returncode == 0, made.stdout + made.stderr
    folders = [folder / "runs/tiny/torch-mlp-np2-r1" for folder in (desk.folder, tmp_path)]
    capsys.readouterr()
    assert analysis.main(["clouds", *map(str, folders), "--base", "slurm", "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    tables = {table["title"].partition(" (")[0]: table["rows"] for table in answer["tables"]}
    ways = {row["site"]: row for row in tables["How the sites ran them"]}
    named = ("hosts", "launcher", "controller")
    assert [ways["slurm"][name] for name in named] == [2, "srun", "mpi"]
    assert [ways["hosts"][name] for name in named] == [2, "horovodrun", "gloo"]
    assert ways["hosts"]["differs from slurm in"] == "launcher, controller"
    times = {row["site"]: row for row in tables["Times and accuracies by site"]}
    assert times["slurm"]["time / slurm"] == 1.0 and times["hosts"]["time / slurm"] > 0
    weights = [read_run(folder).record.hashes.final_weights for folder in folders]
    assert weights[0] == weights[1]  # a sum of two numbers is the same in both


def test_a_job_can_be_ended(desk):
    job = desk.train("held-ended", "torch", "--nodes", "2")
    desk.slurm.wait_for(job, "RUNNING")
    desk.check("status", "held-ended", shows=" running ")
    desk.check("cancel", "held-ended")
    desk.slurm.wait_for(job, "CANCELLED")
    desk.check("status", "held-ended", code=1, shows=" cancelled ")
    desk.check("cancel", "held-ended", code=2, shows="the job does not run any more")


def test_a_refusal_by_slurm_is_one_line_and_leaves_no_job(desk):
    line = "error: Slurm refuses the job: sbatch: error: "
    desk.train("huge", "torch", "--nodes", "99", code=2, shows=line)


SHARE = """
import os, sys, time
from pathlib import Path
from common.distributed.core_sharing import core_share
os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[int(os.environ["SLURM_LOCALID"])]])
for name in ("there", "seen"):
    (Path(sys.argv[1]) / (name + os.environ["SLURM_LOCALID"])).touch()
    while len(list(Path(sys.argv[1]).glob(name + "?"))) < 2:
        time.sleep(0.01)
    if name == "there":
        print(core_share(local_size=2).own)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two cores are needed")
def test_ranks_that_are_bound_to_cores_of_their_own_keep_them_all(desk, tmp_path):
    srun = ["srun", "--nodes=1", "--ntasks=2", sys.executable, "-c", SHARE, str(tmp_path)]
    assert desk.slurm.command(*srun).split() == ["1.0", "1.0"]
