"""Starts on rented machines that fail, hang or are interrupted: what may run, and cost, is never lost from sight."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import pytest
import sites_and_jobs
from made_programs import Answer, MadePrograms, ended_with_the_test
from waiting import wait_until

from launch.__main__ import main

TRAINER = ["--", "torch_impl/train.py", "--epochs", "1"]


@dataclass(frozen=True)
class Cloud:
    """A program `sky` or `kubectl`, made for the test, and a site that it serves."""

    site: list[str]
    programs: MadePrograms
    program: str
    start: list[str]  # words of the call that starts machines or pods
    look: Answer  # what is there
    nothing: list[Answer]  # nothing is there
    end: list[str]  # the call that ends it


@pytest.fixture(params=["sky", "kubectl"])
def cloud(request, tmp_path, monkeypatch):
    programs = MadePrograms(tmp_path / "programs")
    monkeypatch.setenv("PATH", f"{programs.folder}:{os.environ['PATH']}")
    if request.param == "sky":
        return Cloud(
            ["--site", "aws-g4dn"], programs, "sky", ["launch"],
            Answer(to=["status"], out=json.dumps([{"name": "demo", "status": "INIT"}])),
            [Answer(to=["status"], out="[]"), Answer(to=["queue"], out="{}")],
            ["sky", "stop", "--yes", "demo"],
        )  # fmt: skip
    options = {"image": "ours:1", "volume_claim": "ours", "volume_path": "/data", "namespace": "ours"}
    site = sites_and_jobs.own_site(
        tmp_path,
        "kubernetes",
        kubernetes=options,
        project_folder="/twins",
        python="/usr/bin/python3",
        runs_folder="/data/runs",
    )
    return Cloud(
        ["--site", site], programs, "kubectl", ["create"], Answer(to=["get", "mpijob"], out="{}"),
        [Answer(to=["get", "mpijob"])], ["kubectl", "--namespace=ours", "delete", "mpijob", "demo", "--wait=false"],
    )  # fmt: skip


def submit(folder, cloud):
    return main(["submit", "--jobs-folder", str(folder / "jobs"), "--name", "demo", *cloud.site, *TRAINER])


def test_a_start_that_fails_with_something_running_is_kept_and_can_be_ended(cloud, tmp_path, capsys):
    claim = Answer(to=["get", "persistentvolumeclaim"], out="claim")
    cloud.programs.add(cloud.program, Answer(to=cloud.start, code=1, err="no capacity\n"), claim, cloud.look)
    assert submit(tmp_path, cloud) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    ends = f"python -m launch cancel demo --jobs-folder {tmp_path}/jobs"
    assert " failed. Received: " in error and error.endswith(f"End what runs with: {ends}")
    main(["status", "demo", "--jobs-folder", str(tmp_path / "jobs")])
    assert " gone " not in capsys.readouterr().out.splitlines()[-1]
    assert main(["cancel", "demo", "--jobs-folder", str(tmp_path / "jobs")]) == 0
    assert cloud.end in cloud.programs.calls()


def test_a_start_that_fails_with_nothing_running_leaves_no_job(cloud, tmp_path, capsys):
    claim = Answer(to=["get", "persistentvolumeclaim"], out="claim")
    cloud.programs.add(cloud.program, Answer(to=cloud.start, code=1), claim, *cloud.nothing)
    assert submit(tmp_path, cloud) == 2
    assert list((tmp_path / "jobs").iterdir()) == []  # so that the same command can be given again


def test_where_the_cloud_cannot_be_asked_the_job_is_kept(cloud, tmp_path):
    claim = Answer(to=["get", "persistentvolumeclaim"], out="claim")
    unreachable = Answer(to=cloud.look.to, code=1, err="no route to host\n")
    cloud.programs.add(cloud.program, Answer(to=cloud.start, code=1), claim, unreachable)
    assert submit(tmp_path, cloud) == 2
    assert json.loads((tmp_path / "jobs/demo/job.json").read_text())["name"] == "demo"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_or_killed_start_is_kept(cloud, tmp_path, number):
    """A start that hangs is interrupted by its user."""
    claim = Answer(to=["get", "persistentvolumeclaim"], out="claim")
    cloud.programs.add(cloud.program, Answer(to=cloud.start, seconds=600), claim, cloud.look)
    command = [sys.executable, "-m", "launch", "submit", "--jobs-folder", str(tmp_path / "jobs"), "--name", "demo"]
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen([*command, *cloud.site, *TRAINER], stderr=errors, start_new_session=True)
    with ended_with_the_test(process):
        wait_until(lambda: any(set(cloud.start) <= set(call) for call in cloud.programs.calls()))
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        process.wait(timeout=60)
    assert json.loads((tmp_path / "jobs/demo/job.json").read_text())["name"] == "demo"
    if number == signal.SIGINT:
        assert "python -m launch cancel demo" in (tmp_path / "errors").read_text()
