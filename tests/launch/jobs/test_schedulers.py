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
from common.run_folder.start_times import SUBMITTED_AT
from launch.jobs.job import write_record


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """The programs of all schedulers, which say nothing so far."""
    made = MadePrograms(tmp_path / "programs")
    for name in ("squeue", "sacct", "scancel", "sky", "kubectl", "ssh"):
        made.add(name)
    made.add("sbatch", Answer(out="7\n"))
    made.first_on_path(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return made


class Demo(Desk):
    """Where a job is submitted, or was."""

    def submit(self, *words, code=0):
        return self.check(
            "submit", "--name", "Demo.1", *words, "--", "torch_impl/train.py", "--threads", "3", code=code
        )

    def keep(self, site, **changes):
        """Write the record of a job that was submitted."""
        self.job("demo").mkdir(parents=True)
        write_record(self.job("demo"), job_record(site, **changes))

    def status(self):
        """Return what is shown of the job behind its id: state and reason."""
        row = " ".join(self.check("status", "demo", code=None).splitlines()[-1].split())
        return re.sub(r"^demo \S+ (managed job )?\S+ | [\d.]+ s ago.*$", "", row)

    def fetch(self):
        self.check("fetch", "demo", "--folder", str(self.folder / "here"))
        return read_run(self.folder / "here" / "demo").state


@pytest.fixture
def demo(tmp_path):
    return Demo(tmp_path)


TABLES = {"call": "calls.toml", "status": "statuses.toml"}


def rows(name):
    return tomllib.loads(Path(__file__).with_name(TABLES[name]).read_text())[name]


def answers_of(part):
    """Return the answer of a part of a row, or its answers."""
    return [Answer(**answer) for answer in (part if isinstance(part, list) else [part])]


@pytest.mark.parametrize("row", rows("call"), ids=lambda row: f"{row['command']} {row['site']}")
def test_schedulers_are_asked_for_what_a_command_needs(row, demo, programs):
    for program, answers in row.get("answers", {}).items():
        programs.add(program, *answers_of(answers))
    command, site, code = row["command"], row["site"], row.get("code", 0)
    if site == "OURS":
        folders = {"runs_folder": "/bucket/runs", "skypilot": {"bucket": "s3://ours"}}
        site = own_site(demo.folder, "skypilot", **folders)
    if command == "submit":
        printed = demo.submit("--site", site, "--no-preflight", *row.get("words", "").split(), code=code)
    else:
        demo.keep(site, id=row.get("id", "demo"))
        printed = demo.check(command, "demo", code=code)
    assert re.search(rf"(?s){row['shown']}\Z", printed), printed
    job = demo.job("Demo.1")
    given = [" ".join(call).replace(str(job), "JOB") for call in programs.calls()]
    assert [re.sub(rf"({SUBMITTED_AT}=)[\d.]+", r"\1NOW", call) for call in given] == row["calls"]
    if command != "submit":
        return
    # Slurm writes where a script is submitted; elsewhere `workdir: .` is the project.
    assert {call["folder"] for call in programs.records()} == {str(job if site == "slurm" else ROOT)}
    if code and "id" not in row:
        assert list((demo.folder / "jobs").iterdir()) == []  # so that the same command can be given again
    else:
        assert json.loads((job / "job.json").read_text())["id"] == row["id"]


@pytest.mark.parametrize(
    ("site", "program", "word"), [("aws-g4dn", "sky", "launch"), ("kubernetes", "kubectl", "create")]
)
def test_a_start_is_on_record_before_it_begins_and_after_it_was_interrupted(site, program, word, demo, programs):
    """So that one that is killed is, too."""
    record = demo.job("Demo.1") / "job.json"
    claim = Answer(to=["get", "persistentvolumeclaim"], out="claim")
    start = Answer(to=[word], then=f'test -e "{record}" && kill -INT $PPID; exec sleep 600')
    programs.add(program, start, claim)
    printed = demo.submit("--site", site, "--no-preflight", code=130)
    assert record.exists() and "python -m launch cancel Demo.1" in printed


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


@pytest.mark.parametrize("row", rows("status"), ids=lambda row: f"{row['site']}: {row['shown']}")
def test_the_status_is_what_the_scheduler_answers(row, demo, programs):
    for program in row.keys() & {"squeue", "sacct", "sky", "kubectl"}:
        programs.add(program, *answers_of(row[program]))
    codes = row.get("exit_codes", {})
    demo.keep(row["site"], id=row.get("id", "demo"), repeats=1 if "" in codes else 2)
    for task, code in codes.items():
        (demo.job("demo") / f"exit-code{task}").write_text(f"{code}\n")
    assert re.fullmatch(row["shown"], demo.status())


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
    demo.keep("aws-g4dn", runs=["runs/demo"])
    programs.add("sky", Answer(out='[{"name": "demo", "status": "UP"}]'))
    home = demo.folder / "home"  # where ssh begins
    programs.add("ssh", Answer(to=["demo"], then=f'shift; cd "{home}" && HOME="{home}" exec sh -c "$*"'))
    make_run(home / "sky_workdir" / "runs" / "demo")
    assert demo.fetch() == "finished"


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
