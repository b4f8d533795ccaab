"""Jobs: what is submitted, what is refused before, and a job on this machine from submission to its end."""

import functools
import json
import os
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from common.config import parse_command_line
from common.run_folder.records import read_run
from launch import __main__ as launch

ROOT = Path(__file__).resolve().parents[3]
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

OWN = """
[launch]
title = "ours"
source = "ours"
checked = 2026-11-21
scheduler = "local"
nodes = ["local"]
runs_folder = {runs}
"""


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


def own_site(folder, **more):
    """Return the file of a site on this machine whose runs are in a folder of the test."""
    file = folder / "ours.toml"
    lines = [f"{key} = {value}" for key, value in more.items()]
    file.write_text(OWN.format(runs=json.dumps(str(folder / "runs"))) + "\n".join(lines))
    return str(file)


def submit(folder, *words):
    return launch.main(["submit", "--jobs-folder", str(folder / "jobs"), *words])


def ended(folder, job, capsys):
    """Wait for the end of a job; return the line of its status."""
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE_SECONDS:
        launch.main(["status", job, "--jobs-folder", str(folder / "jobs")])
        line = capsys.readouterr().out.splitlines()[-1]
        if " running " not in line:
            return line
        time.sleep(0.5)
    raise AssertionError(f"{job} has not ended: {line}")


SERVER = ["torch_impl/train.py", "--strategy", "server", "--servers", "1"]


@pytest.mark.parametrize(
    "words",
    [
        ["submit", "--dry-run", "--site", "cte-power", "--", "torch_impl/train.py"],
        ["experiment", "run", "startup", "--dry-run", "--only", "torch-*", "--site", "cte-power"],
    ],
)
def test_a_site_that_refuses_one_framework_takes_the_other(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert launch.main(words) == 0
    assert "cannot run there" not in capsys.readouterr().err


RETIRED = "machine has been retired since 2025-12-31. Received: aws-p3-8xlarge. Use its successor, aws-g5-12xlarge"


def test_machines_that_are_retired_are_not_rented(tmp_path, capsys):
    words = ["--site", "aws-p3", "--gpus-per-node", "4", "--", "keras_impl/train.py", *SMALL]
    assert submit(tmp_path, *words) == 2
    assert RETIRED in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "jobs").exists()


def test_a_dry_run_prints_the_script_and_leaves_nothing(tmp_path, capsys):
    words = ["--ranks-per-node", "2", "--name", "one", "--dry-run", "--", "torch_impl/train.py", *SMALL]
    assert submit(tmp_path, "--site", own_site(tmp_path), *words) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("#!/usr/bin/env bash\n")
    last = captured.out.splitlines()[-1]
    assert (
        shlex.split(last)[:6] == ["timeout", "--kill-after=60", "60m", "horovodrun", "-np", "2"]
        and "--name one" in last
    )
    assert "2 ranks on 1 node on ours: up to 60 minutes, no hourly price" in captured.err
    assert not (tmp_path / "jobs").exists()


def test_paths_of_a_trainer_begin_at_the_project(tmp_path, capsys, monkeypatch):
    """As its job reads them there, wherever it is submitted."""
    monkeypatch.chdir(tmp_path)
    words = ["--site", "slurm", "--dry-run", "--", "torch_impl/train.py", "--recipe"]
    assert submit(tmp_path, *words, "launch/recipes/notebook-mnist.toml") == 0
    assert "--recipe launch/recipes/notebook-mnist.toml" in capsys.readouterr().out


def test_what_would_be_submitted_to_retired_machines_names_the_successor(tmp_path, capsys):
    words = ["--site", "aws-g3", "--gpus-per-node", "1", "--dry-run", "--", "torch_impl/train.py", *SMALL]
    assert submit(tmp_path, *words) == 0
    captured = capsys.readouterr()
    assert "note: aws-g3-4xlarge has been retired since 2025-10-31; its successor is aws-g4dn-xlarge" in captured.err
    assert "g3.4xlarge" in captured.out


def test_the_price_of_rented_nodes_is_printed_first(tmp_path, capsys):
    words = ["--site", "aws-g4dn", "--nodes", "2", "--gpus-per-node", "4", "--minutes", "90", "--dry-run"]
    assert submit(tmp_path, *words, "--", "experiment", "smoke") == 0
    error = capsys.readouterr().err
    assert "$11.74 for these minutes alone (2 x aws-g4dn-12xlarge at $3.912 an hour" in error  # 2 x 1.5 x 3.912
    assert "us-east-1" in error and "its price may differ" not in error
    assert "set-up and idle minutes come on top" in error


@pytest.mark.parametrize(
    ("flags", "megabytes"),
    [
        ("--batch-size 1000", 7),  # 4 bytes each: 1,000 x (784 + 192 + 192 + 10) outputs and 3 x 152,650 weights
        ("--batch-size 1000 --backward-passes-per-step 2", 7),
        ("--batch-size 1000 --strategy layers --stages 2 --microbatches 10", 3),
    ],
)
def test_the_preflight_is_told_what_training_takes(tmp_path, capsys, flags, megabytes):
    words = ["--dry-run", "--", "torch_impl/train.py", "--model", "mlp", "--dataset", "mnist", *flags.split()]
    assert submit(tmp_path, "--site", "slurm", "--ranks-per-node", "2", *words) == 0
    assert f" --memory-mb {megabytes} " in capsys.readouterr().out


def test_the_preflight_looks_for_a_compiler(tmp_path, capsys):
    for flags, looked_for in ((["--compile"], True), ([], False)):
        words = ["--site", "slurm", "--ranks-per-node", "2", "--dry-run", "--", "torch_impl/train.py", *SMALL, *flags]
        assert submit(tmp_path, *words) == 0
        (preflight,) = (line for line in capsys.readouterr().out.splitlines() if " -m launch preflight " in line)
        assert (" --compile " in preflight) == looked_for


def test_runs_at_once_are_an_array_on_slurm_and_lanes_on_this_machine(tmp_path, capsys):
    words = ["--ranks-per-node", "4", "--dry-run", "--", "experiment", "smoke", "--at-once", "2"]
    assert submit(tmp_path, "--site", "slurm", *words) == 0
    shown = capsys.readouterr()
    assert "#SBATCH --array=1-2\n" in shown.out and '--part "$SLURM_ARRAY_TASK_ID"' in shown.out
    assert "experiment smoke, 2 runs at once, 4 ranks on 1 node" in shown.err
    assert submit(tmp_path, *words) == 0
    script = capsys.readouterr().out
    assert " experiment run smoke --at-once 2 --runs-folder " in script and "--part" not in script


def test_the_preflight_of_shared_gpus_checks_the_exchange_in_host_memory(tmp_path, capsys):
    words = ["--site", "slurm", "--gpus-per-node", "1", "--ranks-per-node", "2", "--dry-run", "--"]
    assert submit(tmp_path, *words, "torch_impl/train.py", "--share-gpu") == 0
    script = capsys.readouterr().out
    (preflight,) = (line for line in script.splitlines() if " -m launch preflight " in line)
    assert "#SBATCH --gres=gpu:1\n" in script and " --device cpu " in preflight


def test_a_strategy_that_needs_mpi_is_started_by_it(tmp_path, capsys):
    """Also where the site's ranks are joined by Gloo; the preflight looks for MPI then."""
    native = ["--strategy", "native", "--native", "ddp"]
    for flags, controller in ((native, "mpi"), (["--adasum"], "mpi"), ([], "gloo")):
        words = ["--site", "aws", "--nodes", "2", "--dry-run", "--", "torch_impl/train.py", *SMALL, *flags]
        assert submit(tmp_path, *words) == 0
        script = capsys.readouterr().out
        assert f" --{controller} " in next(line for line in script.splitlines() if "horovodrun" in line)
        assert (" --controller mpi" in script) == (controller == "mpi")


@pytest.mark.parametrize(("gpus", "checked"), [("4", 4), ("0", 5)])
def test_servers_need_no_gpu(tmp_path, capsys, gpus, checked):
    words = ["--site", "slurm", "--gpus-per-node", gpus, "--ranks-per-node", "5", "--dry-run", "--", *SERVER]
    assert submit(tmp_path, *words) == 0
    script = capsys.readouterr().out
    (preflight,) = (line for line in script.splitlines() if " -m launch preflight " in line)
    assert f" --np {checked} " in preflight and "#SBATCH --ntasks-per-node=5\n" in script


def test_a_price_of_another_region_is_said_to_be_one(tmp_path, capsys):
    elsewhere = tmp_path / "elsewhere.toml"
    text = (ROOT / "launch" / "sites" / "gcp.toml").read_text()
    elsewhere.write_text(text.replace("us-central1", "europe-west4"))
    words = ["--gpus-per-node", "1", "--dry-run", "--", "torch_impl/train.py", *SMALL]
    assert submit(tmp_path, "--site", str(elsewhere), *words) == 0
    assert "us-central1, 2026-08-20; the region is europe-west4: its price may differ" in capsys.readouterr().err
    assert submit(tmp_path, "--site", "aws:hpc7a-96xlarge", "--dry-run", *words[-len(SMALL) - 2 :]) == 0
    assert "us-gov-west-1, 2026-07-20; the region is not fixed: its price may differ" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("site", "gpus", "warned"), [("slurm", "0", True), ("slurm", "2", False), ("cte-power", "0", False)]
)
def test_ranks_with_one_core_each_are_announced(tmp_path, capsys, site, gpus, warned):
    words = ["--site", site, "--gpus-per-node", gpus, "--ranks-per-node", "2", "--dry-run", "--no-preflight"]
    assert submit(tmp_path, *words, "--", "torch_impl/train.py", *SMALL) == 0
    assert ("note: each rank gets one core, as the cores of slurm are unknown" in capsys.readouterr().err) == warned


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
    environment = json.dumps({"WORDS": HOSTILE})[1:-1].replace('": ', '" = ')
    site = own_site(
        place, python=json.dumps(str(place / "bin" / "python")), project_folder=json.dumps(str(place)),
        scratch_folder=json.dumps(HOSTILE), environment="{" + environment + "}",
    )  # fmt: skip
    words = ["--name", "x", "--dry-run", "--", "torch_impl/train.py", *SMALL, "--data-folder", HOSTILE]
    assert submit(tmp_path, "--site", site, *words) == 0
    script = place / "job.sh"
    script.write_text(capsys.readouterr().out + 'printf "%s\\0" "$WORDS" "$TMPDIR" >> "$GIVEN"\n')
    before = set(place.iterdir())
    subprocess.run(["bash", str(script)], check=True, cwd=tmp_path, env={**os.environ, "GIVEN": str(given)})
    received = given.read_text().split("\0")[:-1]
    assert received[-2:] == [HOSTILE, HOSTILE]
    trainer = received[received.index("torch_impl/train.py") :]
    assert trainer[trainer.index("--data-folder") + 1] == HOSTILE
    assert trainer[trainer.index("--runs-folder") + 1] == str(place / "runs")
    assert set(place.iterdir()) - before == {place / "exit-code"}
    assert not (tmp_path / "hit").exists()


def test_no_secret_of_the_shell_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "swordfish")
    monkeypatch.setenv("HF_TOKEN", "swordfish")
    for site in ("local", "slurm", "cte-power", "aws-g4dn", "kubernetes"):
        assert submit(tmp_path, "--site", site, "--dry-run", "--", "torch_impl/train.py", *SMALL) == 0
        assert "swordfish" not in capsys.readouterr().out


@pytest.mark.ranks
@pytest.mark.ci
def test_a_job_of_two_repeats_runs_here_to_its_end(tmp_path, capsys):
    words = ["--name", "pair", "--ranks-per-node", "2", "--repeats", "2", "--no-preflight"]
    assert (
        submit(tmp_path, "--site", own_site(tmp_path), *words, "--", "torch_impl/train.py", *SMALL, "--seed", "5") == 0
    )
    capsys.readouterr()
    line = ended(tmp_path, "pair", capsys)
    assert " finished " in line, (tmp_path / "jobs/pair/output.log").read_text()
    runs = [read_run(tmp_path / "runs" / name) for name in ("pair-r1", "pair-r2")]
    assert [run.record.config.training.seed for run in runs] == [5, 6]
    assert {run.record.site for run in runs} == {"local"} and {run.state for run in runs} == {"finished"}
    assert launch.main(["logs", "pair", "--jobs-folder", str(tmp_path / "jobs")]) == 0
    assert "run folder:" in capsys.readouterr().out
    assert submit(tmp_path, "--site", own_site(tmp_path), *words, "--", "torch_impl/train.py", *SMALL) == 2
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
def test_ranks_run_in_the_container_of_a_site(tmp_path, capsys, monkeypatch):
    image, given = str(tmp_path / "twins.sif"), tmp_path / "given"
    (tmp_path / "apptainer").write_text(APPTAINER.format(image=image))
    (tmp_path / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("GIVEN", str(given))
    site = own_site(tmp_path)
    with Path(site).open("a") as file:
        file.write(f"\n[launch.container]\nimage = {json.dumps(image)}\nfolder = {json.dumps(str(ROOT))}\ngpu = true\n")
        file.write('binds = ["/gpfs", "/scratch/a b:/scratch"]\n')
    words = ["--name", "inside", "--ranks-per-node", "2", "--", "torch_impl/train.py", *SMALL]
    assert submit(tmp_path, "--site", site, *words) == 0
    capsys.readouterr()
    assert " finished " in ended(tmp_path, "inside", capsys), (tmp_path / "jobs/inside/output.log").read_text()
    record = read_run(tmp_path / "runs/inside").record
    assert record.world.size == 2
    starts = given.read_text().splitlines()
    inside = (
        f"exec --nv --bind /gpfs --bind /scratch/a b:/scratch {image} python {ROOT}/torch_impl/train.py --model mlp "
    )
    assert len(starts) == 2 and all(start.startswith(inside) for start in starts)
    plan = ["experiment", "run", "smoke", "--site", site, "--runs-folder", str(tmp_path / "runs"), "--dry-run"]
    assert launch.main(plan) == 0
    commands = [line for line in capsys.readouterr().out.splitlines() if "_impl/train.py" in line]
    assert len(commands) == 32 and all(f"{image} python {ROOT}/" in line for line in commands)
    assert sum(line.startswith("apptainer exec") for line in commands) == 12  # those without launcher


@pytest.mark.ranks
@pytest.mark.ci
def test_a_failing_job_is_reported_as_failed(tmp_path, capsys):
    (tmp_path / "runs/bad").mkdir(parents=True)  # a run of this name, which is not overwritten
    words = ["--name", "bad", "--no-preflight", "--", "torch_impl/train.py", *SMALL]
    assert submit(tmp_path, "--site", own_site(tmp_path), *words) == 0
    look = ["status", "bad", "--jobs-folder", str(tmp_path / "jobs")]
    assert capsys.readouterr().out.endswith(f"follow it with: {shlex.join(['python', '-m', 'launch', *look])}\n")
    line = ended(tmp_path, "bad", capsys)
    assert " failed " in line and "exit code 2" in line
    assert launch.main(look) == 1
    (tmp_path / "jobs/bad/exit-code").write_text("124\n")  # as `timeout` ends
    capsys.readouterr()
    assert launch.main(look) == 1
    assert "the time limit was reached: give more --minutes" in capsys.readouterr().out


@pytest.mark.ranks
@pytest.mark.ci
def test_a_job_can_be_ended(tmp_path, capsys):
    endless = [*SMALL, "--epochs", "100000", "--max-steps", "100000000"]
    words = ["--name", "long", "--no-preflight", "--", "torch_impl/train.py", *endless]
    assert submit(tmp_path, "--site", own_site(tmp_path), *words) == 0
    began = time.monotonic()
    while not (tmp_path / "runs/long/run.json").exists() and time.monotonic() - began < PATIENCE_SECONDS:
        time.sleep(0.2)
    assert launch.main(["cancel", "long", "--jobs-folder", str(tmp_path / "jobs")]) == 0
    capsys.readouterr()
    assert " cancelled " in ended(tmp_path, "long", capsys)
    run = tmp_path / "runs/long"
    while read_run(run).state == "running" and time.monotonic() - began < PATIENCE_SECONDS:
        time.sleep(0.2)
    assert read_run(run).state == "interrupted"
    assert launch.main(["cancel", "long", "--jobs-folder", str(tmp_path / "jobs")]) == 2
    assert "the job does not run any more" in capsys.readouterr().err


def test_jobs_that_are_not_there(tmp_path, capsys):
    assert launch.main(["status", "--jobs-folder", str(tmp_path)]) == 0
    assert "no jobs in" in capsys.readouterr().out
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/job.json").write_text("{")
    assert launch.main(["status", "--jobs-folder", str(tmp_path)]) == 0
    assert "unknown  the job's record is damaged" in capsys.readouterr().out
