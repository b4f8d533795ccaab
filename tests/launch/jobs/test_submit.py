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
MIRRORED = ["keras_impl/train.py", "--strategy", "native", "--native", "mirrored", "--replicas", "2"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "there is nothing to run"),
        (["--", "train.py"], "unknown program. Received: train.py"),
        (["--", "torch_impl/train.py", "--epoks", "1"], "--epoks"),
        (["--", "torch_impl/train.py", "--name", "x"], "the job sets this itself. Received: --name"),
        (["--", "torch_impl/train.py", "--runs-folder=x"], "the job sets this itself. Received: --runs-folder"),
        (["--", "torch_impl/train.py", "--runs_folder", "x"], "the job sets this itself. Received: --runs-folder"),
        (["--", "torch_impl/train.py", "--runs-folde=x"], "Unrecognized options: --runs-folde=x"),
        (["--", "torch_impl/train.py", "--resume=x"], "the job sets this itself. Received: --resume"),
        (["--site", "", "--", "torch_impl/train.py"], "unknown site. Received: ''."),
        (["--", "torch_impl/train.py", "--dataset", "a\nb"], "a word of several lines"),
        (["--runs-folder", "a\nb", "--", "torch_impl/train.py"], "a word of several lines"),
        (["--nodes", "2", "--", "torch_impl/train.py"], "local is one machine. Received: --nodes 2"),
        (["--site", "hosts", "--", "torch_impl/train.py"], "the site names no hosts. Received: hosts. Write them"),
        (["--site", "slurm", "--", "experiment", "startup"], "no run of the experiment fits into the job"),
        (["--site", "aws-g4dn", "--", "torch_impl/train.py", "--recipe=../x.toml"], "cannot read the recipe"),
        (["--", "experiment"], "the experiment has no name"),
        (["--", "experiment", "smokes"], "cannot read the experiment"),
        (["--", "experiment", "smoke", "--only", "nothing-*"], "no cell has this name"),
        (["--", "experiment", "smoke", "--dry-run"], "takes nothing but --only PATTERNS"),
        (["--", "experiment", "smoke", "--at-once", "2", "--part", "1"], "and --at-once N here. Received: --part 1"),
        (["--site", "aws", "--ranks-per-node", "4", "--", "experiment", "smoke", "--at-once", "2"],
         "aws makes the runs of an experiment one after the other. Received: --at-once 2. Leave it out, or submit to"),
        (["--site", "slurm", "--ranks-per-node", "4", "--", "experiment", "smoke", "--at-once", "999"],
         "fewer runs than are to be made at once. Received: --at-once 999, "),
        (["--site", "slurm", "--ranks-per-node", "4", "--", "experiment", "smoke", "--at-once", "2", "--gpus-per-run",
          "1"], "Received: cores or GPUs per run. Give --ranks-per-node and --gpus-per-node to the job"),
        (["--", "experiment", "thesis-resnet34-as-published", "--at-once", "2"], "Received: --at-once, and cool_down"),
        (["--repeats", "2", "--", "experiment", "smoke"], "an experiment sets its own repeats"),
        (["--restarts", "2", "--", "experiment", "smoke"], "an experiment makes failed runs when it is submitted"),
        (["--site", "mars", "--", "experiment", "smoke"], "unknown site. Received: mars"),
        (["--site", "cte-power", "--minutes", "3000", "--", "experiment", "smoke"], "allows at most 48 hours"),
        (["--site", "cte-power", "--gpus-per-node", "8", "--", "experiment", "smoke"], "no node of cte-power"),
        (["--spot", "--", "experiment", "smoke"], "local has no spot machines"),
        (["--name", "", "--", "experiment", "smoke"], "--name is not a valid name for a job. Received: ''"),
        (["--name", "a b", "--", "experiment", "smoke"], "--name is not a valid name for a job"),
        (["--name", "../x", "--", "experiment", "smoke"], "--name is not a valid name for a job"),
        (["--site", "slurm", "--gpus-per-node", "4", "--ranks-per-node", "8", "--", "torch_impl/train.py"],
         "its own GPU. Received: --ranks-per-node 8, --gpus-per-node 4. Give --ranks-per-node 4 or fewer, or "),
        (["--", "keras_impl/train.py", "--no-channels-last", "--device", "cpu"],
         "channels last. Received: --no-channels-last and --device cpu. Leave it out, or use torch"),
        (["--", "torch_impl/train.py", "--strategy", "native", "--native", "mirrored", "--replicas", "2"],
         "mirrored is a strategy of the other framework"),
        (["--site", "slurm", "--gpus-per-node", "4", "--ranks-per-node", "6", "--", *SERVER],
         "each worker of a node needs its own GPU. Received: --ranks-per-node 6, --gpus-per-node 4. Give "
         "--ranks-per-node 5 or fewer"),
        (["--site", "slurm", "--nodes", "2", "--gpus-per-node", "4", "--ranks-per-node", "5", "--", *SERVER],
         "Received: --ranks-per-node 5, --gpus-per-node 4. Give --ranks-per-node 4 or fewer"),
        (["--ranks-per-node", "2", "--", "torch_impl/train.py", "--shares", "1:2:3"],
         "there is one part for each worker. Received: --shares 1:2:3 on 2. Give as many numbers, such as 2:1"),
        (["--ranks-per-node", "3", "--", *SERVER, "--slow", "2:2"],
         "the straggler is none of the workers, which count from 0. Received: --slow 2:2 on 2. Give a rank from 0"),
        (["--ranks-per-node", "2", "--", *MIRRORED],
         "mirrored is one process with several devices. Received: 2 ranks. Start one, or give --native multiworker"),
        (["--restarts", "1", "--", "torch_impl/train.py", "--elastic"], "a job's ranks do not come and go"),
        (["--site", "slurm", "--", "keras_impl/train.py", "--elastic"], "a job's ranks do not come and go"),
        (["--site", "gcp", "--spot", "--", "torch_impl/train.py"], 'and bucket = "gs://NAME" under'),
        (["--site", "aws", "--spot", "--", "torch_impl/train.py"], 'and bucket = "s3://NAME" under'),
        (["--site", "aws-p3", "--gpus-per-node", "4", "--", *["keras_impl/train.py", *SMALL]],
         "machine has been retired since 2025-12-31. Received: aws-p3-8xlarge. Use its successor, aws-g5-12xlarge"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_before(tmp_path, capsys, words, error):
    assert submit(tmp_path, *words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert error in lines[-1], lines
    assert not (tmp_path / "jobs").exists()


KERAS = ["submit -- keras_impl/train.py", "submit --dry-run -- experiment startup", "train --framework keras --dry-run",
         "experiment run startup", "stage --no-wheels --output bundle --frameworks torch keras"]  # fmt: skip
TORCH = ["submit --dry-run -- torch_impl/train.py", "experiment run startup --dry-run --only torch-*"]


@pytest.mark.parametrize("command", [*KERAS, *TORCH])
def test_a_framework_that_a_site_refuses_waits_in_no_queue(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, separator, behind = command.partition(" -- ")
    words = [*first.split(), "--site", "cte-power", *separator.split(), *behind.split()]
    assert launch.main(words) == (2 if command in KERAS else 0)
    refusals = [line for line in capsys.readouterr().err.splitlines() if "cannot run there" in line]
    assert len(refusals) == (command in KERAS)
    for line in refusals:
        assert "keras cannot run there. Received: --site cte-power. Keras 3 needs TensorFlow 2.16, " in line
        assert "use --site marenostrum5, or torch" in line
    assert not list(tmp_path.iterdir())


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
    Path("mine.toml").write_text("")
    assert submit(tmp_path, *words, "mine.toml") == 2
    assert "cannot read the recipe. Received: --recipe mine.toml" in capsys.readouterr().err


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
    (tmp_path / "file").touch()
    assert launch.main(["status", "--jobs-folder", str(tmp_path / "file")]) == 2
    assert "jobs are in a folder. Received: --jobs-folder" in capsys.readouterr().err
    for command in ("status", "logs", "cancel"):
        assert launch.main([command, "none", "--jobs-folder", str(tmp_path)]) == 2
        assert "no such job. Received: none. There are: none yet" in capsys.readouterr().err
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/job.json").write_text("{")
    assert launch.main(["status", "torn", "--jobs-folder", str(tmp_path)]) == 2
    assert "the job's record is damaged" in capsys.readouterr().err
    assert launch.main(["status", "--jobs-folder", str(tmp_path)]) == 0
    assert "unknown  the job's record is damaged" in capsys.readouterr().out
