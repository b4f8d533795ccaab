"""What is asked of Slurm, SkyPilot and Kubernetes for a job, and what is shown of their answers.

No cluster and no cloud is asked: `sbatch`, `sky`, `kubectl` and others are programs made for the test. `test_slurm.py`
has a real Slurm.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest
import sites_and_jobs
import yaml
from builders import make_run
from made_programs import Answer, MadePrograms
from sites_and_jobs import ROOT, job_record, own_site

from common.run_folder.records import read_run
from common.utils.timestamps import SUBMITTED_AT
from launch import __main__ as launch
from launch.jobs.job import write_record

BUCKET = {"runs_folder": "/bucket/runs", "skypilot": {"bucket": "s3://ours"}}


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """The programs of all schedulers, which say nothing so far."""
    made = MadePrograms(tmp_path / "programs")
    for name in ("squeue", "sacct", "scancel", "sky", "kubectl", "ssh"):
        made.add(name)
    made.add("sbatch", Answer(out="7\n"))
    made.first_on_path(monkeypatch)
    return made


def submit(folder, *words):
    return sites_and_jobs.submit(folder, "--name", "Demo.1", *words, "--", "torch_impl/train.py", "--threads", "3")


def keep_job(folder, site, **changes):
    """Write the record of a job that was submitted; return its folder."""
    job = folder / "jobs" / "demo"
    job.mkdir(parents=True)
    write_record(job, job_record(site, **changes))
    return job


def of_job(folder, command, *words):
    """Give a command about the job; return its exit code."""
    return launch.main([command, "demo", "--jobs-folder", str(folder / "jobs"), *words])


def status(folder, capsys):
    """Return what is shown of the job behind its id: state and reason."""
    capsys.readouterr()
    of_job(folder, "status")
    row = " ".join(capsys.readouterr().out.splitlines()[-1].split())
    return re.sub(r"^demo \S+ (managed job )?\S+ | [\d.]+ s ago.*$", "", row)


# Submission


def test_a_cluster_is_rented_from_the_project(tmp_path, programs, capsys):
    assert submit(tmp_path, "--site", "aws-g4dn", "--gpus-per-node", "1") == 0
    (call,) = programs.records()
    task = tmp_path / "jobs" / "Demo.1" / "task.yaml"
    words = call["words"]
    assert words[:5] == ["sky", "launch", "--yes", "--detach-run", "--env"] and words[5].startswith(f"{SUBMITTED_AT}=")
    assert words[6:] == ["--cluster", "demo-1", str(task)]
    assert call["folder"] == str(ROOT)  # where `workdir: .` starts
    assert yaml.safe_load(task.read_text())["resources"]["instance_type"] == "g4dn.xlarge"
    assert "$0.53 for these minutes alone (1 x aws-g4dn-xlarge" in capsys.readouterr().err
    assert json.loads((tmp_path / "jobs" / "Demo.1" / "job.json").read_text())["id"] == "demo-1"


def test_a_spot_job_is_a_managed_one(tmp_path, programs, capsys):
    assert submit(tmp_path, "--site", own_site(tmp_path, "skypilot", **BUCKET), "--spot") == 0
    task = tmp_path / "jobs" / "Demo.1" / "task.yaml"
    assert programs.calls() == [["sky", "jobs", "launch", "--yes", "--detach-run", "--name", "demo-1", str(task)]]
    assert "spot machines cost less" in capsys.readouterr().err


KUBECTL = ["kubectl", "--namespace=default"]
CLAIM = ["get", "persistentvolumeclaim", "horovod-twins", "--ignore-not-found", "--output", "name"]


def test_a_pod_is_made_and_its_volume_where_there_is_none(tmp_path, programs):
    assert submit(tmp_path, "--site", "kubernetes", "--nodes", "2") == 0
    folder = tmp_path / "jobs" / "Demo.1"
    made = [[*KUBECTL, "create", "--filename", str(folder / file)] for file in ("volume.yaml", "mpijob.yaml")]
    assert programs.calls() == [[*KUBECTL, *CLAIM], *made]
    assert json.loads((folder / "job.json").read_text())["id"] == "demo-1"
    programs.add("kubectl", Answer(to=CLAIM, out="persistentvolumeclaim/horovod-twins\n"))
    assert submit(tmp_path, "--site", "kubernetes", "--name", "again") == 0
    assert [words[2] for words in programs.calls()[3:]] == ["get", "create"]


EXISTS = 'Error from server (AlreadyExists): mpijobs.kubeflow.org "demo-1" already exists'


@pytest.mark.parametrize(
    ("site", "program", "answer", "line"),
    [
        ("slurm", "sbatch", Answer(err="sbatch: error: no\n", code=1), "Slurm refuses the job: sbatch: error: no. "),
        ("aws-g4dn", "sky", Answer(code=1), "sky launch failed. Received: exit code 1.* with: sky down demo-1$"),
        ("kubernetes", "kubectl", Answer(to=["create"], err=f"warning\n{EXISTS}\n", code=1),
         rf"kubectl create failed. Received: {re.escape(EXISTS)}. See `kubectl"),
    ],
)  # fmt: skip
def test_a_refusal_is_one_line_with_the_remedy(site, program, answer, line, tmp_path, programs, capsys):
    programs.add(program, answer)
    assert submit(tmp_path, "--site", site, "--no-preflight") == 2
    assert re.search(line, capsys.readouterr().err.splitlines()[-1])
    assert list((tmp_path / "jobs").iterdir()) == []  # so that the same command can be given again


@pytest.mark.parametrize(
    ("site", "line"),
    [
        ("slurm", "there is no Slurm here. Received: s"),
        ("aws-g4dn", "sky is not installed. Received: no sky on PATH. Install it"),
        ("kubernetes", "kubectl is not installed. Received: no kubectl on PATH"),
    ],
)
def test_a_missing_program_is_one_line(site, line, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert submit(tmp_path, "--site", site, "--no-preflight") == 2
    assert line in capsys.readouterr().err.splitlines()[-1]
    keep_job(tmp_path, site)
    assert line in status(tmp_path, capsys)
    assert of_job(tmp_path, "logs") == 2
    assert (line if site != "slurm" else "has not printed anything yet") in capsys.readouterr().err


STATUSES = tomllib.loads(Path(__file__).with_name("statuses.toml").read_text())["status"]


@pytest.mark.parametrize("row", STATUSES, ids=[f"{row['site']}: {row['shown']}" for row in STATUSES])
def test_the_status_is_what_the_scheduler_answers(row, tmp_path, programs, capsys):
    for program in row.keys() & {"squeue", "sacct", "sky", "kubectl"}:
        programs.add(program, Answer(**row[program]))
    codes = row.get("exit_codes", {})
    folder = keep_job(tmp_path, row["site"], id=row.get("id", "demo"), repeats=1 if "" in codes else 2)
    for task, code in codes.items():
        (folder / f"exit-code{task}").write_text(f"{code}\n")
    assert re.fullmatch(row["shown"], status(tmp_path, capsys))


# Logs, the end, run folders


@pytest.mark.parametrize(
    ("site", "identifier", "logs", "cancel"),
    [
        ("aws-g4dn", "demo", "sky logs demo --no-follow --tail 0", "sky cancel --yes --all demo"),
        ("aws-g4dn", "managed job demo", "sky jobs logs --name demo --no-follow --tail 0",
         "sky jobs cancel --yes --name demo"),
        ("kubernetes", "demo", "kubectl --namespace=default logs --selector "
         "training.kubeflow.org/job-name=demo,training.kubeflow.org/job-role=launcher --tail -1",
         "kubectl --namespace=default delete mpijob demo --wait=false"),
    ],
)  # fmt: skip
def test_logs_and_cancel(site, identifier, logs, cancel, tmp_path, programs):
    keep_job(tmp_path, site, id=identifier)
    assert (of_job(tmp_path, "logs"), of_job(tmp_path, "cancel")) == (0, 0)
    assert [" ".join(words) for words in programs.calls()] == [logs, cancel]


def fetched(folder):
    """Fetch the run of a job; return whether it is there."""
    assert of_job(folder, "fetch", "--folder", str(folder / "here")) == 0
    return read_run(folder / "here" / "demo").state == "finished"


@pytest.mark.parametrize(
    ("phase", "verbs"),
    [("", ["get", "create", "wait"]), ("Pending", ["get", "wait"]), ("Failed", ["get", "delete", "create", "wait"])],
)
def test_run_folders_are_fetched_through_a_pod_that_sees_the_volume(phase, verbs, tmp_path, programs):
    inside = 'while [ "$1" != "--" ]; do shift; done; shift; exec "$@"'
    programs.add("kubectl", Answer(to=["get", "pod", "demo-files"], out=phase), Answer(to=["exec"], then=inside))
    run = make_run(tmp_path / "volume" / "runs" / "demo")
    place = {"project_folder": str(tmp_path), "python": "/usr/bin/python", "kubernetes": {"namespace": "ours"}}
    site = own_site(tmp_path, "kubernetes", **place)
    keep_job(tmp_path, site, runs=[str(run)])
    assert fetched(tmp_path)
    calls = programs.calls()
    assert [words[2] for words in calls[: len(verbs) + 1]] == [*verbs, "exec"]
    assert calls[-1][:6] == ["kubectl", "--namespace=ours", "exec", "--stdin", "demo-files", "--"]


def test_run_folders_are_fetched_from_the_first_machine(tmp_path, programs, capsys):
    clusters = [Answer(out=json.dumps([{"name": "demo", "status": state}])) for state in ("STOPPED", "UP")]
    keep_job(tmp_path, "aws-g4dn", runs=["runs/demo"])
    programs.add("sky", clusters[0])
    assert of_job(tmp_path, "fetch") == 2
    assert "the machines are not up. Received: demo. Start them with: sky start demo" in capsys.readouterr().err
    programs.add("sky", clusters[1])
    home = tmp_path / "home"  # where ssh begins
    programs.add("ssh", Answer(to=["demo"], then=f'shift; cd "{home}" && HOME="{home}" exec sh -c "$*"'))
    make_run(home / "sky_workdir" / "runs" / "demo")
    assert fetched(tmp_path)


def test_run_folders_of_a_managed_job_are_in_its_bucket(tmp_path, programs, capsys):
    keep_job(tmp_path, own_site(tmp_path, "skypilot", **BUCKET), id="managed job demo", runs=["/bucket/runs/demo"])
    assert of_job(tmp_path, "fetch") == 2
    assert "aws s3 sync s3://ours/runs runs" in capsys.readouterr().err


# The preflight on a login node of Slurm


def on_login_node(folder, programs, *words, setup="true"):
    """Submit to a cluster with these set-up lines."""
    site = own_site(
        folder, "slurm", python=str(programs.folder / "python"), project_folder=str(folder),
        setup=["export FIRST='set up'", setup], environment={"SECOND": "$FIRST"},
    )  # fmt: skip
    return submit(folder, "--site", site, *words)


def preflight(**checks):
    """Return what a preflight prints: name -> result and line."""
    lines = [{"check": name, "result": result, "lines": [text]} for name, (result, text) in checks.items()]
    return "hello from a module\n" + json.dumps({"checks": lines}, indent=1) + "\n"


PASSED = {"software": ("ok", "as here"), "gpus": ("not checked", "only in the job")}


def test_the_jobs_preflight_is_made_in_its_shell(tmp_path, programs, capsys, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "3")  # also within an allocation
    programs.add("python", Answer(out=preflight(**PASSED)))
    assert on_login_node(tmp_path, programs, "--gpus-per-node", "2") == 0
    look, sent = programs.records()
    what = ["--framework", "torch", "--device", "gpu", "--dataset", "mnist", "--threads", "3", "--memory-mb", "4"]
    site = ["--site", str(tmp_path / "ours.toml")]
    assert look["words"] == ["python", "-m", "launch", "preflight", "--np", "2", *what, *site, "--format", "json"]
    assert look["folder"] == str(tmp_path)
    variables = look["variables"]
    assert (variables["FIRST"], variables["SECOND"]) == ("set up", "$FIRST") and "SLURM_JOB_ID" not in variables
    assert sent["words"][0] == "sbatch"
    assert "on this login node 1 check passed; left to the job: gpus\n" in capsys.readouterr().err


def test_what_fails_on_the_login_node_is_not_submitted(tmp_path, programs, capsys):
    failures = {"horovod": ("failed", "n1: no NCCL. Compile it"), "data": ("failed", "no data. Bring it")}
    programs.add("python", Answer(out=preflight(**PASSED, **failures), code=2))
    assert on_login_node(tmp_path, programs) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "error: the job would fail, as this login node shows: horovod: n1: no NCCL. Compile it (1 more: " in line
    assert f"Received: --site {tmp_path}/ours.toml. Correct this here" in line
    assert line.endswith("; --no-preflight submits without this check")
    assert on_login_node(tmp_path, programs, setup="echo no such module >&2; exit 3") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"the job's shell fails on this login node: no such module. Received: {tmp_path}/ours.toml." in line
    assert [words[0] for words in programs.calls()] == ["python"] and not (tmp_path / "jobs").exists()
    assert on_login_node(tmp_path, programs, "--no-preflight") == 0
    assert [words[0] for words in programs.calls()] == ["python", "sbatch"]
