"""Jobs on Kubernetes: the files as kept, against the published schema and real readers of YAML, and calls of `kubectl`.

No cluster is asked: `kubectl` is a program made for the test, but for reading files, where the real one is there.
"""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sites_and_jobs
import yaml
from builders import make_run
from hypothesis import given
from hypothesis import strategies as st
from made_programs import Answer, MadePrograms
from published_schema import problems
from rendered_files import FOLDER, assert_as_kept
from sites_and_jobs import HOSTILE, ROOT, job_record

from common.errors import UserError
from common.run_folder.records import read_run
from common.utils.timestamps import BEGAN_AT, STARTED_AT, TIMESTAMPS
from launch import __main__ as launch
from launch.jobs.job import write_record
from launch.jobs.schedulers import kubernetes
from launch.sites.site_files import read_launch_site

HANG_SECONDS = 120
FOLDERS = {
    "project_folder": "/opt/twins", "python": "/opt/twins/.venv/bin/python", "runs_folder": "/data/runs",
    "launcher": "horovodrun",
}  # fmt: skip
OPTIONS = {
    "volume_path": "/data", "namespace": "ours", "image": "ours.example:5000/twins:1e3", "volume_claim": "ours",
    "storage_class": "nfs", "ssh_path": "/root/.ssh", "node_selector": {"gpu.kind": "0123"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}, {"key": "a/b", "value": "y", "effect": "NoSchedule"}],
    "pull_secrets": ["registry"], "service_account": "trainer", "queue": "gpus",
}  # fmt: skip


def own_site(folder, *, options=OPTIONS, **lines):
    return sites_and_jobs.own_site(folder, "kubernetes", kubernetes=options, **(lines or FOLDERS))


def a_job(site="kubernetes", **changes):
    return sites_and_jobs.a_job(site, **{"arguments": ("--learning-rate", "1e-3"), **changes})


def examples(folder):
    return {
        "kubernetes": a_job(repeats=2),
        "kubernetes-experiment": a_job(
            own_site(folder), name="Smoke_1", program=None, experiment="smoke", arguments=(), nodes=1, ranks_per_node=2,
            gpus_per_node=0, minutes=1440,
        ),
    }  # fmt: skip


def test_files_are_as_kept(tmp_path):
    for name, job in examples(tmp_path).items():
        assert_as_kept(name, kubernetes.render(job))


def kept():
    return sorted(path for name in ("kubernetes", "kubernetes-experiment") for path in (FOLDER / name).glob("*.yaml"))


@pytest.mark.parametrize("path", kept(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_kept_files_follow_the_published_schema(path):
    assert problems(yaml.safe_load(path.read_text())) == []


def places(part):
    """Yield all tables and lists with their keys, but those whose keys are the user's."""
    for key, value in part.items() if isinstance(part, dict) else enumerate(part):
        yield part, key
        if isinstance(value, dict | list) and key not in ("limits", "requests", "nodeSelector", "labels"):
            yield from places(value)


def test_the_published_schema_finds_an_unknown_field_and_another_type_anywhere():
    """So the test before this one can fail."""
    table = yaml.safe_load((FOLDER / "kubernetes-experiment" / kubernetes.JOB_FILE).read_text())
    for number in range(len(list(places(table["spec"])))):
        changed = copy.deepcopy(table)
        part, key = list(places(changed["spec"]))[number]
        part[key] = 1.5
        assert problems(changed), key
        if isinstance(part, dict) and key not in ("Launcher", "Worker"):
            part["replica"] = part.pop(key)
            assert any("unknown field replica" in one for one in problems(changed)), key
    assert number > 80


def test_kubectl_reads_the_files_as_they_were_meant(tmp_path):
    """Its reader takes `1e-3` and `y` for a number and a truth value where they are not quoted."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed (Debian: kubernetes-client)")
    (tmp_path / "hostile").mkdir()
    files = kubernetes.render(a_job(arguments=tuple(HOSTILE), preflight=False))
    for name, text in files.items():
        (tmp_path / "hostile" / name).write_text(text)
    for path in [*kept(), *(tmp_path / "hostile").iterdir()]:
        done = subprocess.run(
            [kubectl, "annotate", "--local", "--output", "json", "--filename", str(path), "x=y"],
            capture_output=True, text=True, timeout=HANG_SECONDS,
            env={"HOME": str(tmp_path), "KUBECONFIG": os.devnull, "PATH": os.environ["PATH"]},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        table, expected = json.loads(done.stdout), yaml.safe_load(path.read_text())
        assert table["metadata"].pop("annotations") == {"x": "y"}
        if expected["kind"] == "MPIJob":  # what is known to kubectl comes with its defaults
            assert table == expected


def command(job):
    """Return the launcher's script, as Kubernetes hands it to the shell."""
    table = yaml.safe_load(kubernetes.render(job)[kubernetes.JOB_FILE])
    shell, flag, script = table["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"]
    assert (shell, flag) == ("bash", "-c")
    return expand(script, {"K_MPI_JOB_ROLE": "launcher", "HOME": "elsewhere"})


def expand(text, variables):
    """Replace as Kubernetes does: `$$` is `$`, `$(NAME)` a variable's value where there is one."""

    def value(match):
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)


@given(st.lists(st.sampled_from(["$", "$$", "(", ")", "a", "HOME", "$(HOME)", "$(", " ", "\n"])).map("".join))
def test_kubernetes_replaces_nothing_in_a_command(text):
    assert expand(kubernetes.literal(text), {"HOME": "elsewhere", "": "empty", "a": "b"}) == text
    assert expand("$(HOME)$$", {"HOME": "elsewhere"}) == "elsewhere$"  # it would


@pytest.fixture
def pod(tmp_path, monkeypatch):
    """A launcher's pod: the project with programs that write down calls."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # of `mktemp -d`
    programs = MadePrograms(tmp_path / "project" / ".venv" / "bin")
    for name in ("python", "horovodrun", "mpirun"):
        programs.add(name)
    return programs


def run_there(job, pod):
    words = ["bash", "-c", command(job)]
    return subprocess.run(words, cwd=pod.folder, capture_output=True, text=True, timeout=HANG_SECONDS)


def site_of(pod, **lines):
    """Write the site of an image whose project is in the test's folder."""
    project = pod.folder.parents[1]
    folders = {"project_folder": str(project), "python": f"{pod.folder}/python", "runs_folder": "/data/runs"}
    return own_site(project.parent, **folders, **lines)


def test_the_launcher_looks_over_the_workers_and_starts_the_ranks(pod, tmp_path):
    variables = {f"V{number}": value for number, value in enumerate(HOSTILE)}
    site = site_of(pod, launcher="mpirun", data_folder="/data/a b", environment=variables)
    assert run_there(a_job(site), pod).returncode == 0
    look, _ = pod.records()
    (written,) = map(str, tmp_path.glob("tmp.*/ours.toml"))
    assert Path(written).parent.stat().st_mode & 0o777 == 0o700  # no other user can have put it there
    where = ["--site", written, "--hosts", "/etc/mpi/hostfile"]
    assert look["words"][:6] == ["python", "-m", "launch", "preflight", "--np", "8"] and look["words"][-4:] == where
    assert read_launch_site(written).environment["V3"] == "$(touch hit)"
    done = run_there(a_job(site, arguments=tuple(HOSTILE), preflight=False), pod)
    assert done.returncode == 0, done.stderr
    start = pod.records()[-1]
    words, cut = start["words"], start["words"].index("python")
    assert words[:3] == ["mpirun", "-np", "8"]
    handed_on = [words[number + 1] for number in range(cut) if words[number] == "-x"]
    assert {"PATH", "HOROVOD_TWINS_CACHE", "V0", f"V{len(HOSTILE) - 1}", *TIMESTAMPS} <= set(handed_on)
    assert {BEGAN_AT, STARTED_AT} <= set(start["variables"])
    assert words[cut:] == ["python", "keras_impl/train.py", *HOSTILE, "--runs-folder", "/data/runs", "--name", "demo",
                           "--site", "kubernetes"]  # fmt: skip
    assert [start["variables"][f"V{number}"] for number in range(len(HOSTILE))] == HOSTILE
    assert start["variables"]["HOROVOD_TWINS_CACHE"] == "/data/a b"
    assert not list(tmp_path.rglob("hit"))


@pytest.mark.ranks
@pytest.mark.ci
def test_the_script_trains(tmp_path, monkeypatch):
    """With the real MPI and trainer, on this machine: hosts, which the operator names by variables, are none."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # of `mktemp -d`
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe")
    site = own_site(
        tmp_path, options={"volume_path": str(tmp_path)}, project_folder=str(ROOT), python=sys.executable,
        runs_folder=str(tmp_path / "my runs"), launcher="mpirun", environment=dict.fromkeys(names, "1"),
    )  # fmt: skip
    small = ("--model", "mlp", "--epochs", "1", "--max-steps", "2", "--device", "cpu")
    words = (*small, "--dataset", "synthetic:1200x28x28x1x10")
    job = a_job(site, nodes=1, ranks_per_node=2, arguments=words, preflight=False)
    done = subprocess.run(
        ["bash", "-c", command(job)], capture_output=True, text=True, timeout=2 * HANG_SECONDS,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    run = read_run(tmp_path / "my runs" / "demo")
    assert (run.state, run.record.site, run.record.framework) == ("finished", "kubernetes", "keras")
    assert run.record.world.size == 2


def test_repeats_and_horovodrun(pod):
    job = a_job(site_of(pod, launcher="horovodrun"), repeats=2, seed=3, preflight=False)
    assert run_there(job, pod).returncode == 0
    first, second = pod.calls()
    assert first[:5] == ["horovodrun", "-np", "8", "--hostfile", "/etc/mpi/hostfile"] and "--mpi" in first
    assert (first[first.index("--seed") + 1], second[second.index("--seed") + 1]) == ("3", "4")
    assert (first[first.index("--name") + 1], second[second.index("--name") + 1]) == ("demo-r1", "demo-r2")


def test_a_failure_is_the_job_s_failure(pod):
    job = a_job(site_of(pod, launcher="mpirun"), repeats=2)
    pod.add("mpirun", Answer(code=3))
    assert run_there(job, pod).returncode == 3
    pod.add("python", Answer(code=2))
    assert run_there(job, pod).returncode == 2
    assert [words[0] for words in pod.calls()] == ["python", "mpirun", "python"]


@pytest.mark.parametrize(
    ("lines", "changes", "error"),
    [
        ({"runs_folder": "/data/runs"}, {}, "the site does not say where its image holds the project"),
        ({"project_folder": "/opt/twins"}, {}, "the site does not say where its image holds the project"),
        ({**FOLDERS, "options": {}}, {}, "run folders would be lost with the pods. Received: runs_folder /data/runs"),
        ({}, {"name": "a" * 55}, "the name is too long there"),
        ({}, {"program": None, "experiment": "/elsewhere/x.toml"}, "file is not in the project"),
    ],
)
def test_what_a_job_needs_is_asked_for(tmp_path, lines, changes, error):
    with pytest.raises(UserError) as caught:
        kubernetes.render(a_job(own_site(tmp_path, **lines), **changes))
    assert error in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("demo", "demo"),
        ("Demo_1.2+x", "demo-1-2-x"),
        ("2026-demo", "job-2026-demo"),
        ("__", "job"),
        ("a" * 54, "a" * 54),
    ],
)
def test_names_of_jobs_become_names_of_hosts(name, label):
    """Also that of the last worker, by whose name the operator makes a label of DNS."""
    assert yaml.safe_load(kubernetes.render(a_job(name=name))[kubernetes.JOB_FILE])["metadata"]["name"] == label
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", f"{label}-worker-1")


def test_secrets_are_refused_and_the_shell_s_own_are_not_rendered(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "do-not-show")
    monkeypatch.setenv("HOROVOD_ANYTHING", "do-not-show")
    for job in examples(tmp_path).values():
        assert "do-not-show" not in "".join(kubernetes.render(job).values())
    with pytest.raises(UserError, match=r"scripts would show this secret.*DB_PASSWORD"):
        read_launch_site(own_site(tmp_path, environment={"DB_PASSWORD": "x"}))


KUBECTL = ["kubectl", "--namespace=default"]


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    programs = MadePrograms(tmp_path / "programs")
    programs.add("kubectl")
    monkeypatch.setenv("PATH", f"{programs.folder}:{os.environ['PATH']}")
    return programs


def submit(folder, *words):
    words = ["--site", "kubernetes", "--name", "Demo.1", *words, "--", "torch_impl/train.py", "--epochs", "1"]
    return sites_and_jobs.submit(folder, *words)


CLAIM = ["get", "persistentvolumeclaim", "horovod-twins", "--ignore-not-found", "--output", "name"]


def test_a_job_is_made_and_its_volume_where_there_is_none(tmp_path, kubectl):
    assert submit(tmp_path, "--nodes", "2") == 0
    folder = tmp_path / "jobs" / "Demo.1"
    create = [*KUBECTL, "create", "--filename"]
    assert kubectl.calls() == [
        [*KUBECTL, *CLAIM], [*create, str(folder / "volume.yaml")], [*create, str(folder / "mpijob.yaml")]
    ]  # fmt: skip
    assert json.loads((folder / "job.json").read_text())["id"] == "demo-1"
    kubectl.add("kubectl", Answer(to=CLAIM, out="persistentvolumeclaim/horovod-twins\n"))
    assert submit(tmp_path, "--name", "again") == 0
    assert [words[2] for words in kubectl.calls()[3:]] == ["get", "create"]


def test_a_refusal_is_one_line(tmp_path, kubectl, capsys):
    exists = 'Error from server (AlreadyExists): mpijobs.kubeflow.org "demo-1" already exists'
    kubectl.add("kubectl", Answer(to=["create"], err=f"warning\n{exists}\n", code=1))
    assert submit(tmp_path) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"kubectl create failed. Received: {exists}. See `kubectl" in error
    assert list((tmp_path / "jobs").iterdir()) == []


def test_a_missing_kubectl_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert submit(tmp_path) == 2
    assert "kubectl is not installed. Received: no kubectl on PATH" in capsys.readouterr().err.splitlines()[-1]
    with pytest.raises(UserError, match="kubectl is not installed"):
        kubernetes.logs(job_record("kubernetes"), tmp_path)


def condition(kind, message="", status="True"):
    return {"type": kind, "status": status, "message": message}


@pytest.mark.parametrize(
    ("conditions", "state", "reason"),
    [
        ([], "queued", "the operator has not seen it yet"),
        ([condition("Created", "MPIJob ours/demo is created.")], "queued", "MPIJob ours/demo is created."),
        ([condition("Created"), condition("Running")], "running", ""),
        ([condition("Created"), condition("Running", status="False"), condition("Succeeded")], "finished", ""),
        ([condition("Created"), condition("Failed", "Job has\nreached the deadline")], "failed",
         "Job has reached the deadline"),
        ([condition("Created"), condition("Suspended", "by Kueue")], "queued", "by Kueue"),
    ],
)  # fmt: skip
def test_states(tmp_path, kubectl, conditions, state, reason):
    out = json.dumps({"kind": "MPIJob", "status": {"conditions": conditions}} if conditions else {"kind": "MPIJob"})
    kubectl.add("kubectl", Answer(to=["get", "mpijob", "demo", "--output", "json"], out=out))
    found = kubernetes.state(job_record("kubernetes"), tmp_path)
    assert (found.state, found.reason) == (state, reason)


def test_a_deleted_job_is_unknown(tmp_path, kubectl):
    assert kubernetes.state(job_record("kubernetes"), tmp_path).state == "unknown"


def test_logs_and_cancel(tmp_path, kubectl):
    selector = "training.kubeflow.org/job-name=demo,training.kubeflow.org/job-role=launcher"
    shown = kubernetes.logs(job_record("kubernetes"), tmp_path)
    assert shown == [*KUBECTL, "logs", "--selector", selector, "--tail", "-1"]
    kubernetes.cancel(job_record(own_site(tmp_path)), tmp_path)
    assert kubectl.calls() == [["kubectl", "--namespace=ours", "delete", "mpijob", "demo", "--wait=false"]]


@pytest.mark.parametrize(
    ("phase", "verbs"),
    [
        ("", ["get", "create", "wait"]), ("Running", ["get", "wait"]), ("Pending", ["get", "wait"]),
        ("Succeeded", ["get", "delete", "create", "wait"]), ("Failed", ["get", "delete", "create", "wait"]),
    ],
)  # fmt: skip
def test_the_shell_is_that_of_a_pod_that_sees_the_volume(tmp_path, kubectl, phase, verbs):
    kubectl.add("kubectl", Answer(to=["get", "pod", "demo-files"], out=phase))
    words = kubernetes.shell(job_record("kubernetes"), tmp_path)
    assert words == [*KUBECTL, "exec", "--stdin", "demo-files", "--"]
    assert [call[2] for call in kubectl.calls()] == verbs


KUBECTL_EXEC = """#!/bin/sh
# `get` reports that the pod runs; `exec` runs what follows after "--" in it.
case "$2" in
get) echo Running ;;
exec) while [ "$1" != "--" ]; do shift; done; shift; exec "$@" ;;
esac
"""


def test_run_folders_are_fetched_through_that_pod(tmp_path, monkeypatch):
    (tmp_path / "programs").mkdir()
    kubectl = tmp_path / "programs" / "kubectl"
    kubectl.write_text(KUBECTL_EXEC)
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{kubectl.parent}:{os.environ['PATH']}")
    make_run(tmp_path / "volume" / "runs" / "demo")
    site = own_site(tmp_path, project_folder=str(tmp_path), python="/usr/bin/python")
    job = job_record(site, runs=[str(tmp_path / "volume" / "runs" / "demo")])
    (tmp_path / "jobs" / "demo").mkdir(parents=True)
    write_record(tmp_path / "jobs" / "demo", job)
    words = ["fetch", "demo", "--jobs-folder", str(tmp_path / "jobs"), "--folder", str(tmp_path / "here")]
    assert launch.main(words) == 0
    assert read_run(tmp_path / "here" / "demo").state == "finished"
