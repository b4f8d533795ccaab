"""Jobs on rented machines: the task as kept, as SkyPilot's own parser and the shell read it, and the commands of `sky`.

No cloud is asked: `sky` is a program made for the test.
"""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sites_and_jobs
import yaml
from builders import make_run
from cloud_parsers import ask
from made_programs import Answer, MadePrograms
from rendered_files import FOLDER, assert_as_kept
from sites_and_jobs import HOSTILE, ROOT, job_record

from common.errors import UserError
from common.run_folder.records import read_run
from common.sites.table import read_sites
from common.utils.timestamps import BEGAN_AT, STARTED_AT, SUBMITTED_AT
from launch import __main__ as launch
from launch.jobs.job import write_record
from launch.jobs.schedulers import skypilot
from launch.sites.site_files import read_launch_site

_BASH = str(shutil.which("bash"))
HANG_SECONDS = 120
SMALL = ("--model", "mlp", "--epochs", "1", "--max-steps", "2", "--device", "cpu")
DATA = ("--dataset", "synthetic:1200x28x28x1x10")
BUCKET = {"runs_folder": "/bucket/runs", "data_folder": "/tmp/a b/$(touch hit)"}
OURS = {"bucket": "s3://ours"}


def own_site(folder, *, options=None, **lines):
    return sites_and_jobs.own_site(folder, "skypilot", **lines, skypilot=options or {})


def a_job(site="aws-g4dn", **changes):
    return sites_and_jobs.a_job(site, **{"arguments": ("--model", "resnet34", "--epochs", "3"), **changes})


def task_of(job):
    (text,) = skypilot.render(job).values()
    return yaml.safe_load(text)


def spot_job(folder):
    site = own_site(folder, **BUCKET, options={"region": "us-east-1", **OURS, "disk_gb": 100})
    return a_job(site, name="Demo_2", spot=True, repeats=2, seed=7, minutes=90, program="torch_impl/train.py")


def examples(folder):
    return {
        "aws-g4dn": a_job(),
        "aws-g5-experiment": a_job(
            "aws-g5", nodes=1, program=None, experiment="smoke", arguments=("--only", "*-np[12]*"), preflight=False
        ),
        "aws-spot": spot_job(folder),
    }


def test_gpus_are_named_where_the_instance_type_does_not_imply_them():
    resources = task_of(a_job("gcp", nodes=1, gpus_per_node=8))["resources"]
    assert (resources["infra"], resources["instance_type"]) == ("gcp/us-central1", "a2-highgpu-8g")
    assert resources["accelerators"] == "A100:8"
    assert "accelerators" not in task_of(a_job("aws:p5-48xlarge", nodes=1, gpus_per_node=8))["resources"]


def test_tasks_are_as_kept(tmp_path):
    for name, job in examples(tmp_path).items():
        assert_as_kept(name, skypilot.render(job))


@pytest.fixture(scope="module")
def parsed(tmp_path_factory):
    """Return what SkyPilot's own parser says of kept tasks, and of some that it is to refuse."""
    folder = tmp_path_factory.mktemp("skypilot")
    write_catalog(folder / ".sky" / "catalogs" / "v8" / "aws" / "vms.csv")
    files = {path.parent.name: path for path in FOLDER.glob(f"*/{skypilot.TASK}")}
    for name, change in {"unknown": {"nodes": 2}, "retired": {"resources": {"instance_type": "p3.8xlarge"}}}.items():
        files[name] = folder / f"{name}.yaml"
        task = yaml.safe_load(files["aws-g4dn"].read_text())
        task["resources"].update(change.pop("resources", {}))
        files[name].write_text(yaml.safe_dump({**task, **change}))
    variables = {"SKY_RUNTIME_DIR": str(folder), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    answers = ask("skypilot_worker.py", list(files.values()), home=folder, variables=variables)
    return dict(zip(files, answers, strict=True))


_COLUMNS = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch"
)


def write_catalog(path):
    """Write what SkyPilot would fetch: the machines of the cloud, here those of our table that can still be had."""
    table = read_sites()
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS.split(","))
        for name, site in table.sites.items():
            price = site.price()
            if name.startswith("aws-") and price and not site.retired:
                gpu = (site.gpu or "").upper()
                info = {"Gpus": [{"Name": gpu, "Count": site.gpus, "MemoryInfo": {"SizeInMiB": 16384}}]}
                machine = [site.instance_type, gpu, site.gpus, site.cores, site.memory_gb, info]
                writer.writerow([*machine, *[price.usd_per_hour] * 2, "us-east-1", "us-east-1a", "x86_64"])


@pytest.mark.ci
def test_skypilot_takes_the_kept_tasks(parsed):
    assert {"aws-g4dn", "aws-g5-experiment", "aws-spot"} <= set(parsed)
    for name in set(parsed) - {"unknown", "retired"}:
        task, answer = yaml.safe_load((FOLDER / name / skypilot.TASK).read_text()), parsed[name]
        assert "error" not in answer, answer
        assert (answer["setup"], answer["run"], answer["nodes"]) == (task["setup"], task["run"], task["num_nodes"])
        assert answer["workdir"] == "."
    on_demand, spot = parsed["aws-g4dn"], parsed["aws-spot"]
    assert (on_demand["cloud"], on_demand["region"], on_demand["instance_type"]) == (
        "AWS",
        "us-east-1",
        "g4dn.12xlarge",
    )
    assert (on_demand["accelerators"], on_demand["use_spot"]) == ({"T4": 4}, False)
    assert on_demand["autostop"] == {"idle_minutes": 10, "down": False} and on_demand["buckets"] == {}
    assert (spot["use_spot"], spot["disk_size"], spot["buckets"]) == (True, 100, {"/bucket": "s3://ours"})


@pytest.mark.ci
def test_skypilot_refuses_what_it_does_not_know(parsed):
    """So the test before this one can fail."""
    assert "Instead of 'nodes', did you mean 'num_nodes'?" in parsed["unknown"]["error"]
    assert "p3.8xlarge" in parsed["retired"]["error"]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine as SkyPilot leaves it: the project's copy with a set-up environment whose programs write down calls."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # of `mktemp -d`
    programs = MadePrograms(tmp_path / "home" / "sky_workdir" / ".venv" / "bin")
    for name in ("python", "horovodrun", "mpirun"):
        programs.add(name)
    return programs


def run_there(script, machine, *, rank=0, **variables):
    home = machine.folder.parents[2]
    return subprocess.run(
        [_BASH, "-c", script], cwd=home, capture_output=True, text=True, timeout=HANG_SECONDS,
        env={"HOME": str(home), "PATH": os.environ["PATH"], "SKYPILOT_NODE_RANK": str(rank),
             "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "TMPDIR": str(home.parent), **variables},
    )  # fmt: skip


def test_the_first_machine_starts_all_ranks(machine):
    done = run_there(task_of(a_job())["run"], machine)
    assert done.returncode == 0, done.stderr
    look, start = machine.records()
    where = ["--site", "aws-g4dn", "--hosts", "10.0.0.1:4,10.0.0.2:4"]
    assert look["words"][:6] == ["python", "-m", "launch", "preflight", "--np", "8"] and look["words"][-4:] == where
    assert start["words"][:5] == ["horovodrun", "-np", "8", "-H", "10.0.0.1:4,10.0.0.2:4"]
    trainer = start["words"][start["words"].index("python") :]
    assert trainer == ["python", "keras_impl/train.py", "--model", "resnet34", "--epochs", "3",
                       "--runs-folder", "runs", "--name", "demo", "--site", "aws-g4dn-12xlarge"]  # fmt: skip
    assert start["folder"] == str(machine.folder.parents[1])
    assert start["variables"]["TF_CPP_MIN_LOG_LEVEL"] == "3"
    assert float(start["variables"][BEGAN_AT]) <= float(start["variables"][STARTED_AT])


def test_mpi_finds_its_daemon_on_other_machines(machine, tmp_path):
    assert run_there(task_of(a_job(own_site(tmp_path), preflight=False))["run"], machine).returncode == 0
    (words,) = machine.calls()
    assert f"--mpi-args=--prefix {machine.folder.parent}" in words and "--mpi" in words


def test_the_other_machines_leave_it_to_the_first(machine):
    assert run_there(task_of(a_job())["run"], machine, rank=1).returncode == 0
    assert machine.calls() == []


def test_a_failure_is_the_task_s_failure(machine):
    machine.add("horovodrun", Answer(code=2))
    assert run_there(task_of(a_job(repeats=3))["run"], machine).returncode == 2
    machine.add("python", Answer(code=1))
    assert run_there(task_of(a_job())["run"], machine).returncode == 1
    assert [words[0] for words in machine.calls()] == ["python", "horovodrun", "python"]


def test_the_time_limit_ends_the_ranks(machine):
    machine.add("horovodrun", Answer(seconds=600.0))
    assert run_there(task_of(a_job(minutes=90))["run"], machine, SECONDS="5400").returncode == 124


@pytest.mark.ranks
@pytest.mark.ci
def test_the_script_trains(tmp_path, monkeypatch):
    """With the real launcher and trainer, on this machine as the only one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # of `mktemp -d`
    (tmp_path / "sky_workdir").symlink_to(ROOT)
    runs = str(tmp_path / "my runs")
    site = own_site(tmp_path, python=sys.executable, runs_folder=runs, controller="gloo")
    job = a_job(
        site, nodes=1, ranks_per_node=2, gpus_per_node=1, program="torch_impl/train.py", arguments=SMALL + DATA,
        preflight=False,
    )  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", task_of(job)["run"]], capture_output=True, text=True, timeout=HANG_SECONDS,
        env={**os.environ, "HOME": str(tmp_path), "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "127.0.0.1",
             "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    run = read_run(tmp_path / "my runs" / "demo")
    assert (run.state, run.record.site) == ("finished", "aws-g4dn-xlarge")
    assert run.record.world.size == 2


def test_spot_runs_resume_from_the_bucket(machine, tmp_path):
    """Each repeat has a seed and a folder of its own; the machine gets the user's site file."""
    job = spot_job(tmp_path)
    done = run_there(task_of(job)["run"], machine)
    assert done.returncode == 0, done.stderr
    look, first, second = machine.records()
    (written,) = map(str, tmp_path.glob("tmp.*/ours.toml"))
    assert look["words"][look["words"].index("--site") + 1] == written
    assert read_launch_site(written).skypilot == job.site.skypilot
    for number, call in ((1, first), (2, second)):
        own = ["--seed", str(6 + number), "--runs-folder", "/bucket/runs", "--name", f"Demo_2-r{number}"]
        resuming = ["--resume-or-start", "--checkpoint-minutes", "10"]
        assert call["words"][-11:] == [*resuming, *own, "--site", "aws-g4dn-12xlarge"]
        assert call["variables"]["HOROVOD_TWINS_CACHE"] == "/tmp/a b/$(touch hit)"
    assert not list(tmp_path.rglob("hit"))


def test_no_field_is_read_by_the_shell(machine, tmp_path):
    variables = {f"V{number}": value for number, value in enumerate(HOSTILE)}
    site = own_site(tmp_path, scratch_folder=HOSTILE[3], environment=variables)
    done = run_there(task_of(a_job(site, arguments=tuple(HOSTILE), preflight=False))["run"], machine)
    assert done.returncode == 0, done.stderr
    (call,) = machine.records()
    after = call["words"].index("keras_impl/train.py") + 1
    assert call["words"][after : after + len(HOSTILE)] == HOSTILE
    assert [call["variables"][f"V{number}"] for number in range(len(HOSTILE))] == HOSTILE
    assert call["variables"]["TMPDIR"] == HOSTILE[3]
    assert not list(tmp_path.rglob("hit")) and not Path("hit").exists()


def set_up(programs, **changes):
    """Run the set-up on a machine that has these programs and no others."""
    script = task_of(a_job(**changes))["setup"]
    programs.add("cuda12.sh")
    own = programs.folder.parents[2] / "launch" / "installation" / "cuda12.sh"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.unlink(missing_ok=True)
    own.symlink_to(programs.folder / "cuda12.sh")
    return run_there(script, programs, PATH=str(programs.folder))


UV = Answer(to=["find"], out="/opt/a b/python3.11\n")
FIND = ["uv", "python", "find", "--managed-python", "--system", "3.11"]
APT = ["sudo", "-n", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]


def test_set_up_is_the_project_s_own(machine):
    """With uv's Python, though the machine has one; for the trainer's framework, an experiment may need both."""
    for name, answers in {"uv": [UV], "make": [], "g++": [], "python3.11": []}.items():
        machine.add(name, *answers)
    assert set_up(machine).returncode == 0
    install, find, nvcc, make = machine.calls()
    assert nvcc == ["cuda12.sh"], "PyPI has no compiler for TensorFlow's CUDA"
    assert install == ["uv", "python", "install", "--quiet", "3.11"] and find == FIND
    assert make == ["make", "setup", "PYTHON=/opt/a b/python3.11", "FRAMEWORKS=keras", "GPU=1"]
    assert set_up(machine, program=None, experiment="smoke", gpus_per_node=0).returncode == 0
    assert machine.calls()[-1][-2:] == ["FRAMEWORKS=torch keras", "GPU=0"]
    assert set_up(machine, program="torch_impl/train.py").returncode == 0
    assert machine.calls()[-1][-2:] == ["FRAMEWORKS=torch", "GPU=1"]
    assert machine.calls().count(["cuda12.sh"]) == 1
    assert set_up(machine, site="aws-g3", program=None, experiment="smoke").returncode == 0
    assert machine.calls()[-1][-2:] == ["FRAMEWORKS=torch", "GPU=1"], "the site refuses the other"


def test_a_compiler_is_installed_if_there_is_none(machine):
    for name, answers in {"uv": [UV], "make": [], "sudo": [Answer(to=["update"], code=100)]}.items():
        machine.add(name, *answers)
    assert set_up(machine).returncode == 0, "one bad list of packages is not the end"
    assert machine.calls()[:2] == [[*APT, "update"], [*APT, "install", "--yes", "g++", "make"]]
    assert machine.calls()[-1][:2] == ["make", "setup"]


@pytest.mark.parametrize("sudo", [None, Answer(err="sudo: a password is required\n", code=1)])
def test_without_a_compiler_and_sudo_it_ends_in_one_line(machine, sudo):
    machine.add("uv", UV)
    if sudo:
        machine.add("sudo", sudo)
    done = set_up(machine)
    assert done.returncode == 2 and "make" not in {words[0] for words in machine.calls()}
    *above, last = done.stderr.splitlines()
    assert last.startswith("set-up: error: g++ and make are missing. Received: what sudo apt-get says above. Install")
    assert above and all("sudo" in line for line in above)


@pytest.mark.parametrize("uv", [None, Answer(err="error: Failed to download\n", code=1)])
def test_without_uv_s_python_that_of_the_machine_is_taken(machine, uv):
    for name in ("g++", "make"):
        machine.add(name)
    if uv:
        machine.add("uv", uv)
    done = set_up(machine)
    assert done.returncode == 2 and "make" not in {words[0] for words in machine.calls()}
    above, last = done.stderr.splitlines()
    assert last.startswith("set-up: error: Python 3.11 is missing. Received: what uv says above. Install") and above
    machine.add("python3.11")
    assert set_up(machine).returncode == 0
    assert machine.calls()[-1][2] == f"PYTHON={machine.folder / 'python3.11'}"


def test_an_image_is_taken_as_it_is(tmp_path):
    places = {"project_folder": "/opt/twins", "python": "/opt/venv/bin/python"}
    site = own_site(tmp_path, **places, options={"image": "ours/twins:1"})
    task = task_of(a_job(site))
    assert task["resources"]["image_id"] == "docker:ours/twins:1" and not {"workdir", "setup"} & set(task)
    assert "\ncd /opt/twins\n" in task["run"] and "\nexport PATH=/opt/venv/bin:$PATH\n" in task["run"]


def test_scripts_pass_shellcheck(tmp_path):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    words = ["shellcheck", "--shell=bash", "--exclude=SC2016", "-"]  # "$" in single quotes is meant to stay
    for job in examples(tmp_path).values():
        for script in (task_of(job)["setup"], task_of(job)["run"]):
            done = subprocess.run(words, input=script, capture_output=True, text=True, timeout=HANG_SECONDS)
            assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("lines", "options", "changes", "error"),
    [
        ({}, {}, {"spot": True}, "spot machines may be taken away"),
        ({}, OURS, {}, "run folders would not be in the bucket. Received: runs_folder None"),
        ({"runs_folder": "/elsewhere"}, OURS, {}, "run folders would not be in the bucket"),
        ({"launcher": "mpirun"}, {}, {}, "machines are joined by horovodrun. Received: launcher mpirun"),
        ({}, {"image": "ours"}, {}, "an image needs the project's folder in it"),
        ({"project_folder": "/opt"}, {}, {}, "an image needs the project's folder in it"),
        ({}, {}, {"name": "a" * 70}, "the name is too long there"),
        ({}, {}, {"node": "cte-power"}, "the cloud knows this machine by no name. Received: cte-power"),
        ({}, {}, {"program": None, "experiment": "/elsewhere/x.toml"}, "file is not in the project"),
        ({}, {}, {"arguments": ("--recipe", "/elsewhere/x.toml")}, "recipe's file is not in the project"),
        ({}, {}, {"arguments": ("--recipe=../x.toml",)}, "recipe's file is not in the project"),
    ],
)
def test_what_a_task_needs_is_asked_for(tmp_path, lines, options, changes, error):
    with pytest.raises(UserError) as caught:
        skypilot.render(a_job(own_site(tmp_path, **lines, options=options), **changes))
    assert error in str(caught.value) and "\n" not in str(caught.value)


def test_an_experiment_s_file_in_the_project_comes_along():
    job = a_job(program=None, experiment=str(ROOT / "launch" / "experiments" / "shipped" / "smoke.toml"), arguments=())
    assert " experiment run launch/experiments/shipped/smoke.toml " in task_of(job)["run"]


@pytest.mark.parametrize("folder", [f"{ROOT}/", ""])
def test_a_recipe_in_the_project_comes_along(folder):
    path = f"{folder}launch/recipes/notebook-mnist.toml"
    assert " --recipe launch/recipes/notebook-mnist.toml " in task_of(a_job(arguments=("--recipe", path)))["run"]
    assert " --recipe=launch/recipes/notebook-mnist.toml " in task_of(a_job(arguments=(f"--recipe={path}",)))["run"]


def test_secrets_are_refused_and_the_shell_s_own_are_not_rendered(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-show")
    monkeypatch.setenv("HOROVOD_TWINS_ANYTHING", "do-not-show")
    for job in examples(tmp_path).values():
        assert "do-not-show" not in "".join(skypilot.render(job).values())
    site = own_site(tmp_path, environment={"MY_API_TOKEN": "x"})
    with pytest.raises(UserError, match=r"scripts would show this secret.*secret store.*MY_API_TOKEN"):
        read_launch_site(site)


def record(identifier="demo", site="aws-g4dn", **changes):
    return job_record(site, id=identifier, **changes)


@pytest.fixture
def sky(tmp_path, monkeypatch):
    programs = MadePrograms(tmp_path / "programs")
    programs.add("sky")
    monkeypatch.setenv("PATH", f"{programs.folder}:{os.environ['PATH']}")
    return programs


def submit(folder, *words):
    return sites_and_jobs.submit(folder, "--name", "Demo.1", *words, "--", "torch_impl/train.py", "--epochs", "1")


def test_a_job_is_submitted_from_the_project(tmp_path, sky, capsys):
    assert submit(tmp_path, "--site", "aws-g4dn", "--gpus-per-node", "1") == 0
    (call,) = sky.records()
    task = tmp_path / "jobs" / "Demo.1" / "task.yaml"
    words = call["words"]
    assert words[:5] == ["sky", "launch", "--yes", "--detach-run", "--env"] and words[5].startswith(f"{SUBMITTED_AT}=")
    assert words[6:] == ["--cluster", "demo-1", str(task)]
    assert call["folder"] == str(ROOT)  # where `workdir: .` starts
    assert yaml.safe_load(task.read_text())["resources"]["instance_type"] == "g4dn.xlarge"
    assert "$0.53 for these minutes alone (1 x aws-g4dn-xlarge" in capsys.readouterr().err
    assert json.loads((tmp_path / "jobs" / "Demo.1" / "job.json").read_text())["id"] == "demo-1"


def test_a_spot_job_is_a_managed_one(tmp_path, sky, capsys):
    site = own_site(tmp_path, **BUCKET, options=OURS)
    assert submit(tmp_path, "--site", site, "--spot") == 0
    task = tmp_path / "jobs" / "Demo.1" / "task.yaml"
    assert sky.calls() == [["sky", "jobs", "launch", "--yes", "--detach-run", "--name", "demo-1", str(task)]]
    assert "spot machines cost less" in capsys.readouterr().err


def test_a_refusal_is_one_line_with_the_remedy(tmp_path, sky, capsys):
    sky.add("sky", Answer(code=1))
    assert submit(tmp_path, "--site", "aws-g4dn") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "sky launch failed. Received: exit code 1" in error and error.endswith("with: sky down demo-1")
    assert list((tmp_path / "jobs").iterdir()) == []  # so that the same command can be given again


def test_a_missing_sky_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert submit(tmp_path, "--site", "aws-g4dn") == 2
    assert "sky is not installed. Received: no sky on PATH. Install it" in capsys.readouterr().err.splitlines()[-1]
    with pytest.raises(UserError, match="sky is not installed"):
        skypilot.logs(record(), tmp_path)


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [
        ("INIT", "queued", "init"), ("SETTING_UP", "queued", "setting up"), ("PENDING", "queued", "pending"),
        ("RUNNING", "running", ""), ("SUCCEEDED", "finished", ""), ("CANCELLED", "cancelled", ""),
        ("FAILED", "failed", "failed"), ("FAILED_SETUP", "failed", "failed setup"),
        ("NEWLY_MADE", "unknown", "newly made"),
    ],
)  # fmt: skip
def test_states_of_a_cluster_s_job(tmp_path, sky, status, state, reason):
    jobs = {"demo": [{"job_id": 1, "status": "FAILED"}, {"job_id": 2, "status": status}]}
    sky.add(
        "sky", Answer(to=["queue", "demo", "json"], out="Fetching job queue for: demo\n" + json.dumps(jobs, indent=2))
    )
    found = skypilot.state(record(), tmp_path)
    assert (found.state, found.reason) == (state, reason)


def test_states_of_a_managed_job(tmp_path, sky):
    jobs = [
        {"job_id": 4, "job_name": "other", "status": "RUNNING"},
        {"job_id": 2, "job_name": "demo", "status": "FAILED"},
        {"job_id": 3, "job_name": "demo", "status": "RECOVERING", "details": "taken\naway"},
    ]
    sky.add("sky", Answer(to=["jobs", "queue", "json"], out=json.dumps(jobs)))
    found = skypilot.state(record("managed job demo"), tmp_path)
    assert (found.state, found.reason) == ("queued", "taken away")
    assert skypilot.state(record("managed job gone"), tmp_path).state == "unknown"


# What SkyPilot 0.14.1 prints for a cluster that is not there, with exit code 0.
GONE = """Fetching job queue for: demo
\x1b[2mFailed to connect to SkyPilot API server at http://127.0.0.1:46580. Starting a local server.\x1b[0m
\x1b[0m\x1b[32m✓ SkyPilot API server started. \x1b[0m\x1b[0m
Failed to get the job queue for cluster 'demo'.
  sky.exceptions.ClusterDoesNotExist: Cluster 'demo' does not exist.
{}
"""


def test_what_is_not_json_is_one_line(tmp_path, sky):
    sky.add("sky", Answer(out="{ no\n"))
    with pytest.raises(UserError, match="sky printed no JSON"):
        skypilot.state(record(), tmp_path)
    sky.add("sky", Answer(out=GONE))
    assert skypilot.state(record(), tmp_path).reason == "SkyPilot no longer knows it"
    sky.add("sky", Answer(err="first\nno credentials\n", code=3))
    with pytest.raises(UserError, match=r"^sky queue.* failed\. Received: no credentials\. See "):
        skypilot.state(record(), tmp_path)


def test_logs_and_cancel(tmp_path, sky):
    assert skypilot.logs(record(), tmp_path) == ["sky", "logs", "demo", "--no-follow", "--tail", "0"]
    managed = record("managed job demo")
    assert skypilot.logs(managed, tmp_path) == ["sky", "jobs", "logs", "--name", "demo", "--no-follow", "--tail", "0"]
    skypilot.cancel(record(), tmp_path)
    skypilot.cancel(managed, tmp_path)
    assert sky.calls() == [["sky", "cancel", "--yes", "--all", "demo"],
                           ["sky", "jobs", "cancel", "--yes", "--name", "demo"]]  # fmt: skip


SSH = """#!/bin/sh
# The first machine: its home, where ssh begins, and its shell.
[ "$1" = demo ] || exit 255
shift
cd "{home}" && HOME="{home}" exec sh -c "$*"
"""


def test_run_folders_are_fetched_from_the_first_machine(tmp_path, sky):
    sky.add("sky", Answer(to=["status", "demo"], out=json.dumps([{"name": "demo", "status": "UP"}])))
    ssh, home = sky.folder / "ssh", tmp_path / "home"
    ssh.write_text(SSH.format(home=home))
    ssh.chmod(0o755)
    make_run(home / "sky_workdir" / "runs" / "demo")
    (tmp_path / "jobs" / "demo").mkdir(parents=True)
    write_record(tmp_path / "jobs" / "demo", record(runs=["runs/demo"]))
    words = ["fetch", "demo", "--jobs-folder", str(tmp_path / "jobs"), "--folder", str(tmp_path / "here")]
    assert launch.main(words) == 0
    assert read_run(tmp_path / "here" / "demo").state == "finished"


def test_the_shell_is_that_of_the_first_machine(tmp_path, sky):
    sky.add("sky", Answer(to=["status", "demo"], out=json.dumps([{"name": "demo", "status": "UP"}])))
    assert skypilot.shell(record(), tmp_path) == ["ssh", "demo", "cd sky_workdir &&"]
    sky.add("sky", Answer(to=["status", "demo"], out=json.dumps([{"name": "demo", "status": "STOPPED"}])))
    with pytest.raises(UserError, match=r"the machines are not up.*Start them with: sky start demo"):
        skypilot.shell(record(), tmp_path)
    site = own_site(tmp_path, **BUCKET, options=OURS)
    with pytest.raises(UserError, match=r"aws s3 sync s3://ours/runs runs"):
        skypilot.shell(record("managed job demo", site), tmp_path)
