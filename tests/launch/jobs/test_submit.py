"""Jobs: what a dry run shows of them, and jobs on this machine from submission to their end.

What is refused before is in `tests/refusals/`, and `test_schedulers.py` has other places.
"""

import functools
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import sites_and_jobs
from made_programs import Answer, MadePrograms
from sites_and_jobs import ROOT
from waiting import wait_until

from common.config import parse_command_line
from common.run_folder.records import read_run
from launch import __main__ as launch

SHOWN = tomllib.loads(Path(__file__).with_name("dry_runs.toml").read_text())["shown"]
TRAINER = "torch_impl/train.py"
SMALL = ["--model", "mlp", "--epochs", "1", "--max-steps", "2", "--device", "cpu"]
DATA = ["--dataset", "synthetic:1200x28x28x1x10"]
PATIENCE_SECONDS = 240.0


@pytest.fixture(scope="module", autouse=True)
def cells_are_parsed_once():
    """Most tests plan the 30 cells of one experiment; to parse one takes 0.1 s."""

    @functools.cache
    def parsed(arguments, program):
        return parse_command_line(arguments, program=program)

    def parse(arguments, *, program):
        return parsed(tuple(arguments), program)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("launch.experiments.plan.parse_command_line", parse)
        yield


@pytest.mark.parametrize("row", SHOWN, ids=[row["id"] for row in SHOWN])
def test_a_dry_run_shows_the_script_and_what_it_costs(row, tmp_path, capsys, monkeypatch):
    """Wherever it is submitted, and no secret of the shell."""
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "HOROVOD_TWINS_ANYTHING"):
        monkeypatch.setenv(name, "swordfish")
    monkeypatch.chdir(tmp_path)
    assert launch.main(["submit", "--dry-run", *row["command"].split()]) == 0
    shown = capsys.readouterr()
    assert all(re.search(pattern, shown.out) for pattern in row.get("script", ())), shown.out
    assert all(part in shown.err for part in row.get("announced", ())), shown.err
    assert not any(part in shown.out + shown.err for part in ["swordfish", *row.get("absent", ())])
    assert not list(tmp_path.iterdir())


def test_a_price_of_another_region_is_said_to_be_one(tmp_path, capsys):
    elsewhere = tmp_path / "elsewhere.toml"
    text = (ROOT / "launch" / "sites" / "gcp.toml").read_text()
    elsewhere.write_text(text.replace("us-central1", "europe-west4"))
    words = ["--site", str(elsewhere), "--gpus-per-node", "1", "--dry-run", "--", TRAINER]
    assert sites_and_jobs.submit(tmp_path, *words) == 0
    assert "us-central1, 2026-08-20; the region is europe-west4: its price may differ" in capsys.readouterr().err


def test_machines_that_are_retired_are_not_rented(tmp_path, capsys):
    assert sites_and_jobs.submit(tmp_path, "--site", "aws-p3", "--gpus-per-node", "4", "--", TRAINER) == 2
    retired = "machine has been retired since 2025-12-31. Received: aws-p3-8xlarge. Use its successor, aws-g5-12xlarge"
    assert retired in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "jobs").exists()


@dataclass(frozen=True)
class Desk:
    """Where jobs on this machine are submitted."""

    folder: Path
    capsys: pytest.CaptureFixture

    def site(self, **values):
        """Write the site of this machine with runs in the folder."""
        return sites_and_jobs.own_site(self.folder, runs_folder=str(self.folder / "runs"), **values)

    def submit(self, name, *words, arguments=(), site=None):
        """Submit a trainer; return the exit code."""
        words = ["--site", site or self.site(), "--name", name, "--no-preflight", *words]
        return sites_and_jobs.submit(self.folder, *words, "--", TRAINER, *SMALL, *DATA, *arguments)

    def of_job(self, command, *names):
        """Give a command about jobs; return its exit code and what it printed."""
        self.capsys.readouterr()
        code = launch.main([command, *names, "--jobs-folder", str(self.folder / "jobs")])
        printed = self.capsys.readouterr()
        return code, printed.out + printed.err

    def ended(self, name):
        """Wait for the end of a job; return the line of its status."""

        def status():
            return self.of_job("status", name)[1].splitlines()[-1]

        wait_until(lambda: " running " not in status(), within_seconds=PATIENCE_SECONDS, shown=status)
        return status()

    def run(self, name):
        """Return a run that a job has written."""
        return read_run(self.folder / "runs" / name)


@pytest.fixture
def desk(tmp_path, capsys):
    """A folder whose jobs are ended with the test."""
    desk = Desk(tmp_path, capsys)
    yield desk
    for job in (tmp_path / "jobs").glob("*/job.json"):
        desk.of_job("cancel", job.parent.name)


@pytest.mark.ranks
@pytest.mark.ci
def test_a_job_of_two_repeats_runs_here_to_its_end(desk):
    words = ["--ranks-per-node", "2", "--repeats", "2"]
    assert desk.submit("pair", *words, arguments=["--seed", "5"]) == 0
    assert " finished " in desk.ended("pair"), desk.of_job("logs", "pair")
    runs = [desk.run(name) for name in ("pair-r1", "pair-r2")]
    assert [run.record.config.training.seed for run in runs] == [5, 6]
    assert {run.record.site for run in runs} == {"local"} and {run.state for run in runs} == {"finished"}
    code, printed = desk.of_job("logs", "pair")
    assert code == 0 and "run folder:" in printed
    assert desk.submit("pair", *words) == 2
    assert "there is a job of this name" in desk.capsys.readouterr().err


@pytest.mark.ranks
@pytest.mark.ci
def test_ranks_run_in_the_container_of_a_site(desk, monkeypatch):
    image = str(desk.folder / "twins.sif")
    programs = MadePrograms(desk.folder / "programs")
    programs.add("apptainer", Answer(then=f'while [ "$1" != "{image}" ]; do shift; done; shift; exec "$@"'))
    programs.first_on_path(monkeypatch)
    binds = ["/gpfs", "/scratch/a b:/scratch"]
    site = desk.site(container={"image": image, "folder": str(ROOT), "gpu": True, "binds": binds})
    assert desk.submit("inside", "--ranks-per-node", "2", site=site) == 0
    assert " finished " in desk.ended("inside"), desk.of_job("logs", "inside")
    assert desk.run("inside").record.world.size == 2
    starts = [" ".join(words) for words in programs.calls()]
    inside = f"exec --nv --bind /gpfs --bind /scratch/a b:/scratch {image} python {ROOT}/{TRAINER} --model mlp "
    assert len(starts) == 2 and all(start.startswith(f"apptainer {inside}") for start in starts)
    plan = ["experiment", "run", "smoke", "--site", site, "--runs-folder", str(desk.folder / "runs"), "--dry-run"]
    assert launch.main(plan) == 0
    commands = [line for line in desk.capsys.readouterr().out.splitlines() if "_impl/train.py" in line]
    assert len(commands) == 32 and all(f"{image} python {ROOT}/" in line for line in commands)
    assert sum(line.startswith("apptainer exec") for line in commands) == 12  # those without launcher


@pytest.mark.ranks
@pytest.mark.ci
def test_a_failing_job_is_reported_as_failed(desk):
    (desk.folder / "runs/bad").mkdir(parents=True)  # a run of this name, which is not overwritten
    assert desk.submit("bad") == 0
    look = ["python", "-m", "launch", "status", "bad", "--jobs-folder", str(desk.folder / "jobs")]
    assert desk.capsys.readouterr().out.endswith(f"follow it with: {shlex.join(look)}\n")
    line = desk.ended("bad")
    assert " failed " in line and "exit code 2" in line
    assert desk.of_job("status", "bad")[0] == 1
    (desk.folder / "jobs/bad/exit-code").write_text("124\n")  # as `timeout` ends
    code, printed = desk.of_job("status", "bad")
    assert code == 1 and "the time limit was reached: give more --minutes" in printed


@pytest.mark.ranks
@pytest.mark.ci
def test_a_job_can_be_ended(desk):
    assert desk.submit("long", arguments=["--epochs", "100000", "--max-steps", "100000000"]) == 0
    wait_until((desk.folder / "runs/long/run.json").exists, within_seconds=PATIENCE_SECONDS)
    assert desk.of_job("cancel", "long")[0] == 0
    assert " cancelled " in desk.ended("long")
    wait_until(lambda: desk.run("long").state != "running", within_seconds=PATIENCE_SECONDS)
    assert desk.run("long").state == "interrupted"
    code, printed = desk.of_job("cancel", "long")
    assert code == 2 and "the job does not run any more" in printed


def test_jobs_that_are_not_there(desk):
    assert desk.of_job("status")[0] == 0 and "no jobs in" in desk.of_job("status")[1]
    (desk.folder / "jobs/torn").mkdir(parents=True)
    (desk.folder / "jobs/torn/job.json").write_text("{")
    code, printed = desk.of_job("status")
    assert code == 0 and "unknown  the job's record is damaged" in printed
