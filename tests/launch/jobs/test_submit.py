"""Jobs: what a dry run shows of them, and jobs on this machine from submission to their end.

What is refused before is in `tests/refusals/`, and `test_schedulers.py` has other places.
"""

import re
import shlex
import tomllib
from pathlib import Path

import psutil
import pytest
from made_programs import Answer, MadePrograms
from processes import call
from sites_and_jobs import ROOT, Desk, own_site
from waiting import wait_until

from launch import __main__ as launch

SHOWN = tomllib.loads(Path(__file__).with_name("dry_runs.toml").read_text())["shown"]
TRAINER = "torch_impl/train.py"
SMALL = ["--model", "mlp", "--epochs", "1", "--max-steps", "2", "--device", "cpu", "--dataset",
         "synthetic:1200x28x28x1x10"]  # fmt: skip
PATIENCE_SECONDS = 240.0


@pytest.mark.parametrize("row", SHOWN, ids=[row["id"] for row in SHOWN])
def test_a_dry_run_shows_the_script_and_what_it_costs(row, tmp_path, capsys, monkeypatch):
    """Wherever it is submitted, and no secret of the shell."""
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "HOROVOD_TWINS_ANYTHING"):
        monkeypatch.setenv(name, "swordfish")
    monkeypatch.chdir(tmp_path)
    assert launch.main(["submit", "--dry-run", *shlex.split(row["command"])]) == 0
    shown = capsys.readouterr()
    assert all(re.search(pattern, shown.out) for pattern in row.get("script", ())), shown.out
    assert all(part in shown.err for part in row.get("announced", ())), shown.err
    assert not any(part in shown.out + shown.err for part in ["swordfish", *row.get("absent", ())])
    assert not list(tmp_path.iterdir())


def test_a_price_of_another_region_is_said_to_be_one(tmp_path):
    elsewhere = tmp_path / "elsewhere.toml"
    text = (ROOT / "launch" / "sites" / "gcp.toml").read_text()
    elsewhere.write_text(text.replace("us-central1", "europe-west4"))
    words = ["--site", str(elsewhere), "--gpus-per-node", "1", "--dry-run", "--", TRAINER]
    price = "us-central1, 2026-08-20; the region is europe-west4: its price may differ"
    Desk(tmp_path).check("submit", *words, shows=price)


def test_machines_that_are_retired_are_not_rented(tmp_path):
    retired = "machine has been retired since 2025-12-31. Received: aws-p3-8xlarge. Use its successor, aws-g5-12xlarge"
    words = ["--site", "aws-p3", "--gpus-per-node", "4", "--", TRAINER]
    Desk(tmp_path).check("submit", *words, code=2, shows=retired)
    assert not (tmp_path / "jobs").exists()


def test_jobs_that_are_not_there(tmp_path):
    desk = Desk(tmp_path)
    desk.check("status", shows="no jobs in")
    desk.job("torn").mkdir(parents=True)
    (desk.job("torn") / "job.json").write_text("{")
    desk.check("status", shows="job.json is not the record of a job: ")


class Here(Desk):
    """Where jobs on this machine are submitted."""

    def site(self, **values):
        """Write the site of this machine with runs in the folder."""
        return own_site(self.folder, runs_folder=str(self.folder / "runs"), **values)

    def submit(self, name, *words, site=None, **expected):
        """Submit a trainer; see `call`."""
        words = ["--site", site or self.site(), "--name", name, "--no-preflight", *words]
        self.check("submit", *words, "--", TRAINER, *SMALL, **expected)

    def ended(self, name):
        """Wait for the end of a job; return the line of its status."""

        def status():
            return self.check("status", name, code=None).splitlines()[-1]

        wait_until(lambda: " running " not in status(), within_seconds=PATIENCE_SECONDS, shown=status)
        return status()


@pytest.fixture
def here(tmp_path):
    """A folder whose jobs are ended with the test."""
    here = Here(tmp_path)
    yield here
    for job in (tmp_path / "jobs").glob("*/job.json"):
        here.check("cancel", job.parent.name, code=None)


@pytest.mark.ranks
@pytest.mark.ci
def test_a_job_runs_here_to_its_end_in_the_container_of_its_site(here, monkeypatch):
    image = str(here.folder / "twins.sif")
    programs = MadePrograms(here.folder / "programs")
    programs.add("apptainer", Answer(then=f'while [ "$1" != "{image}" ]; do shift; done; shift; exec "$@"'))
    programs.first_on_path(monkeypatch)
    binds = ["/gpfs", "/scratch/a b:/scratch"]
    site = here.site(container={"image": image, "folder": str(ROOT), "gpu": True, "binds": binds})
    here.submit("inside", "--ranks-per-node", "2", site=site)
    assert " finished " in here.ended("inside"), here.check("logs", "inside")
    record = here.run("inside").record
    assert (record.world.size, record.site, record.status.state) == (2, "local", "finished")
    here.check("logs", "inside", shows="run folder:")
    here.submit("inside", site=site, code=2, shows="there is a job of this name")
    starts = [" ".join(words) for words in programs.calls()]
    inside = f"exec --nv --bind /gpfs --bind /scratch/a b:/scratch {image} python {ROOT}/{TRAINER} --model mlp "
    assert len(starts) == 2 and all(start.startswith(f"apptainer {inside}") for start in starts)
    plan = ["experiment", "run", "smoke", "--site", site, "--runs-folder", str(here.folder / "runs"), "--dry-run"]
    commands = [line for line in call(launch.main, *plan).splitlines() if "_impl/train.py" in line]
    assert commands and all(f"{image} python {ROOT}/" in line for line in commands)
    assert any(line.startswith("apptainer exec") for line in commands)  # those without launcher


def trainer(here, then):
    """Return a site whose launcher is a script, in place of a trainer."""
    programs = MadePrograms(here.folder / "programs")
    programs.add("horovodrun", Answer(then=then))
    return here.site(python=str(programs.folder / "python"))


def test_a_failing_job_is_reported_as_failed(here):
    look = ["python", "-m", "launch", "status", "bad", "--jobs-folder", str(here.folder / "jobs")]
    here.submit("bad", site=trainer(here, "exit 2"), shows=f"follow it with: {shlex.join(look)}\n")
    line = here.ended("bad")
    assert " failed " in line and "exit code 2" in line
    here.check("status", "bad", code=1)
    (here.job("bad") / "exit-code").write_text("124\n")  # as `timeout` ends
    here.check("status", "bad", code=1, shows="the time limit was reached: give more --minutes")


def test_a_job_can_be_ended(here, monkeypatch):
    """What trainers do then, on this host and on others, is in `tests/launch/starting/test_hosts.py`."""
    begun, ended = here.folder / "begun", here.folder / "ended"
    endless = f'trap "touch {ended}; exit 130" TERM; touch {begun}; while :; do sleep 0.05; done'
    here.submit("long", site=trainer(here, endless))
    wait_until(begun.exists)
    # The time of day is corrected by a second, and with it when processes began.
    began = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: began(self) + 1)
    here.check("status", "long", shows=" running ")
    here.check("cancel", "long")
    assert " cancelled " in here.ended("long")
    wait_until(ended.exists)
    here.check("cancel", "long", code=2, shows="the job does not run any more")


LAYERS = ["--model", "mlp", "--dataset", "synthetic:600x28x28x1x10", "--strategy", "layers", "--stages", "2"]
CELL = """
[[cells]]
framework = "torch"
model = "mlp"
dataset = "synthetic:600x28x28x1x10"
strategy = "layers"
stages = 2
lr_scaling = "none"
np = 2
"""


@pytest.mark.parametrize(
    "command",
    [
        ["submit", "--nodes", "2", "--no-preflight", "--", TRAINER, *LAYERS, "--lr-scaling", "none"],
        ["train", "--np", "2", "--", *LAYERS, "--lr-scaling", "none"],
        ["experiment", "run", "made.toml"],
    ],
    ids=lambda words: words[0],
)
def test_ranks_that_only_mpi_connects_are_started_by_it_whatever_the_site_says(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.toml").write_text(CELL)
    site = own_site(tmp_path, "hosts", controller="gloo", hosts={"names": ["a:2", "b:2"]})
    at = command.index("--") if "--" in command else len(command)
    assert launch.main([*command[:at], "--dry-run", "--site", site, *command[at:]]) == 0
    (start,) = [line for line in capsys.readouterr().out.splitlines() if "horovodrun " in line]
    assert " --mpi " in start and "--gloo" not in start
