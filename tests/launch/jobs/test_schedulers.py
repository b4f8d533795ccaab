"""What is asked of Slurm, SkyPilot and Kubernetes for a job, and what is shown of their answers.

No cluster and no cloud is asked: `sbatch`, `sky`, `kubectl` and others are programs made for the test. `test_slurm.py`
has a real Slurm.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest
from builders import make_run
from made_programs import Answer, MadePrograms
from sites_and_jobs import ROOT, Desk, job_record, own_site

from common.run_folder.records import read_run
from common.utils.timestamps import SUBMITTED_AT
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


class Demo(Desk):
    """Where a job is submitted, or was."""

    def submit(self, *words, code=0):
        """Submit a job; return what is printed."""
        return self.check(
            "submit", "--name", "Demo.1", *words, "--", "torch_impl/train.py", "--threads", "3", code=code
        )

    def keep(self, site, **changes):
        """Write the record of a job that was submitted."""
        self.job("demo").mkdir(parents=True)
        write_record(self.job("demo"), job_record(site, **changes))

    def status(self):
        """Return what is shown of the job behind its id: state and reason."""
        row = " ".join(self.give("status", "demo")[1].splitlines()[-1].split())
        return re.sub(r"^demo \S+ (managed job )?\S+ | [\d.]+ s ago.*$", "", row)

    def fetch(self):
        """Fetch the run of the job; return its state."""
        self.check("fetch", "demo", "--folder", str(self.folder / "here"))
        return read_run(self.folder / "here" / "demo").state


@pytest.fixture
def demo(tmp_path):
    return Demo(tmp_path)


# Submission


KUBECTL = "kubectl --namespace=default"
CLAIM = ["get", "persistentvolumeclaim", "horovod-twins", "--ignore-not-found", "--output", "name"]


@pytest.mark.parametrize(
    ("words", "identifier", "calls", "shown"),
    [
        ("--site slurm", "7", ["sbatch --parsable job.sh"], "up to 60 minutes, no hourly price"),
        (
            "--site aws-g4dn --gpus-per-node 1",
            "demo-1",
            [f"sky launch --yes --detach-run --env {SUBMITTED_AT}=NOW --cluster demo-1 JOB/task.yaml"],
            "$0.53 for these minutes alone (1 x aws-g4dn-xlarge",
        ),
        (
            "--site OURS --spot",
            "managed job demo-1",
            ["sky jobs launch --yes --detach-run --name demo-1 JOB/task.yaml"],
            "spot machines cost less",
        ),
        (
            "--site kubernetes --nodes 2",
            "demo-1",
            [
                f"{KUBECTL} {' '.join(CLAIM)}",
                f"{KUBECTL} create --filename JOB/volume.yaml",
                f"{KUBECTL} create --filename JOB/mpijob.yaml",
            ],
            "",
        ),
    ],
)
def test_a_job_is_submitted(words, identifier, calls, shown, demo, programs):
    words = words.replace("OURS", own_site(demo.folder, "skypilot", **BUCKET))
    assert shown in demo.submit("--no-preflight", *words.split())
    job = demo.job("Demo.1")
    given = [" ".join(call).replace(str(job), "JOB") for call in programs.calls()]
    assert [re.sub(rf"({SUBMITTED_AT}=)[\d.]+", r"\1NOW", call) for call in given] == calls
    assert json.loads((job / "job.json").read_text())["id"] == identifier
    # Slurm writes where a script is submitted; elsewhere `workdir: .` is the project.
    assert {call["folder"] for call in programs.records()} == {str(job if identifier == "7" else ROOT)}


def test_a_volume_that_is_there_is_not_made_again(demo, programs):
    programs.add("kubectl", Answer(to=CLAIM, out="persistentvolumeclaim/horovod-twins\n"))
    demo.submit("--site", "kubernetes")
    assert [words[2] for words in programs.calls()] == ["get", "create"]


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
def test_a_refusal_is_one_line_with_the_remedy(site, program, answer, line, demo, programs):
    programs.add(program, answer)
    assert re.search(line, demo.submit("--site", site, "--no-preflight", code=2).splitlines()[-1])
    assert list((demo.folder / "jobs").iterdir()) == []  # so that the same command can be given again


@pytest.mark.parametrize(
    ("site", "line"),
    [
        ("slurm", "there is no Slurm here. Received: s"),
        ("aws-g4dn", "sky is not installed. Received: no sky on PATH. Install it"),
        ("kubernetes", "kubectl is not installed. Received: no kubectl on PATH"),
    ],
)
def test_a_missing_program_is_one_line(site, line, demo, monkeypatch):
    monkeypatch.setenv("PATH", str(demo.folder))
    assert line in demo.submit("--site", site, "--no-preflight", code=2).splitlines()[-1]
    demo.keep(site)
    assert line in demo.status()
    demo.check("logs", "demo", code=2, shows=line if site != "slurm" else "has not printed anything yet")


STATUSES = tomllib.loads(Path(__file__).with_name("statuses.toml").read_text())["status"]


@pytest.mark.parametrize("row", STATUSES, ids=[f"{row['site']}: {row['shown']}" for row in STATUSES])
def test_the_status_is_what_the_scheduler_answers(row, demo, programs):
    for program in row.keys() & {"squeue", "sacct", "sky", "kubectl"}:
        programs.add(program, Answer(**row[program]))
    codes = row.get("exit_codes", {})
    demo.keep(row["site"], id=row.get("id", "demo"), repeats=1 if "" in codes else 2)
    for task, code in codes.items():
        (demo.job("demo") / f"exit-code{task}").write_text(f"{code}\n")
    assert re.fullmatch(row["shown"], demo.status())


# Logs, the end, run folders


@pytest.mark.parametrize(
    ("site", "identifier", "logs", "cancel"),
    [
        ("aws-g4dn", "demo", "sky logs demo --no-follow --tail 0", "sky cancel --yes --all demo"),
        ("aws-g4dn", "managed job demo", "sky jobs logs --name demo --no-follow --tail 0",
         "sky jobs cancel --yes --name demo"),
        ("kubernetes", "demo", f"{KUBECTL} logs --selector "
         "training.kubeflow.org/job-name=demo,training.kubeflow.org/job-role=launcher --tail -1",
         f"{KUBECTL} delete mpijob demo --wait=false"),
    ],
)  # fmt: skip
def test_logs_and_cancel(site, identifier, logs, cancel, demo, programs):
    demo.keep(site, id=identifier)
    demo.check("logs", "demo")
    demo.check("cancel", "demo")
    assert [" ".join(words) for words in programs.calls()] == [logs, cancel]


@pytest.mark.parametrize(
    ("phase", "verbs"),
    [("", ["get", "create", "wait"]), ("Pending", ["get", "wait"]), ("Failed", ["get", "delete", "create", "wait"])],
)
def test_run_folders_are_fetched_through_a_pod_that_sees_the_volume(phase, verbs, demo, programs):
    inside = 'while [ "$1" != "--" ]; do shift; done; shift; exec "$@"'
    programs.add("kubectl", Answer(to=["get", "pod", "demo-files"], out=phase), Answer(to=["exec"], then=inside))
    run = make_run(demo.folder / "volume" / "runs" / "demo")
    place = {"project_folder": str(demo.folder), "python": "/usr/bin/python", "kubernetes": {"namespace": "ours"}}
    demo.keep(own_site(demo.folder, "kubernetes", **place), runs=[str(run)])
    assert demo.fetch() == "finished"
    calls = programs.calls()
    assert [words[2] for words in calls[: len(verbs) + 1]] == [*verbs, "exec"]
    assert calls[-1][:6] == ["kubectl", "--namespace=ours", "exec", "--stdin", "demo-files", "--"]


def test_run_folders_are_fetched_from_the_first_machine(demo, programs):
    clusters = [Answer(out=json.dumps([{"name": "demo", "status": state}])) for state in ("STOPPED", "UP")]
    demo.keep("aws-g4dn", runs=["runs/demo"])
    programs.add("sky", clusters[0])
    remedy = "the machines are not up. Received: demo. Start them with: sky start demo"
    demo.check("fetch", "demo", code=2, shows=remedy)
    programs.add("sky", clusters[1])
    home = demo.folder / "home"  # where ssh begins
    programs.add("ssh", Answer(to=["demo"], then=f'shift; cd "{home}" && HOME="{home}" exec sh -c "$*"'))
    make_run(home / "sky_workdir" / "runs" / "demo")
    assert demo.fetch() == "finished"


def test_run_folders_of_a_managed_job_are_in_its_bucket(demo, programs):
    demo.keep(own_site(demo.folder, "skypilot", **BUCKET), id="managed job demo", runs=["/bucket/runs/demo"])
    demo.check("fetch", "demo", code=2, shows="aws s3 sync s3://ours/runs runs")


# The preflight on a login node of Slurm


def submit_on_login_node(demo, programs, *words, setup="true", code=0):
    """Submit to a cluster with these set-up lines; return the last line that is printed but for the last of success."""
    site = own_site(
        demo.folder, "slurm", python=str(programs.folder / "python"), project_folder=str(demo.folder),
        setup=["export FIRST='set up'", setup], environment={"SECOND": "$FIRST"},
    )  # fmt: skip
    return demo.submit("--site", site, *words, code=code).splitlines()[-2 if code == 0 else -1]


def preflight(**checks):
    """Return what a preflight prints: name -> result and line."""
    lines = [{"check": name, "result": result, "lines": [text]} for name, (result, text) in checks.items()]
    return "hello from a module\n" + json.dumps({"checks": lines}, indent=1) + "\n"


PASSED = {"software": ("ok", "as here"), "gpus": ("not checked", "only in the job")}


def test_the_jobs_preflight_is_made_in_its_shell(demo, programs, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "3")  # also within an allocation
    programs.add("python", Answer(out=preflight(**PASSED)))
    line = submit_on_login_node(demo, programs, "--gpus-per-node", "2")
    assert line == "on this login node 1 check passed; left to the job: gpus"
    look, sent = programs.records()
    what = ["--framework", "torch", "--device", "gpu", "--dataset", "mnist", "--threads", "3", "--memory-mb", "4"]
    site = ["--site", str(demo.folder / "ours.toml")]
    assert look["words"] == ["python", "-m", "launch", "preflight", "--np", "2", *what, *site, "--format", "json"]
    assert look["folder"] == str(demo.folder)
    variables = look["variables"]
    assert (variables["FIRST"], variables["SECOND"]) == ("set up", "$FIRST") and "SLURM_JOB_ID" not in variables
    assert sent["words"][0] == "sbatch"


def test_what_fails_on_the_login_node_is_not_submitted(demo, programs):
    failures = {"horovod": ("failed", "n1: no NCCL. Compile it"), "data": ("failed", "no data. Bring it")}
    programs.add("python", Answer(out=preflight(**PASSED, **failures), code=2))
    line = submit_on_login_node(demo, programs, code=2)
    assert "error: the job would fail, as this login node shows: horovod: n1: no NCCL. Compile it (1 more: " in line
    assert f"Received: --site {demo.folder}/ours.toml. Correct this here" in line
    assert line.endswith("; --no-preflight submits without this check")
    line = submit_on_login_node(demo, programs, setup="echo no such module >&2; exit 3", code=2)
    assert f"the job's shell fails on this login node: no such module. Received: {demo.folder}/ours.toml." in line
    assert [words[0] for words in programs.calls()] == ["python"] and not (demo.folder / "jobs").exists()
    submit_on_login_node(demo, programs, "--no-preflight")
    assert [words[0] for words in programs.calls()] == ["python", "sbatch"]
