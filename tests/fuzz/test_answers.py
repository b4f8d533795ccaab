"""Damaged and hostile answers of Slurm, kubectl, SkyPilot and other machines: one line, or a status."""

import io
import json
import os
import subprocess
import tarfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fuzzing import MOST_SECONDS, ODD_TEXT, try_changes

from common.errors import UserError
from launch.jobs.job import JobRecord, JobStatus
from launch.jobs.schedulers import kubernetes, skypilot, slurm
from launch.starting import launchers
from launch.transfer.remote_files import RemoteFolder

Give = Callable[[bytes], None]


def record(site, identifier="demo"):
    return JobRecord(
        name="demo", site=site, id=identifier, submitted_at="2026-01-01T00:00:00+00:00", command=[], size=1,
        repeats=1, runs=[],
    )  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A program whose answer is read.

    Attributes:
        answer: one that can be read.
        patched: module and name of the function that runs it; `as_run` makes that function's answer of bytes.
    """

    name: str
    answer: str
    patched: tuple[Any, str]
    as_run: Callable[[bytes], Any]
    read: Callable[[Path], Any]


def done(out):
    return subprocess.CompletedProcess([], 0, out.decode(errors="replace"), "")


def text(out):
    return out.decode(errors="replace")


CONDITIONS = [{"type": "Failed", "status": "True", "message": "no\nnode"}, {"type": "Running", "status": "False"}]
SKY_JOB = {"job_id": 3, "job_name": "demo", "status": "RECOVERING", "details": "taken\naway"}
MANAGED = f"{skypilot.MANAGED}demo"
PROGRAMS = [
    Program(
        "squeue",
        "RUNNING   0   None\nFAILED   256   NonZeroExitCode\n",
        (slurm, "_slurm"),
        done,
        lambda _: slurm._in_queue("7"),
    ),
    Program("sacct", "CANCELLED by 0|0:15\nFAILED|1:0\n", (slurm, "_slurm"), done, lambda _: slurm._in_accounts("7")),
    Program("sbatch", "7;cluster\n", (slurm, "_slurm"), done, lambda folder: slurm.submit(None, folder)),
    Program(
        "srun", "0: node1\n1: node1\n2: node2\n", (launchers, "output_of"), text, lambda _: launchers.slurm_hosts()
    ),
    Program(
        "kubectl",
        json.dumps({"kind": "MPIJob", "status": {"conditions": CONDITIONS}}),
        (kubernetes, "run_program"),
        text,
        lambda folder: kubernetes.state(record("kubernetes"), folder),
    ),
    Program(
        "sky queue",
        json.dumps({"demo": [SKY_JOB]}),
        (skypilot, "run_program"),
        text,
        lambda folder: skypilot.state(record("aws"), folder),
    ),
    Program(
        "sky jobs queue",
        "[INFO] waking\n" + json.dumps([SKY_JOB]),
        (skypilot, "run_program"),
        text,
        lambda folder: skypilot.state(record("aws", MANAGED), folder),
    ),
    Program(
        "sky status",
        json.dumps([{"name": "demo", "status": "UP"}]),
        (skypilot, "run_program"),
        text,
        lambda folder: skypilot.shell(record("aws"), folder),
    ),
]


def tar_of(name):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
    return packed.getvalue()


def receive(folder):
    came = []
    RemoteFolder([], "").receive(
        ["runs/a"], into=lambda name: folder / "received", came=lambda *file: came.extend(file), advance=lambda _: None
    )
    return came


def from_there(out):
    @contextmanager
    def running(self, script):
        yield io.BytesIO(out), list

    return running


REMOTE = [
    ("find", b"f 3 17 1700000000.5 runs/a\0l 3 18 1.0 runs/b\0", lambda _: RemoteFolder([], "").entries(["runs"])),
    ("sha256sum", b"00ff  runs/a\n\\00aa *runs\\n/b\n", lambda _: RemoteFolder([], "").checksums(["runs/a"])),
    ("tar", tar_of("runs/a"), receive),
]


def check_answer(read, folder):
    began = time.monotonic()
    try:
        found = read(folder)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        statuses = found if isinstance(found, list) else [found]
        assert not [one for one in statuses if isinstance(one, JobStatus) and "\n" in one.reason]
    assert time.monotonic() - began < MOST_SECONDS
    assert not [path for path in folder.iterdir() if path.name != "received"]


@pytest.mark.ci
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_damaged_answer_is_one_line_or_a_status(program, tmp_path, monkeypatch):
    def one(content):
        answer = program.as_run(content)
        monkeypatch.setattr(*program.patched, lambda *_, **__: answer)
        check_answer(program.read, tmp_path)

    one(program.answer.encode())
    assert program.read(tmp_path)
    try_changes(program.answer.encode(), one)
    for content in ODD_TEXT:
        one(content)


@pytest.mark.ci
@pytest.mark.parametrize(("name", "answer", "read"), REMOTE, ids=[name for name, _, _ in REMOTE])
def test_a_damaged_answer_of_another_machine_is_one_line(name, answer, read, tmp_path, monkeypatch):
    def one(content):
        monkeypatch.setattr(RemoteFolder, "_running", from_there(content))
        check_answer(read, tmp_path)

    one(answer)
    assert read(tmp_path)
    try_changes(answer, one)
    for content in ODD_TEXT:
        one(content)


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "runs/b", "runs/a/../../b"])
def test_a_file_that_was_not_asked_for_is_not_written(name, tmp_path, monkeypatch):
    monkeypatch.setattr(RemoteFolder, "_running", from_there(tar_of(name)))
    with pytest.raises(UserError, match="what came was not asked for"):
        receive(tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_answer_that_is_no_text_is_one_line(tmp_path, monkeypatch):
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nprintf '\\377\\000\\n'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UserError, match=r"^the answer of squeue is not as expected\. Received: [^\n]+$"):
        slurm._in_queue("7")
