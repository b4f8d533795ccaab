"""Scripts of jobs where they run: this machine, machines of SkyPilot, pods of Kubernetes.

`test_slurm_scripts.py` has those of Slurm. Programs stand in for the launchers and for what sets up a machine.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import sites_and_jobs
import yaml
from hypothesis import given
from hypothesis import strategies as st
from made_programs import Answer, MadePrograms
from sites_and_jobs import HOSTILE, ROOT, UNSET, own_site

from common.run_folder.records import read_run
from common.run_folder.start_times import BEGAN_AT, STARTED_AT
from launch.jobs.schedulers import kubernetes, local, skypilot
from launch.sites.site_files import read_launch_site

BASH = str(shutil.which("bash"))
HANG_SECONDS = 240


def expand(text, variables):
    """Replace as Kubernetes does: `$$` is `$`, `$(NAME)` a variable's value where there is one."""

    def value(match):
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)


@given(st.lists(st.sampled_from(["$", "$$", "(", ")", "a", "HOME", "$(HOME)", "$(", " ", "\n"])).map("".join))
def test_kubernetes_replaces_nothing_in_a_command(text):
    assert expand(kubernetes.literal(text), {"HOME": "elsewhere", "": "empty", "a": "b"}) == text
    assert expand("$(HOME)$$", {"HOME": "elsewhere"}) == "elsewhere$"  # it would


def script_of(job, *, step="run"):
    """Return the script of a job as the shell gets it; of SkyPilot's two that of a step."""
    if job.site.scheduler == "local":
        return local.render(job)[local.SCRIPT]
    if job.site.scheduler == "skypilot":
        return yaml.safe_load(skypilot.render(job)[skypilot.TASK])[step]
    table = yaml.safe_load(kubernetes.render(job)[kubernetes.JOB_FILE])
    launcher = table["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    shell, flag, script = launcher["command"]
    assert (shell, flag) == ("bash", "-c")
    return expand(script, {"K_MPI_JOB_ROLE": "launcher", "HOME": "elsewhere"})


def a_job(site, **changes):
    return sites_and_jobs.a_job(site, **{"arguments": ("--model", "resnet34", "--epochs", "3"), **changes})


@dataclass(frozen=True)
class Place:
    """Where a job runs: the project with an environment, whose programs write down calls."""

    scheduler: str
    folder: Path
    programs: MadePrograms

    def site(self, **lines):
        project = self.programs.folder.parents[1]
        there = {"project_folder": str(project), "python": f"{self.programs.folder}/python"}
        if self.scheduler == "skypilot":
            there = {}
        if self.scheduler == "kubernetes":
            there |= {"runs_folder": "/data/runs", "kubernetes": {"volume_path": "/data"}}
        return own_site(self.folder, self.scheduler, **{**there, **lines})

    def run(self, job, *, step="run", rank=0, **variables):
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        (self.folder / "job.sh").write_text(script_of(job, step=step))
        return subprocess.run(
            [BASH, str(self.folder / "job.sh")], cwd=home, capture_output=True, text=True, timeout=HANG_SECONDS,
            env={"HOME": str(home), "PATH": os.environ["PATH"], "SKYPILOT_NODE_RANK": str(rank),
                 "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "TMPDIR": str(self.folder), **variables},
        )  # fmt: skip


def place_of(folder, scheduler):
    project = "home/sky_workdir" if scheduler == "skypilot" else "a b'c\"d$(touch hit)`touch hit`;touch hit&&*"
    programs = MadePrograms(folder / project / ".venv" / "bin")
    for name in ("python", "horovodrun", "mpirun"):
        programs.add(name)
    return Place(scheduler, folder, programs)


@pytest.fixture
def machine(tmp_path):
    """A machine as SkyPilot leaves it."""
    return place_of(tmp_path, "skypilot")


@pytest.mark.parametrize("scheduler", ["local", "skypilot", "kubernetes"])
def test_no_field_is_read_by_the_shell(scheduler, tmp_path):
    """But a site's own lines are, and may read variables that are not set, as scripts do that set up modules."""
    place = place_of(tmp_path, scheduler)
    variables = {f"V{number}": value for number, value in enumerate(HOSTILE)}
    site = place.site(
        scratch_folder=HOSTILE[3], data_folder="/data/a b", environment=variables, launcher="horovodrun", setup=UNSET
    )  # fmt: skip
    gpus = {"nodes": 1, "gpus_per_node": 0} if scheduler == "local" else {}
    done = place.run(a_job(site, arguments=tuple(HOSTILE), preflight=False, **gpus))
    assert done.returncode == 0 and "[]" in done.stdout, done.stderr
    (call,) = place.programs.records()
    after = call["words"].index("keras_impl/train.py") + 1
    assert call["words"][after : after + len(HOSTILE)] == HOSTILE
    assert [call["variables"][f"V{number}"] for number in range(len(HOSTILE))] == HOSTILE
    assert (call["variables"]["TMPDIR"], call["variables"]["HOROVOD_TWINS_CACHE"]) == (HOSTILE[3], "/data/a b")
    assert call["folder"] == str(place.programs.folder.parents[1])
    assert not list(tmp_path.rglob("hit")) and not Path("hit").exists()


@pytest.mark.parametrize("scheduler", ["skypilot", "kubernetes"])
def test_a_failure_is_the_job_s_failure(scheduler, tmp_path):
    place = place_of(tmp_path, scheduler)
    job = a_job(place.site(launcher="horovodrun"), repeats=2)
    place.programs.add("horovodrun", Answer(code=3))
    assert place.run(job).returncode == 3
    place.programs.add("python", Answer(code=2))
    assert place.run(job).returncode == 2
    assert [words[0] for words in place.programs.calls()] == ["python", "horovodrun", "python"]


@pytest.mark.parametrize("scheduler", ["local", "skypilot", "kubernetes"])
def test_each_run_has_the_whole_time_limit_which_ends_its_ranks(scheduler, tmp_path):
    place = place_of(tmp_path, scheduler)
    place.programs.add("timeout", Answer(then='shift 2; exec "$@"'))
    gpus = {"nodes": 1, "gpus_per_node": 0} if scheduler == "local" else {}
    job = a_job(place.site(launcher="horovodrun"), minutes=90, repeats=3, preflight=False, **gpus)
    assert place.run(job, SECONDS="5000").returncode == 0
    calls = [words for words in place.programs.calls() if words[0] == "timeout"]
    assert [words[:3] for words in calls] == [["timeout", "--kill-after=60", "90m"]] * 3
    place.programs.add("timeout", Answer(then='shift 2; exec /usr/bin/timeout 0.1 "$@"'))
    place.programs.add("horovodrun", Answer(seconds=600.0))
    assert place.run(job).returncode == 124
    assert len([words for words in place.programs.calls() if words[0] == "timeout"]) == 4, (
        "the other runs are not begun"
    )


SMALL = ("--model", "mlp", "--epochs", "1", "--max-steps", "2", "--device", "cpu", "--dataset",
         "synthetic:1200x8x8x1x3")  # fmt: skip
AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe")


@pytest.mark.ranks
@pytest.mark.ci
@pytest.mark.parametrize(("scheduler", "node"), [("skypilot", "aws-g4dn-xlarge"), ("kubernetes", "kubernetes")])
def test_the_script_trains(scheduler, node, tmp_path):
    """With the real launcher and trainer, on this machine as the only one: over Gloo as on machines, MPI as in pods."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "sky_workdir").symlink_to(ROOT)
    own = {
        "skypilot": {"controller": "gloo"},
        "kubernetes": {"project_folder": str(ROOT), "kubernetes": {"volume_path": str(tmp_path)}, "launcher": "mpirun"},
    }[scheduler]
    place = Place(scheduler, tmp_path, MadePrograms(tmp_path / "none" / "bin"))
    runs, environment = str(tmp_path / "my runs"), dict.fromkeys(AS_ROOT, "1")
    site = place.site(python=sys.executable, runs_folder=runs, environment=environment, **own)
    job = a_job(site, nodes=1, ranks_per_node=2, gpus_per_node=1, arguments=SMALL, preflight=False,
                program="torch_impl/train.py")  # fmt: skip
    done = place.run(job, SKYPILOT_NODE_IPS="127.0.0.1", PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    run = read_run(tmp_path / "my runs" / "demo")
    assert (run.state, run.record.site, run.record.framework) == ("finished", node, "torch")
    assert run.record.world.size == 2


# Machines of SkyPilot


def test_the_first_machine_starts_all_ranks_and_the_others_leave_it_to_it(machine):
    assert machine.run(a_job("aws-g4dn"), rank=1).returncode == 0
    assert machine.programs.calls() == []
    done = machine.run(a_job("aws-g4dn"))
    assert done.returncode == 0, done.stderr
    look, start = machine.programs.records()
    where = ["--site", "aws-g4dn", "--hosts", "10.0.0.1:4,10.0.0.2:4"]
    assert look["words"][:6] == ["python", "-m", "launch", "preflight", "--np", "8"] and look["words"][-4:] == where
    assert start["words"][:5] == ["horovodrun", "-np", "8", "-H", "10.0.0.1:4,10.0.0.2:4"]
    trainer = start["words"][start["words"].index("python") :]
    assert trainer == ["python", "keras_impl/train.py", "--model", "resnet34", "--epochs", "3",
                       "--runs-folder", "runs", "--name", "demo", "--site", "aws-g4dn-12xlarge"]  # fmt: skip
    assert start["variables"]["TF_CPP_MIN_LOG_LEVEL"] == "3"
    assert float(start["variables"][BEGAN_AT]) <= float(start["variables"][STARTED_AT])


def test_spot_runs_resume_from_the_bucket(machine):
    """Each repeat has a seed and a folder of its own; the machine gets the user's site file; MPI finds its daemon."""
    site = machine.site(runs_folder="/bucket/runs", skypilot={"bucket": "s3://ours"})
    job = a_job(site, name="Demo_2", spot=True, repeats=2, seed=7, program="torch_impl/train.py")
    done = machine.run(job)
    assert done.returncode == 0, done.stderr
    look, *starts = machine.programs.calls()
    (written,) = map(str, machine.folder.glob("tmp.*/ours.toml"))
    assert Path(written).parent.stat().st_mode & 0o777 == 0o700  # no other user can have put it there
    assert look[look.index("--site") + 1] == written
    assert read_launch_site(written).skypilot == job.site.skypilot
    for number, words in enumerate(starts, 1):
        own = ["--seed", str(6 + number), "--runs-folder", "/bucket/runs", "--name", f"Demo_2-r{number}"]
        resuming = ["--resume-or-start", "--checkpoint-minutes", "10"]
        assert words[-11:] == [*resuming, *own, "--site", "aws-g4dn-12xlarge"]
        assert f"--mpi-args=--prefix {machine.programs.folder.parent}" in words and "--mpi" in words
    assert len(starts) == 2


def set_up(machine, site="aws-g4dn", **changes):
    """Run the set-up on a machine that has these programs and no others."""
    programs = machine.programs
    programs.add("cuda12.sh")
    own = machine.folder / "home" / "launch" / "installation" / "cuda12.sh"  # where the script begins
    own.parent.mkdir(parents=True, exist_ok=True)
    own.unlink(missing_ok=True)
    own.symlink_to(programs.folder / "cuda12.sh")
    return machine.run(a_job(site, **changes), step="setup", PATH=str(programs.folder))


UV = Answer(to=["find"], out="/opt/a b/python3.11\n")
APT = ["sudo", "-n", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]


def test_set_up_is_the_project_s_own(machine):
    """With uv's Python, though the machine has one; for the trainer's framework, an experiment may need both."""
    for name, answers in {"uv": [UV], "make": [], "g++": [], "python3.11": []}.items():
        machine.programs.add(name, *answers)
    set_up(machine)
    assert machine.programs.calls() == [
        ["uv", "python", "install", "--quiet", "3.11"],
        ["uv", "python", "find", "--managed-python", "--system", "3.11"],
        ["cuda12.sh"],  # PyPI has no compiler for TensorFlow's CUDA
        ["make", "setup", "PYTHON=/opt/a b/python3.11", "FRAMEWORKS=keras", "GPU=1"],
    ]
    smoke = {"program": None, "experiment": "smoke"}
    for site, changes, last in [
        ("aws-g4dn", {**smoke, "gpus_per_node": 0}, ["FRAMEWORKS=torch keras", "GPU=0"]),
        ("aws-g4dn", {"program": "torch_impl/train.py"}, ["FRAMEWORKS=torch", "GPU=1"]),
        ("aws-g3", smoke, ["FRAMEWORKS=torch", "GPU=1"]),  # which refuses the other
    ]:
        assert set_up(machine, site, **changes).returncode == 0
        assert machine.programs.calls()[-1][-2:] == last
    assert machine.programs.calls().count(["cuda12.sh"]) == 1


def test_a_compiler_is_installed_if_there_is_none(machine):
    """One bad list of packages is not the end."""
    for name, answers in {"uv": [UV], "make": [], "sudo": [Answer(to=["update"], code=100)]}.items():
        machine.programs.add(name, *answers)
    assert set_up(machine).returncode == 0
    first, second, *_, last = machine.programs.calls()
    assert (first, second) == ([*APT, "update"], [*APT, "install", "--yes", "g++", "make"])
    assert last[:2] == ["make", "setup"]


def test_without_a_compiler_and_sudo_it_ends_in_one_line(machine):
    machine.programs.add("uv", UV)
    machine.programs.add("sudo", Answer(err="sudo: a password is required\n", code=1))
    done = set_up(machine)
    *others, last = done.stderr.splitlines()
    line = "set-up: error: g++ and make are missing. Received: what sudo apt-get says above. Install"
    assert done.returncode == 2 and last.startswith(line) and all("sudo" in other for other in others)
    assert "make" not in {words[0] for words in machine.programs.calls()}


@pytest.mark.parametrize("uv", [None, Answer(err="error: Failed to download\n", code=1)])
def test_without_uv_s_python_set_up_looks_for_one(machine, uv):
    for name in ("g++", "make"):
        machine.programs.add(name)
    if uv:
        machine.programs.add("uv", uv)
    assert set_up(machine).returncode == 0
    assert machine.programs.calls()[-1][:3] == ["make", "setup", "PYTHON="]
