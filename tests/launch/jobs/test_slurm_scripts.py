"""Batch scripts for Slurm, without one: their text, what they do near the time limit, what they may contain.

Scripts are run here with programs in place of Slurm's that write down what they are given.
"""

import os
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from rendered_files import assert_as_kept
from sites_and_jobs import job_record
from waiting import wait_until

from common.errors import UserError
from launch.jobs.job import Job, JobStatus
from launch.jobs.schedulers import slurm
from launch.sites.container import ContainerOptions
from launch.sites.site_files import read_launch_site
from launch.starting.launchers import Launcher, launcher_at

WAIT_SECONDS = 120
HOSTILE = "a b'c\"d$(touch hit)`touch hit`;touch hit&&* \\ #x"


def site_at(name, **changes):
    """Return a shipped site with folders that do not depend on where the tests run."""
    folders = {"project_folder": "/home/group/horovod-twins", "python": ".venv/bin/python"}
    return replace(read_launch_site(name), **{**folders, **changes})


def make_job(**changes):
    values = {
        "name": "trial", "site": site_at("slurm"), "node": "slurm", "nodes": 2, "ranks_per_node": 1, "gpus_per_node": 0,
        "program": "torch_impl/train.py", "experiment": None, "arguments": ("--epochs", "3"), "minutes": 60,
        "preflight": False,
    }  # fmt: skip
    return Job(**{**values, **changes})


def pyxis_site():
    """Return a site whose ranks run in an image of Enroot's, with all that a job may need before its modules."""
    site = site_at(
        "slurm", setup=["ulimit -l unlimited"], environment={"MODULEPATH": "/apps/m f"}, modules=["cuda/12"],
        purge=False,
        container=ContainerOptions(runtime="pyxis", image="nvcr.io#ours/twins:1", binds=["/data", "/scratch:/tmp"]),
    )  # fmt: skip
    return replace(site, slurm=replace(site.slurm, memory="240G"))


EXAMPLES = {
    "slurm-pyxis": make_job(site=pyxis_site(), ranks_per_node=2, gpus_per_node=2),
    "slurm-cte-power": make_job(
        name="resnet34", site=site_at("cte-power"), node="cte-power", ranks_per_node=4, gpus_per_node=4,
        arguments=("--model", "resnet34", "--dataset", "prepared:data/148x197.st"),
        minutes=2880, preflight=True,
    ),
    "slurm-cpu": make_job(site=site_at("slurm", launcher="mpirun"), ranks_per_node=4, preflight=True),
    "slurm-horovodrun": make_job(site=site_at("slurm", launcher="horovodrun", controller="gloo")),
    "slurm-array": make_job(repeats=5, seed=3),
    "slurm-restarts": make_job(site=site_at("slurm", launcher="horovodrun"), program="keras_impl/train.py", restarts=3),
    "slurm-experiment": make_job(program=None, experiment="smoke", arguments=("--only", "*-cnn-np2"), preflight=True),
    "slurm-at-once": make_job(
        program=None, experiment="smoke", arguments=("--at-once", "4"), ranks_per_node=4, nodes=1, parts=4,
    ),
    "slurm-metered": make_job(arguments=("--energy",)),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_rendered_scripts_are_as_kept_and_pass_shellcheck(name, tmp_path):
    files = slurm.render(EXAMPLES[name])
    assert_as_kept(name, files)
    (tmp_path / "job.sh").write_text(files["job.sh"])
    try:
        done = subprocess.run(["shellcheck", str(tmp_path / "job.sh")], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("shellcheck is not installed")
    assert done.returncode == 0, done.stdout


def header(job):
    """Return the options that a script asks of Slurm."""
    lines = [line.removeprefix("#SBATCH --") for line in slurm.script(job).splitlines() if line.startswith("#SBATCH ")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_a_job_asks_for_what_its_site_specifies():
    site = site_at("cte-power")
    options = replace(site.slurm, partition="p", account="a", qos="q", constraint="x&y", gres="gpu:v")
    asking = replace(site, slurm=replace(options, extra=["--exclusive"], memory="0"))
    job = make_job(site=asking, node="cte-power", ranks_per_node=2, gpus_per_node=2, minutes=90)
    assert header(job) == {
        "job-name": "trial", "partition": "p", "account": "a", "qos": "q", "constraint": "x&y", "nodes": "2",
        "ntasks-per-node": "2", "cpus-per-task": "40", "mem": "0", "gres": "gpu:v:2", "time": "90",
        "signal": "B:USR1@120", "output": "output.log", "open-mode": "append", "requeue": "", "exclusive": "",
    }  # fmt: skip


def test_cores_notice_and_requeue():
    without_gpus = make_job(site=site_at("cte-power"), node="cte-power", ranks_per_node=4)
    assert header(without_gpus)["cpus-per-task"] == "40"  # 160 hardware threads a node
    in_one = make_job(site=site_at("slurm"), node="aws-g4dn-12xlarge", ranks_per_node=2)
    assert header(in_one)["cpus-per-task"] == "24"  # 48 cores a node
    assert "cpus-per-task" not in header(make_job())
    silent = site_at("slurm")  # not one core per rank, whatever the site's file does not say
    assert header(make_job(site=silent, ranks_per_node=4, gpus_per_node=4))["cpus-per-task"] == "8"
    assert header(make_job(site=silent, ranks_per_node=4, gpus_per_node=2))["cpus-per-task"] == "4"
    known = {"site": silent, "node": "aws-g4dn-12xlarge", "ranks_per_node": 2, "gpus_per_node": 2}
    assert header(make_job(**known))["cpus-per-task"] == "12"  # 48 cores and 4 GPUs a node
    assert header(make_job(minutes=1))["signal"] == "B:USR1@30"
    site = site_at("slurm")
    for job in (
        make_job(site=replace(site, slurm=replace(site.slurm, requeue=False))),
        make_job(arguments=["--energy"]),
    ):
        assert "no-requeue" in header(job) and "signal" not in header(job)
        assert "resume" not in slurm.script(job) and "USR1" not in slurm.script(job)


def test_checkpoints_are_as_often_as_asked_for():
    assert "--resume-or-start --checkpoint-minutes 10 " in slurm.script(make_job())
    text = slurm.script(make_job(arguments=("--checkpoint-minutes", "5")))
    assert text.count("--checkpoint-minutes ") == 1 and "--checkpoint-minutes 5 --resume-or-start " in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("partition", value) for value in ("a b", "a'b", 'a"b', "a\\b", "$(touch hit)", "`touch hit`", "#", "")),
        *((name, "a b") for name in ("account", "qos", "constraint", "gres")),
        ("extra", ["--exclusive --uid=0"]),
    ],
)
def test_what_slurm_could_misread_is_refused(name, value):
    site = site_at("slurm")
    job = make_job(site=replace(site, slurm=replace(site.slurm, **{name: value})), gpus_per_node=4)
    with pytest.raises(UserError, match=r"Slurm could misread this\. Received: .*Correct"):
        slurm.render(job)


def test_ranks_in_an_image_of_enroot_are_all_started_by_srun():
    launcher = Launcher(site=pyxis_site(), node="slurm")
    image = ["--container-image=nvcr.io#ours/twins:1",
             "--container-mounts=/home/group/horovod-twins,/data,/scratch:/tmp",
             "--container-workdir=/home/group/horovod-twins"]  # fmt: skip
    program = ["python", "/opt/horovod-twins/torch_impl/train.py", "--epochs", "1", "--site", "slurm"]
    start = ["srun", "--mpi=pmix", *image, "--ntasks"]
    arguments = ["--epochs", "1"]
    assert launcher.command("torch_impl/train.py", np=4, controller=None, arguments=arguments) == [
        *start,
        "4",
        *program,
    ]
    assert launcher.single_process("torch_impl/train.py", arguments=arguments) == [*start, "1", *program]
    with pytest.raises(UserError, match=r"over MPI. Received: gloo. Use mpi"):
        launcher.words(np=2, controller="gloo")
    with pytest.raises(UserError, match=r"Pyxis takes no blank, .* Received: /home/a b. Use"):
        replace(launcher, site=replace(launcher.site, project_folder="/home/a b")).words(np=2)


class Stage:
    """A folder with programs in place of Slurm's and of launchers; each writes its words into `given`."""

    def __init__(self, folder):
        self.folder = folder
        self.given = folder / "given"
        for name in ("srun", "mpirun", "horovodrun", "python", "scancel", "scontrol"):
            self.program(name, 'if [ "$0 $1 $2" = "$BIN/scontrol show hostnames" ]; then printf "n1\\nn2\\n"; fi')
        # Ranks that run until they receive a signal, as the trainers do.
        self.endless = "trap 'exit 143' TERM; echo $$ > \"$BIN/../pid\"; while :; do sleep 0.05; done"

    def program(self, name, does):
        """Write a program."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        note = f'{{ printf "\\36"; printf "%s\\0" {name} "$@"; }} >> {shlex.quote(str(self.given))}'
        path.write_text(f"#!/bin/bash\nexport BIN={shlex.quote(str(path.parent))}\n{note}\n{does}\n")
        path.chmod(0o755)

    def site(self, **changes):
        """Return a site on this machine."""
        here = {"project_folder": str(self.folder), "python": str(self.folder / "bin/python"), "runs_folder": "runs"}
        return replace(read_launch_site("slurm"), **{**here, **changes})

    def start(self, job, **variables):
        """Run the script of a job as Slurm would."""
        (self.folder / "job.sh").write_text(slurm.script(job))
        counts = {"SLURM_JOB_NUM_NODES": str(job.nodes), "SLURM_NTASKS_PER_NODE": str(job.ranks_per_node)}
        about = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_SUBMIT_DIR": str(self.folder)}
        self.process = subprocess.Popen(
            ["bash", str(self.folder / "job.sh")], cwd=self.folder, env={**os.environ, **counts, **about, **variables},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return self.process

    def wait_for_ranks(self):
        """Wait until ranks run that do not end by themselves."""
        wait_until(lambda: (self.folder / "pid").exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()

    def end(self):
        """End what a test that failed has left."""
        with suppress(AttributeError):
            self.process.kill()
        with suppress(OSError, ValueError):
            os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)

    def words(self):
        """Return the commands that were given."""
        return [command.split("\0")[:-1] for command in self.given.read_text().split("\36")[1:]]

    def exit_code(self):
        """Return the exit code that the script has left."""
        return (self.folder / "exit-code").read_text()


@pytest.fixture
def stage(tmp_path):
    stage = Stage(tmp_path)
    yield stage
    stage.end()


def save_checkpoint(stage, *, run="trial", runs_folder="runs"):
    """Write a checkpoint as the ranks would, some seconds after the start: the script compares whole seconds."""
    folder = stage.folder / runs_folder / run / "checkpoints/epoch-0001"
    folder.mkdir(parents=True)
    file = folder / "state.json"
    file.write_text("{}")
    os.utime(file, (time.time() + 2, time.time() + 2))


def notified(stage, job, *, saves):
    """Run a job whose ranks do not end; send the notice of the time limit; return exit code and output."""
    process = stage.start(job)
    stage.wait_for_ranks()
    if saves:
        save_checkpoint(stage)
    process.send_signal(signal.SIGUSR1)
    output = process.communicate(timeout=WAIT_SECONDS)[0]
    return process.returncode, output


def end_ranks(stage):
    """Return what a `scancel` does that passes the signal on to the ranks."""
    return 'kill -TERM "$(cat "$BIN/../pid")"'


def test_near_the_limit_srun_is_ended_by_slurm_and_the_job_requeued(stage):
    stage.program("srun", stage.endless)
    stage.program("scancel", end_ranks(stage))
    code, output = notified(stage, make_job(site=stage.site()), saves=True)
    assert code == 0 and "requeueing" in output
    assert stage.words()[-2:] == [["scancel", "--signal=TERM", "7"], ["scontrol", "requeue", "7"]]
    assert not (stage.folder / "exit-code").exists()  # it is not at its end


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
def test_near_the_limit_launchers_within_the_script_are_ended(stage, launcher):
    """Also where the launcher is but a shell that waits for another."""
    stage.program(launcher, f"trap 'exit 143' TERM\n(bash -c {shlex.quote(stage.endless)}) & wait")
    (stage.folder / "runs").mkdir()
    code, _ = notified(stage, make_job(site=stage.site(launcher=launcher)), saves=True)
    assert code == 0 and stage.words()[-1] == ["scontrol", "requeue", "7"]
    pid = int((stage.folder / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_job_that_has_saved_nothing_is_not_requeued_forever(stage):
    stage.program("srun", stage.endless)
    stage.program("scancel", end_ranks(stage))
    old = stage.folder / "runs/trial/checkpoints/epoch-0001/state.json"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    os.utime(old, (1e9, 1e9))  # of an earlier turn
    code, output = notified(stage, make_job(site=stage.site()), saves=False)
    assert code == 1 and stage.exit_code() == "1\n"
    assert "nothing was saved since the start: give more --minutes" in output
    assert all("requeue" not in words for words in stage.words())


def test_a_run_that_ends_just_then_is_finished(stage):
    stage.program("srun", stage.endless.replace("143", "0"))
    stage.program("scancel", end_ranks(stage))
    assert notified(stage, make_job(site=stage.site()), saves=False)[0] == 0
    assert stage.exit_code() == "0\n" and all("requeue" not in words for words in stage.words())


def test_an_experiment_is_signaled_itself_and_requeued_only_if_a_run_finished(stage):
    stage.program("python", stage.endless)
    job = make_job(site=stage.site(), program=None, experiment="smoke", arguments=())
    assert notified(stage, job, saves=False)[0] == 1
    (stage.folder / "pid").unlink()
    process = stage.start(job)
    stage.wait_for_ranks()
    save_checkpoint(stage, run="smoke/one")  # no run that is done
    (stage.folder / "runs/smoke/one/weights.safetensors").touch()
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0 and stage.words()[-1] == ["scontrol", "requeue", "7"]


def test_a_task_of_an_array_speaks_of_itself_alone(stage):
    """Its part of the runs decides whether it is requeued, and its number is not that of the whole array."""
    stage.program("python", stage.endless)
    job = make_job(site=stage.site(), program=None, experiment="smoke", arguments=("--at-once", "2"), parts=2)
    own = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    for others, saves, code in (("1", "", 1), ("1", "2", 0)):
        process = stage.start(job, **own)
        stage.wait_for_ranks()
        for part in (others, saves):
            marker = stage.folder / f"runs/smoke/.part-{part}"
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
            os.utime(marker, (time.time() + 2, time.time() + 2))
        process.send_signal(signal.SIGUSR1)
        output = process.communicate(timeout=WAIT_SECONDS)[0]
        assert process.returncode == code and "trial, part 2: 2 ranks on" in output
        (stage.folder / "pid").unlink()
    assert stage.words()[-2:] == [["scancel", "--signal=TERM", "7_2"], ["scontrol", "requeue", "7_2"]]
    started = next(words for words in stage.words() if words[0] == "python")
    assert started[-4:] == ["--site", "slurm", "--part", "2"] and "--at-once" in started


@pytest.mark.parametrize("code", [0, 2, 139])
@pytest.mark.parametrize("requeue", [True, False])
def test_the_exit_code_is_that_of_the_ranks(stage, code, requeue):
    stage.program("srun", f"exit {code}")
    site = stage.site()
    process = stage.start(make_job(site=replace(site, slurm=replace(site.slurm, requeue=requeue))))
    process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == code and stage.exit_code() == f"{code}\n"


def test_a_failing_preflight_ends_the_job_before_the_ranks_are_started(stage):
    stage.program("python", "exit 1")
    process = stage.start(make_job(site=stage.site(), preflight=True))
    process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 1 and stage.exit_code() == "1\n"
    assert [words[0] for words in stage.words()] == ["python"] and "preflight" in stage.words()[0]


def test_counts_are_those_of_slurm_and_hosts_are_named_where_a_launcher_needs_them(stage):
    job = make_job(site=stage.site(launcher="horovodrun"), nodes=2, ranks_per_node=3, repeats=4, seed=10)
    process = stage.start(job, SLURM_ARRAY_TASK_ID="4")
    assert "trial-r4: 6 ranks on n[1-2], Slurm job 7, turn 1" in process.communicate(timeout=WAIT_SECONDS)[0]
    words = stage.words()[-1]
    assert words[:6] == ["horovodrun", "-np", "6", "--mpi", "-H", "n1:3,n2:3"]
    assert words[words.index("--seed") + 1] == "13" and words[words.index("--name") + 1] == "trial-r4"
    assert (stage.folder / "exit-code-4").read_text() == "0\n"


def test_within_a_job_as_many_ranks_fit_as_it_has_tasks(monkeypatch):
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    assert launcher_at("slurm", hosts=None).slots() is None
    monkeypatch.setenv("SLURM_NTASKS", "8")
    assert launcher_at("slurm", hosts=None).slots() == 8
    assert launcher_at("slurm", hosts="a:2,b:1").slots() == 3
    assert launcher_at("local", hosts=None).slots() is None


@pytest.mark.parametrize("launcher", ["srun", "mpirun", "horovodrun"])
def test_no_word_is_read_by_the_shell(tmp_path, launcher, request):
    stage = Stage(tmp_path / HOSTILE)
    request.addfinalizer(stage.end)
    stage.program(launcher, f'printf "%s\\0" "$WORDS" >> {shlex.quote(str(stage.given))}; {stage.endless}')
    stage.program("scancel", end_ranks(stage))
    site = stage.site(
        launcher=launcher, runs_folder=f"runs {HOSTILE}", data_folder=HOSTILE, environment={"WORDS": HOSTILE}
    )
    job = make_job(site=site, arguments=("--data-folder", HOSTILE))
    before = set(tmp_path.rglob("hit"))
    process = stage.start(job)
    stage.wait_for_ranks()
    save_checkpoint(stage, runs_folder=f"runs {HOSTILE}")
    process.send_signal(signal.SIGUSR1)
    output = process.communicate(timeout=WAIT_SECONDS)[0]
    assert process.returncode == 0 and "requeueing" in output
    words = next(words for words in stage.words() if words[0] == launcher)
    assert words[words.index("--data-folder") + 1] == HOSTILE
    assert words[words.index("--runs-folder") + 1] == f"runs {HOSTILE}"
    assert words[-1] == HOSTILE  # the variable, which the launcher adds to its words
    assert set(tmp_path.rglob("hit")) == before == set()


def record(*, repeats=1):
    return job_record("slurm", name="trial", id="7", size=2, repeats=repeats)


@pytest.mark.parametrize(
    ("queue", "state"),
    [
        ("PENDING  0  Resources", JobStatus("queued", "Resources")),
        ("PENDING  0  ReqNodeNotAvail, May be reserved", JobStatus("queued", "ReqNodeNotAvail, May be reserved")),
        ("RUNNING  0  None", JobStatus("running")),
        ("COMPLETED  0  None", JobStatus("finished")),
        ("FAILED  512  NonZeroExitCode", JobStatus("failed", "exit code 2")),
        ("TIMEOUT  0  TimeLimit", JobStatus("failed", "timeout")),
        ("OUT_OF_MEMORY  0  OutOfMemory", JobStatus("failed", "out of memory")),
        ("CANCELLED  0  None", JobStatus("cancelled")),
        ("COMPLETED  0  None\nRUNNING  0  None\nPENDING  0  Resources",
         JobStatus("running", "1 running, 1 queued, 1 finished")),
        ("COMPLETED  0  None\nFAILED  256  NonZeroExitCode\nCOMPLETED  0  None",
         JobStatus("failed", "1 failed, 2 finished; exit code 1")),
    ],
)  # fmt: skip
def test_status_while_slurm_knows_the_job(queue, state, stage, monkeypatch):
    stage.program("squeue", f"echo {shlex.quote(queue)}")
    monkeypatch.setenv("PATH", f"{stage.folder / 'bin'}:{os.environ['PATH']}")
    assert slurm.state(record(), stage.folder) == state


@pytest.mark.parametrize(
    ("accounts", "state"),
    [
        ("echo 'COMPLETED|0:0'", JobStatus("finished")),
        ("echo 'CANCELLED by 1000|0:15'", JobStatus("cancelled")),
        ("printf 'COMPLETED|0:0\\nFAILED|2:0\\n'", JobStatus("failed", "1 failed, 1 finished; exit code 2")),
        ("echo 'Slurm accounting storage is disabled' >&2; exit 1", JobStatus("failed", "exit code 3")),
    ],
)
def test_status_after_slurm_has_forgotten_the_job(accounts, state, stage, monkeypatch):
    stage.program("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    stage.program("sacct", accounts)
    monkeypatch.setenv("PATH", f"{stage.folder / 'bin'}:{os.environ['PATH']}")
    (stage.folder / "exit-code").write_text("3\n")
    assert slurm.state(record(), stage.folder) == state


def test_a_job_that_left_nothing_is_unknown(stage, monkeypatch):
    stage.program("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    stage.program("sacct", "exit 1")
    monkeypatch.setenv("PATH", f"{stage.folder / 'bin'}:{os.environ['PATH']}")
    assert slurm.state(record(), stage.folder).state == "unknown"
    (stage.folder / "exit-code-1").write_text("0\n")
    assert slurm.state(record(repeats=2), stage.folder).state == "unknown"  # the second is not known
    (stage.folder / "exit-code-2").write_text("0\n")
    assert slurm.state(record(repeats=2), stage.folder) == JobStatus("finished", "2 finished")


def test_a_terminated_script_leaves_its_exit_code(stage, monkeypatch):
    stage.program("srun", stage.endless)
    process = stage.start(make_job(site=stage.site()))
    stage.wait_for_ranks()
    process.terminate()  # of the script alone; Slurm ends the ranks, too
    assert process.wait(timeout=WAIT_SECONDS) == 143 and stage.exit_code() == "143\n"
    stage.end()
    stage.program("squeue", "exit 0")
    monkeypatch.setenv("PATH", f"{stage.folder / 'bin'}:{os.environ['PATH']}")
    assert slurm.state(record(), stage.folder) == JobStatus("cancelled")


def test_without_slurm_and_without_answer_is_reported(stage, monkeypatch, tmp_path):
    stage.program("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{stage.folder / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(UserError, match="Slurm does not answer: slurm_load_jobs error: Unable to contact"):
        slurm.state(record(), stage.folder)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for action in (lambda: slurm.state(record(), tmp_path), lambda: slurm.submit(make_job(), tmp_path)):
        with pytest.raises(UserError, match=r"there is no Slurm here\. Received: s"):
            action()
    with pytest.raises(UserError, match="has not printed anything yet"):
        slurm.logs(record(), tmp_path / "empty")
