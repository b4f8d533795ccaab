"""Batch scripts for Slurm, without one: what they ask for, what they do near the time limit, what they may contain.

Scripts are run here with programs in place of Slurm's that write down what they are given.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from made_programs import Answer, MadePrograms
from sites_and_jobs import UNSET, slurm_job, slurm_site
from waiting import wait_until

from launch.jobs.schedulers import slurm

WAIT_SECONDS = 120
HOSTILE = "a b'c\"d$(touch hit)`touch hit`;touch hit&&* \\ #x"


def header(job):
    """Return the options that a script asks of Slurm."""
    lines = [line.removeprefix("#SBATCH --") for line in slurm.script(job).splitlines() if line.startswith("#SBATCH ")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


@pytest.mark.parametrize(
    ("cores", "site", "changes"),
    [
        ("40", "cte-power", {"ranks_per_node": 4}),  # 160 hardware threads a node
        ("24", "slurm", {"node": "aws-g4dn-12xlarge", "ranks_per_node": 2}),  # 48 cores a node
        (None, "slurm", {}),
        # Not one core per rank, whatever the site's file does not say.
        ("8", "slurm", {"ranks_per_node": 4, "gpus_per_node": 4}),
        ("4", "slurm", {"ranks_per_node": 4, "gpus_per_node": 2}),
        # 48 cores and 4 GPUs a node
        ("12", "slurm", {"node": "aws-g4dn-12xlarge", "ranks_per_node": 2, "gpus_per_node": 2}),
    ],
)
def test_cores_of_a_rank(cores, site, changes):
    assert header(slurm_job(slurm_site(site), **changes)).get("cpus-per-task") == cores


def test_a_replay_gets_no_checkpoints_that_its_run_had_not():
    """The trainers would refuse them."""
    server = ("--strategy", "server", "--servers", "1", "--staleness", "1", "--lr-scaling", "none")
    for replay, is_saving in ((), True), (("--replay", "runs/a"), False):
        text = slurm.script(slurm_job(arguments=(*server, *replay), ranks_per_node=3))
        assert "--resume-or-start" in text and ("--checkpoint-minutes 10 " in text) == is_saving


def test_notice_checkpoints_and_requeue():
    assert header(slurm_job(minutes=1))["signal"] == "B:USR1@30"
    assert "--resume-or-start --checkpoint-minutes 10 " in slurm.script(slurm_job())
    text = slurm.script(slurm_job(arguments=("--checkpoint-minutes", "5")))
    assert text.count("--checkpoint-minutes ") == 1 and "--checkpoint-minutes 5 --resume-or-start " in text
    for job in (slurm_job(slurm_site(slurm={"requeue": False})), slurm_job(arguments=("--energy",))):
        assert "no-requeue" in header(job) and "signal" not in header(job)
        assert "resume" not in slurm.script(job) and "USR1" not in slurm.script(job)


# Ranks that run until they receive a signal, as the trainers do.
ENDLESS = 'trap "exit 143" TERM; echo $$ > "$(dirname "$0")/pid"; while :; do sleep 0.05; done'
# What a `scancel` does that passes the signal on to the ranks.
END_RANKS = Answer(then='kill -TERM "$(cat "$(dirname "$0")/pid")"')


class Stage:
    """A folder with programs in place of Slurm's and of launchers."""

    def __init__(self, folder):
        self.folder = folder
        self.programs = MadePrograms(folder / "bin")
        for name in ("srun", "mpirun", "horovodrun", "python"):
            self.programs.add(name)
        self.programs.add("scancel", END_RANKS)
        self.programs.add("scontrol", Answer(to=["show", "hostnames"], out="n1\nn2\n"))
        self.pid = folder / "bin" / "pid"

    def site(self, **changes):
        here = {"project_folder": str(self.folder), "python": str(self.folder / "bin/python"), "runs_folder": "runs"}
        return slurm_site(**{**here, **changes})

    def start(self, job, **variables):
        """Start the script of a job as Slurm would."""
        (self.folder / "job.sh").write_text(slurm.script(job))
        counts = {"SLURM_JOB_NUM_NODES": str(job.nodes), "SLURM_NTASKS_PER_NODE": str(job.ranks_per_node)}
        about = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_SUBMIT_DIR": str(self.folder)}
        path = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        self.process = subprocess.Popen(
            ["bash", str(self.folder / "job.sh")], cwd=self.folder,
            env={**os.environ, **path, **counts, **about, **variables},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def ended(self):
        """Wait for the end of the script; return its exit code and what it printed."""
        output = self.process.communicate(timeout=WAIT_SECONDS)[0]
        return self.process.returncode, output

    def start_ranks(self, job, **variables):
        """Run the script of a job until its ranks run, which do not end by themselves."""
        self.pid.unlink(missing_ok=True)
        self.start(job, **variables)
        wait_until(lambda: self.pid.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()

    def notify(self):
        """Send the notice of the time limit; return exit code and output."""
        self.process.send_signal(signal.SIGUSR1)
        return self.ended()

    def save(self, path, *, seconds=2):
        """Write a file as the ranks would, some seconds after the start: the script compares whole seconds."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
        os.utime(file, (time.time() + seconds, time.time() + seconds))

    def end(self):
        """End what a test that failed has left."""
        with suppress(AttributeError):
            self.process.kill()
        with suppress(OSError, ValueError):
            os.kill(int(self.pid.read_text()), signal.SIGKILL)

    def requeued(self):
        return [words[2] for words in self.programs.calls() if words[:2] == ["scontrol", "requeue"]]

    def exit_code(self, task=""):
        """Return the exit code that the script has left; None: it is not at its end."""
        file = self.folder / f"exit-code{task}"
        return int(file.read_text()) if file.exists() else None


@pytest.fixture
def stage(tmp_path):
    stage = Stage(tmp_path)
    yield stage
    stage.end()


CHECKPOINT = "runs/trial/checkpoints/epoch-0001/state.json"


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
def test_near_the_limit_launchers_within_the_script_are_ended(stage, launcher):
    """Also where the launcher is but a shell that waits for another."""
    stage.programs.add(launcher, Answer(then=f"trap 'exit 143' TERM\n({ENDLESS.replace('$$', '$BASHPID')}) & wait"))
    stage.start_ranks(slurm_job(stage.site(launcher=launcher)))
    stage.save(CHECKPOINT)
    assert stage.notify()[0] == 0 and stage.requeued() == ["7"]
    pid = int(stage.pid.read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


# Stands in for `launch train`: it starts the ranks again where they end and nobody has told it before.
STARTS_AGAIN = """
import os, pathlib, signal, sys, time
told = []
signal.signal(signal.SIGINT, lambda *_: told.append("told"))
signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path("ended").write_text(" ".join(told)), os._exit(143)))
pathlib.Path(sys.argv[1], "pid").write_text(str(os.getpid()))
while True:
    time.sleep(0.05)
"""


def test_near_the_limit_ranks_are_not_started_again(stage):
    (stage.folder / "again.py").write_text(STARTS_AGAIN)
    again = f'exec {sys.executable} {stage.folder / "again.py"} "$(dirname "$0")"'
    stage.programs.add("python", Answer(to=["launch", "train"], then=again))
    stage.start_ranks(slurm_job(stage.site(), restarts=1))
    stage.save(CHECKPOINT)
    assert stage.notify()[0] == 0 and stage.requeued() == ["7"]
    assert (stage.folder / "ended").read_text() == "told"


def test_a_job_that_has_saved_nothing_is_not_requeued_forever(stage):
    stage.programs.add("srun", Answer(then=ENDLESS))
    stage.save(CHECKPOINT, seconds=-1e6)  # of an earlier turn
    stage.start_ranks(slurm_job(stage.site()))
    code, output = stage.notify()
    assert code == stage.exit_code() == 1 and stage.requeued() == []
    assert "nothing was saved since the start: give more --minutes" in output


def test_a_run_that_ends_just_then_is_finished(stage):
    stage.programs.add("srun", Answer(then=ENDLESS.replace("143", "0")))
    stage.start_ranks(slurm_job(stage.site()))
    assert stage.notify()[0] == stage.exit_code() == 0 and stage.requeued() == []


def test_an_experiment_is_signaled_itself_and_requeued_only_if_a_run_finished(stage):
    stage.programs.add("python", Answer(then=ENDLESS))
    job = slurm_job(stage.site(), program=None, experiment="smoke", arguments=())
    stage.start_ranks(job)
    stage.save("runs/smoke/unfinished/checkpoints/epoch-0001/state.json")
    assert stage.notify()[0] == 1 and stage.requeued() == []
    stage.start_ranks(job)
    stage.save("runs/smoke/finished/weights.safetensors")
    assert stage.notify()[0] == 0 and stage.requeued() == ["7"]


def test_a_task_of_an_array_speaks_of_itself_alone(stage):
    """Its part of the runs decides whether it is requeued, and its number is not that of the whole array."""
    stage.programs.add("python", Answer(then=ENDLESS))
    job = slurm_job(stage.site(), program=None, experiment="smoke", arguments=("--at-once", "2"), parts=2)
    for part, code in (("1", 1), ("2", 0)):
        stage.start_ranks(job, SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="2")
        stage.save(f"runs/smoke/.part-{part}")
        ended, output = stage.notify()
        assert ended == code and "trial, part 2: 2 ranks on" in output
    calls = stage.programs.calls()
    assert calls[-2:] == [["scancel", "--signal=TERM", "7_2"], ["scontrol", "requeue", "7_2"]]
    assert stage.requeued() == ["7_2"]
    started = next(words for words in calls if words[0] == "python")
    assert started[-4:] == ["--site", "slurm", "--part", "2"] and "--at-once" in started


@pytest.mark.parametrize(("code", "requeue"), [(0, True), (139, True), (2, False)])
def test_the_exit_code_is_that_of_the_ranks(stage, code, requeue):
    stage.programs.add("srun", Answer(code=code))
    stage.start(slurm_job(stage.site(slurm={"requeue": requeue})))
    assert stage.ended()[0] == stage.exit_code() == code


def test_a_failing_preflight_ends_the_job_before_the_ranks_are_started(stage):
    stage.programs.add("python", Answer(code=1))
    stage.start(slurm_job(stage.site(), preflight=True))
    assert stage.ended()[0] == stage.exit_code() == 1
    (words,) = stage.programs.calls()
    assert words[:4] == ["python", "-m", "launch", "preflight"]


def test_a_terminated_script_leaves_its_exit_code(stage):
    stage.programs.add("srun", Answer(then=ENDLESS))
    stage.start_ranks(slurm_job(stage.site()))
    stage.process.terminate()  # of the script alone; Slurm ends the ranks, too
    assert stage.process.wait(timeout=WAIT_SECONDS) == stage.exit_code() == 143


def test_counts_are_those_of_slurm_and_hosts_are_named_where_a_launcher_needs_them(stage):
    job = slurm_job(stage.site(launcher="horovodrun"), ranks_per_node=3, repeats=4, seed=10)
    stage.start(job, SLURM_ARRAY_TASK_ID="4")
    assert "trial-r4: 6 ranks on n[1-2], Slurm job 7, turn 1" in stage.ended()[1]
    words = stage.programs.calls()[-1]
    assert words[:6] == ["horovodrun", "-np", "6", "--mpi", "-H", "n1:3,n2:3"]
    assert words[words.index("--seed") + 1] == "13" and words[words.index("--name") + 1] == "trial-r4"
    assert stage.exit_code("-4") == 0


@pytest.mark.parametrize("launcher", ["srun", "mpirun", "horovodrun"])
def test_no_word_is_read_by_the_shell(tmp_path, launcher, request):
    """But a site's own lines are, and may read variables that are not set, as scripts do that set up modules."""
    stage = Stage(tmp_path / HOSTILE)
    request.addfinalizer(stage.end)
    stage.programs.add(launcher, Answer(then=ENDLESS))
    runs = f"runs {HOSTILE}"
    site = stage.site(
        launcher=launcher, runs_folder=runs, data_folder=HOSTILE, environment={"WORDS": HOSTILE}, setup=UNSET
    )  # fmt: skip
    stage.start_ranks(slurm_job(site, arguments=("--data-folder", HOSTILE)))
    stage.save(CHECKPOINT.replace("runs", runs, 1))
    code, output = stage.notify()
    assert code == 0 and "requeueing" in output and "[]" in output
    assert stage.requeued() == ["7"] and stage.exit_code() is None
    call = next(call for call in stage.programs.records() if call["words"][0] == launcher)
    words = call["words"]
    assert words[words.index("--data-folder") + 1] == HOSTILE
    assert words[words.index("--runs-folder") + 1] == runs
    assert call["variables"]["WORDS"] == HOSTILE
    assert not list(tmp_path.rglob("hit"))
