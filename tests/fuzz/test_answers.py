"""Damaged and hostile answers of Slurm, kubectl, SkyPilot and other machines: one line, or a status."""

import io
import json
import os
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fuzzing import one_line, try_damaged
from made_programs import add_script
from readers import tar_of
from sites_and_jobs import job_record

from common.errors import UserError
from launch.jobs.job import JobStatus
from launch.jobs.schedulers import kubernetes, skypilot, slurm
from launch.starting import launchers
from launch.transfer.remote_files import RemoteFolder


@dataclass(frozen=True)
class Program:
    """A program whose answer is read.

    Attributes:
        answer: one that can be read.
        patched: module or class and name of the function that runs it; `as_run` makes its answer of bytes.
        read: function of a folder.
    """

    name: str
    answer: bytes
    patched: tuple[Any, str]
    as_run: Callable[[bytes], Any]
    read: Callable[[Path], Any]


def text(out):
    return out.decode(errors="replace")


def done(out):
    return subprocess.CompletedProcess([], 0, text(out), "")


def there(out):
    """Return what runs a program on another machine."""
    return nullcontext((io.BytesIO(out), list))


def as_json(value):
    return json.dumps(value).encode()


def receive(folder):
    came = []
    RemoteFolder([], "").receive(
        ["runs/a"], into=lambda name: folder / "received", came=lambda *file: came.extend(file), advance=lambda _: None
    )
    return came


CONDITIONS = [{"type": "Failed", "status": "True", "message": "no\nnode"}, {"type": "Running", "status": "False"}]
POD_JOB = {"kind": "MPIJob", "status": {"conditions": CONDITIONS}}
SKY_JOB = {"job_id": 3, "job_name": "demo", "status": "RECOVERING", "details": "taken\naway"}
UP = as_json([{"name": "demo", "status": "UP"}])
SQUEUE, SKY = b"RUNNING   0   None\nFAILED   256   NonZeroExitCode\n", (skypilot, "run_program")
SLURM, KUBECTL, ELSEWHERE = (slurm, "_slurm"), (kubernetes, "run_program"), (RemoteFolder, "_running")
AWS, MANAGED = job_record("aws"), job_record("aws", id=f"{skypilot.MANAGED}demo")
FIND, SUMS = b"f 3 17 1700000000.5 runs/a\0l 3 18 1.0 runs/b\0", b"00ff  runs/a\n\\00aa *runs\\n/b\n"
PROGRAMS = [
    Program("squeue", SQUEUE, SLURM, done, lambda _: slurm._in_queue("7")),
    Program("sacct", b"CANCELLED by 0|0:15\nFAILED|1:0\n", SLURM, done, lambda _: slurm._in_accounts("7")),
    Program("sbatch", b"7;cluster\n", SLURM, done, lambda folder: slurm.submit(None, folder, keep=print)),
    Program("srun", b"0: n1\n1: n1\n2: n2\n", (launchers, "output_of"), text, lambda _: launchers.slurm_hosts()),
    Program(
        "kubectl", as_json(POD_JOB), KUBECTL, text, lambda folder: kubernetes.state(job_record("kubernetes"), folder)
    ),
    Program("sky queue", as_json({"demo": [SKY_JOB]}), SKY, text, lambda folder: skypilot.state(AWS, folder)),
    Program("sky jobs", b"[INFO] up\n" + as_json([SKY_JOB]), SKY, text, lambda folder: skypilot.state(MANAGED, folder)),
    Program("sky status", UP, SKY, text, lambda folder: skypilot.shell(AWS, folder)),
    Program("find", FIND, ELSEWHERE, there, lambda _: RemoteFolder([], "").entries(["runs"])),
    Program("sha256sum", SUMS, ELSEWHERE, there, lambda _: RemoteFolder([], "").checksums(["runs/a"])),
    Program("tar", tar_of({"runs/a": b"abc"}, mode="w"), ELSEWHERE, there, receive),
]


@pytest.mark.ci
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_damaged_answer_is_one_line_or_a_status(program, tmp_path, monkeypatch):
    def read(content):
        answer = []
        monkeypatch.setattr(*program.patched, lambda *_, **__: program.as_run(content))
        with one_line():
            answer = program.read(tmp_path)
        statuses = answer if isinstance(answer, list) else [answer]
        assert not [status for status in statuses if isinstance(status, JobStatus) and "\n" in status.reason]
        assert not [path for path in tmp_path.iterdir() if path.name != "received"]
        return answer

    assert read(program.answer)
    try_damaged(program.answer, read)


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "runs/b", "runs/a/../../b"])
def test_a_file_that_was_not_asked_for_is_not_written(name, tmp_path, monkeypatch):
    monkeypatch.setattr(*ELSEWHERE, lambda *_: there(tar_of({name: b"abc"}, mode="w")))
    with pytest.raises(UserError, match="what came was not asked for"):
        receive(tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_answer_that_is_no_text_is_one_line(tmp_path, monkeypatch):
    add_script(tmp_path / "squeue", "printf '\\377\\000\\n'")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UserError, match=r"^the answer of squeue is not as expected\. Received: [^\n]+$"):
        slurm._in_queue("7")
