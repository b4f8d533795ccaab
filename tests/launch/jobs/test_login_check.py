"""Submission to Slurm: what the job's preflight finds on the login node is said before the job waits.

Slurm and the preflight are programs made for the test here; `test_slurm.py` has real ones.
"""

import json
import os

import pytest
import sites_and_jobs
from made_programs import Answer, MadePrograms
from sites_and_jobs import own_site


def found(**checks):
    """Return what a preflight prints: name -> result and line."""
    lines = [{"check": name, "result": result, "lines": [text]} for name, (result, text) in checks.items()]
    return "hello from a module\n" + json.dumps({"checks": lines}, indent=1) + "\n"


PASSED = {"software": ("ok", "as here"), "gpus": ("not checked", "only in the job")}


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A login node: `sbatch`, and the Python that a job would have, whose preflight passes."""
    made = MadePrograms(tmp_path / "project" / "bin")
    made.add("sbatch", Answer(out="7\n"))
    made.add("python", Answer(out=found(**PASSED)))
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "3")  # also within an allocation
    return made


def submit(folder, *words, setup="true"):
    project = folder / "project"
    site = own_site(
        folder, "slurm", python=str(project / "bin/python"), project_folder=str(project),
        setup=["export FIRST='set up'", setup], environment={"SECOND": "$FIRST"},
    )  # fmt: skip
    words = ["--site", site, "--name", "trial", *words, "--", "torch_impl/train.py", "--threads", "3"]
    return sites_and_jobs.submit(folder, *words)


def test_the_jobs_preflight_is_made_in_its_shell(tmp_path, programs, capsys):
    assert submit(tmp_path, "--gpus-per-node", "2") == 0
    look, sent = programs.records()
    what = ["--framework", "torch", "--device", "gpu", "--dataset", "mnist", "--threads", "3", "--memory-mb", "4"]
    site = ["--site", str(tmp_path / "ours.toml")]
    assert look["words"] == ["python", "-m", "launch", "preflight", "--np", "2", *what, *site, "--format", "json"]
    assert look["folder"] == str(tmp_path / "project")
    variables = look["variables"]
    assert (variables["FIRST"], variables["SECOND"]) == ("set up", "$FIRST") and "SLURM_JOB_ID" not in variables
    assert sent["words"][0] == "sbatch"
    assert "on this login node 1 check passed; left to the job: gpus\n" in capsys.readouterr().err


def test_what_fails_there_is_not_submitted(tmp_path, programs, capsys):
    failures = {"horovod": ("failed", "n1: no NCCL. Compile it"), "data": ("failed", "no data. Bring it")}
    programs.add("python", Answer(out=found(**PASSED, **failures), code=2))
    assert submit(tmp_path) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "error: the job would fail, as this login node shows: horovod: n1: no NCCL. Compile it (1 more: " in line
    assert f"Received: --site {tmp_path}/ours.toml. Correct this here" in line
    assert line.endswith("; --no-preflight submits without this check")
    assert [words[0] for words in programs.calls()] == ["python"] and not (tmp_path / "jobs").exists()
    assert submit(tmp_path, "--no-preflight") == 0
    assert [words[0] for words in programs.calls()] == ["python", "sbatch"]


def test_set_up_lines_that_fail_are_reported(tmp_path, programs, capsys):
    assert submit(tmp_path, setup="echo no such module >&2; exit 3") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"the job's shell fails on this login node: no such module. Received: {tmp_path}/ours.toml." in line
    assert programs.calls() == [] and not (tmp_path / "jobs").exists()
