"""Jobs: what is submitted, what is refused before, and a job on this machine from submission to its end."""

import functools
import os
import re
import shlex
import subprocess

import psutil
import pytest
import sites_and_jobs
from sites_and_jobs import ROOT, submit
from waiting import wait_until

from common.config import parse_command_line
from common.run_folder.records import read_run
from launch import __main__ as launch

SMALL = [
    "--model",
    "mlp",
    "--epochs",
    "1",
    "--max-steps",
    "2",
    "--dataset",
    "synthetic:1200x28x28x1x10",
    "--device",
    "cpu",
]
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


def own_site(folder, **values):
    """Write the site of this machine with runs in a folder of the test."""
    return sites_and_jobs.own_site(folder, runs_folder=str(folder / "runs"), **values)


RUN = f"torch_impl/train.py {' '.join(SMALL)}"
OF_MNIST = "--site slurm --ranks-per-node 2 -- torch_impl/train.py --model mlp --dataset mnist --batch-size 1000"
SERVER = "torch_impl/train.py --strategy server --servers 1"
ONE_CORE = "note: each rank gets one core, as the cores of slurm are unknown"
GPUS_OF_G4DN = "$11.74 for these minutes alone (2 x aws-g4dn-12xlarge at $3.912 an hour"  # 2 x 1.5 x 3.912
# name -> command, and what it shows: in the script (a pattern), in the announcement (!), in neither (-).
SHOWN = {
    "recipe": (
        "--site slurm -- torch_impl/train.py --recipe launch/recipes/notebook-mnist.toml",
        " --recipe launch/recipes/notebook-mnist.toml ",
    ),
    "one framework": ("--site cte-power -- torch_impl/train.py", "-cannot run there"),
    "retired machines": (
        f"--site aws-g3 --gpus-per-node 1 -- {RUN}",
        "g3.4xlarge",
        "!note: aws-g3-4xlarge has been retired since 2025-10-31; its successor is aws-g4dn-xlarge",
    ),
    "price": (
        "--site aws-g4dn --nodes 2 --gpus-per-node 4 --minutes 90 -- experiment startup",
        "-its price may differ",
        f"!{GPUS_OF_G4DN}",
        "!us-east-1",
        "!set-up and idle minutes come on top",
    ),
    "price elsewhere": (
        f"--site aws:hpc7a-96xlarge -- {RUN}",
        "!us-gov-west-1, 2026-07-20; the region is not fixed: its price may differ",
    ),
    # 4 bytes each: 1,000 x (784 + 192 + 192 + 10) outputs and 3 x 152,650 weights
    "memory": (OF_MNIST, " --memory-mb 7 ", "---compile"),
    "memory of two passes": (f"{OF_MNIST} --backward-passes-per-step 2", " --memory-mb 7 "),
    "memory of stages": (f"{OF_MNIST} --strategy layers --stages 2 --microbatches 10", " --memory-mb 3 "),
    "compiler": (f"--site slurm --ranks-per-node 2 -- {RUN} --compile", " preflight .* --compile "),
    "array": (
        "--site slurm --ranks-per-node 4 -- experiment startup --at-once 2",
        r"#SBATCH --array=1-2\n",
        r' --part "\$SLURM_ARRAY_TASK_ID"',
        "!experiment startup, 2 runs at once, 4 ranks on 1 node",
    ),
    "lanes": (
        "--ranks-per-node 4 -- experiment startup --at-once 2",
        " experiment run startup --at-once 2 --runs-folder ",
        "---part",
    ),
    "shared GPUs exchange in host memory": (
        "--site slurm --gpus-per-node 1 --ranks-per-node 2 -- torch_impl/train.py --share-gpu",
        r"#SBATCH --gres=gpu:1\n",
        " preflight .* --device cpu ",
    ),
    # Where Gloo is usual, MPI is taken where it is needed, and looked for.
    "DDP": (
        f"--site aws --nodes 2 -- {RUN} --strategy native --native ddp",
        "preflight .* --controller mpi",
        " --mpi ",
    ),
    "Adasum": (f"--site aws --nodes 2 -- {RUN} --adasum", "preflight .* --controller mpi", "horovodrun .* --mpi "),
    "Gloo": (f"--site aws --nodes 2 -- {RUN}", "---controller mpi", "horovodrun .* --gloo "),
    "no GPU for a server": (
        f"--site slurm --gpus-per-node 4 --ranks-per-node 5 -- {SERVER}",
        " preflight --np 4 ",
        r"#SBATCH --ntasks-per-node=5\n",
    ),
    "no GPU at all": (
        f"--site slurm --ranks-per-node 5 -- {SERVER}",
        " preflight --np 5 ",
        "#SBATCH --ntasks-per-node=5",
    ),
    "one core each": (f"--site slurm --ranks-per-node 2 --no-preflight -- {RUN}", f"!{ONE_CORE}"),
    "cores of GPUs": (f"--site slurm --gpus-per-node 2 --ranks-per-node 2 -- {RUN}", f"-{ONE_CORE}"),
    "known cores": (f"--site cte-power --ranks-per-node 2 -- {RUN}", f"-{ONE_CORE}"),
    "no secret here": (f"--site local -- {RUN}", "-swordfish"),
    "no secret on a cluster": (f"--site cte-power -- {RUN}", "-swordfish"),
    "no secret in a cloud": (f"--site aws-g4dn -- {RUN}", "-swordfish"),
    "no secret on Kubernetes": (f"--site kubernetes -- {RUN}", "-swordfish"),
}


@pytest.mark.parametrize(("command", "parts"), [(row[0], row[1:]) for row in SHOWN.values()], ids=list(SHOWN))
def test_a_dry_run_shows_the_script_and_what_it_costs(command, parts, tmp_path, capsys, monkeypatch):
    """Wherever it is submitted."""
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "swordfish")
    monkeypatch.chdir(tmp_path)
    own, _, what = command.partition("-- ")
    assert submit(tmp_path, *own.split(), "--dry-run", "--", *what.split()) == 0
    shown = capsys.readouterr()
    for part in parts:
        if part.startswith("!"):
            assert part[1:] in shown.err, shown.err
        elif part.startswith("-"):
            assert part[1:] not in shown.out + shown.err
        else:
            assert re.search(part, shown.out), shown.out
    assert not list(tmp_path.iterdir())


RETIRED = "machine has been retired since 2025-12-31. Received: aws-p3-8xlarge. Use its successor, aws-g5-12xlarge"


def test_machines_that_are_retired_are_not_rented(tmp_path, capsys):
    words = ["--site", "aws-p3", "--gpus-per-node", "4", "--", "keras_impl/train.py", *SMALL]
    assert submit(tmp_path, *words) == 2
    assert RETIRED in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "jobs").exists()


def test_a_script_of_this_machine_ends_at_the_limit(tmp_path, capsys):
    words = ["--ranks-per-node", "2", "--name", "one", "--dry-run", "--", "torch_impl/train.py", *SMALL]
    assert submit(tmp_path, "--site", own_site(tmp_path), *words) == 0
    shown = capsys.readouterr()
    last = shown.out.splitlines()[-1]
    assert shlex.split(last)[:6] == ["timeout", "--kill-after=60", "60m", "horovodrun", "-np", "2"]
    assert shown.out.startswith("#!/usr/bin/env bash\n") and "--name one" in last
    assert "2 ranks on 1 node on ours: up to 60 minutes, no hourly price" in shown.err


def test_a_price_of_another_region_is_said_to_be_one(tmp_path, capsys):
    elsewhere = tmp_path / "elsewhere.toml"
    text = (ROOT / "launch" / "sites" / "gcp.toml").read_text()
    elsewhere.write_text(text.replace("us-central1", "europe-west4"))
    words = ["--gpus-per-node", "1", "--dry-run", "--", "torch_impl/train.py", *SMALL]
    assert submit(tmp_path, "--site", str(elsewhere), *words) == 0
    assert "us-central1, 2026-08-20; the region is europe-west4: its price may differ" in capsys.readouterr().err


HOSTILE = "a b'c\"d$(touch hit)`touch hit`;touch hit&&*"


def test_no_word_is_read_by_the_shell(tmp_path, capsys):
    """The rendered script is run, with programs in place of the real ones that write down what they are given."""
    place = tmp_path / HOSTILE
    (place / "bin").mkdir(parents=True)
    given = tmp_path / "given"
    for program in ("horovodrun", "python"):
        script = place / "bin" / program
        script.write_text(f'#!/bin/bash\nprintf "%s\\0" "{program}" "$@" >> {shlex.quote(str(given))}\n')
        script.chmod(0o755)
    site = own_site(
        place, python=str(place / "bin" / "python"), project_folder=str(place), scratch_folder=HOSTILE,
        environment={"WORDS": HOSTILE},
    )  # fmt: skip
    words = ["--name", "x", "--dry-run", "--", "torch_impl/train.py", *SMALL, "--data-folder", HOSTILE]
    assert submit(tmp_path, "--site", site, *words) == 0
    script = place / "job.sh"
    script.write_text(capsys.readouterr().out + 'printf "%s\\0" "$WORDS" "$TMPDIR" >> "$GIVEN"\n')
    before = set(place.iterdir())
    variables = {**os.environ, "GIVEN": str(given)}
    subprocess.run(["bash", str(script)], check=True, cwd=tmp_path, env=variables, timeout=PATIENCE_SECONDS)
    received = given.read_text().split("\0")[:-1]
    assert received[-2:] == [HOSTILE, HOSTILE]
    trainer = received[received.index("torch_impl/train.py") :]
    assert trainer[trainer.index("--data-folder") + 1] == HOSTILE
    assert trainer[trainer.index("--runs-folder") + 1] == str(place / "runs")
    assert set(place.iterdir()) - before == {place / "exit-code"}
    assert not (tmp_path / "hit").exists()


@pytest.fixture
def folder(tmp_path):
    """A folder whose jobs are ended with the test."""
    yield tmp_path
    for job in (tmp_path / "jobs").glob("*/job.json"):
        launch.main(["cancel", job.parent.name, "--jobs-folder", str(tmp_path / "jobs")])


def ended(folder, job, capsys):
    """Wait for the end of a job; return the line of its status."""

    def status():
        capsys.readouterr()
        launch.main(["status", job, "--jobs-folder", str(folder / "jobs")])
        return capsys.readouterr().out.splitlines()[-1]

    wait_until(lambda: " running " not in status(), within_seconds=PATIENCE_SECONDS, shown=status)
    return status()


@pytest.mark.ranks
@pytest.mark.ci
def test_a_job_of_two_repeats_runs_here_to_its_end(folder, capsys):
    words = ["--name", "pair", "--ranks-per-node", "2", "--repeats", "2", "--no-preflight"]
    assert submit(folder, "--site", own_site(folder), *words, "--", "torch_impl/train.py", *SMALL, "--seed", "5") == 0
    capsys.readouterr()
    line = ended(folder, "pair", capsys)
    assert " finished " in line, (folder / "jobs/pair/output.log").read_text()
    runs = [read_run(folder / "runs" / name) for name in ("pair-r1", "pair-r2")]
    assert [run.record.config.training.seed for run in runs] == [5, 6]
    assert {run.record.site for run in runs} == {"local"} and {run.state for run in runs} == {"finished"}
    assert launch.main(["logs", "pair", "--jobs-folder", str(folder / "jobs")]) == 0
    assert "run folder:" in capsys.readouterr().out
    assert submit(folder, "--site", own_site(folder), *words, "--", "torch_impl/train.py", *SMALL) == 2
    assert "there is a job of this name" in capsys.readouterr().err


APPTAINER = """#!/bin/bash
# In place of the real one: writes down what it is given, and runs what follows the image here.
printf '%s\\n' "$*" >> "$GIVEN"
while [ "$1" != "{image}" ]; do shift; done
shift
exec "$@"
"""


@pytest.mark.ranks
@pytest.mark.ci
def test_ranks_run_in_the_container_of_a_site(folder, capsys, monkeypatch):
    image, given = str(folder / "twins.sif"), folder / "given"
    (folder / "apptainer").write_text(APPTAINER.format(image=image))
    (folder / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("GIVEN", str(given))
    binds = ["/gpfs", "/scratch/a b:/scratch"]
    site = own_site(folder, container={"image": image, "folder": str(ROOT), "gpu": True, "binds": binds})
    words = ["--name", "inside", "--ranks-per-node", "2", "--", "torch_impl/train.py", *SMALL]
    assert submit(folder, "--site", site, *words) == 0
    capsys.readouterr()
    assert " finished " in ended(folder, "inside", capsys), (folder / "jobs/inside/output.log").read_text()
    record = read_run(folder / "runs/inside").record
    assert record.world.size == 2
    starts = given.read_text().splitlines()
    inside = (
        f"exec --nv --bind /gpfs --bind /scratch/a b:/scratch {image} python {ROOT}/torch_impl/train.py --model mlp "
    )
    assert len(starts) == 2 and all(start.startswith(inside) for start in starts)
    plan = ["experiment", "run", "smoke", "--site", site, "--runs-folder", str(folder / "runs"), "--dry-run"]
    assert launch.main(plan) == 0
    commands = [line for line in capsys.readouterr().out.splitlines() if "_impl/train.py" in line]
    assert len(commands) == 32 and all(f"{image} python {ROOT}/" in line for line in commands)
    assert sum(line.startswith("apptainer exec") for line in commands) == 12  # those without launcher


@pytest.mark.ranks
@pytest.mark.ci
def test_a_failing_job_is_reported_as_failed(folder, capsys):
    (folder / "runs/bad").mkdir(parents=True)  # a run of this name, which is not overwritten
    words = ["--name", "bad", "--no-preflight", "--", "torch_impl/train.py", *SMALL]
    assert submit(folder, "--site", own_site(folder), *words) == 0
    look = ["status", "bad", "--jobs-folder", str(folder / "jobs")]
    assert capsys.readouterr().out.endswith(f"follow it with: {shlex.join(['python', '-m', 'launch', *look])}\n")
    line = ended(folder, "bad", capsys)
    assert " failed " in line and "exit code 2" in line
    assert launch.main(look) == 1
    (folder / "jobs/bad/exit-code").write_text("124\n")  # as `timeout` ends
    capsys.readouterr()
    assert launch.main(look) == 1
    assert "the time limit was reached: give more --minutes" in capsys.readouterr().out


@pytest.mark.ranks
@pytest.mark.ci
def test_a_job_can_be_ended(folder, capsys, monkeypatch):
    endless = [*SMALL, "--epochs", "100000", "--max-steps", "100000000"]
    words = ["--name", "long", "--no-preflight", "--", "torch_impl/train.py", *endless]
    assert submit(folder, "--site", own_site(folder), *words) == 0
    run = folder / "runs/long"
    wait_until((run / "run.json").exists, within_seconds=PATIENCE_SECONDS)
    # The time of day is corrected by a second, and with it when processes began.
    began = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: began(self) + 1)
    assert launch.main(["status", "long", "--jobs-folder", str(folder / "jobs")]) == 0
    assert " running " in capsys.readouterr().out
    assert launch.main(["cancel", "long", "--jobs-folder", str(folder / "jobs")]) == 0
    capsys.readouterr()
    assert " cancelled " in ended(folder, "long", capsys)
    wait_until(lambda: read_run(run).state != "running", within_seconds=PATIENCE_SECONDS)
    assert read_run(run).state == "interrupted"
    assert launch.main(["cancel", "long", "--jobs-folder", str(folder / "jobs")]) == 2
    assert "the job does not run any more" in capsys.readouterr().err


def test_jobs_that_are_not_there(tmp_path, capsys):
    assert launch.main(["status", "--jobs-folder", str(tmp_path)]) == 0
    assert "no jobs in" in capsys.readouterr().out
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/job.json").write_text("{")
    assert launch.main(["status", "--jobs-folder", str(tmp_path)]) == 0
    assert "unknown  the job's record is damaged" in capsys.readouterr().out
