"""`python -m launch verify`: the rerun's command, what it refuses, and a real rerun."""

import json
import re
import sys
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from builders import make_config, make_finished_run, make_record, make_task, write_run
from processes import launcher_command, run_command, train_command

from common.config import parse_command_line
from common.model.weights import weights_hash
from common.run_folder.records import Hashes, NotRecorded, read_run
from common.run_folder.run_writer import RunWriter
from common.run_folder.sharing import MeasuredGroups
from launch.__main__ import main
from launch.checks import verify
from launch.checks.verify import plan_rerun
from launch.experiments.survey import HostResources

TABLES = tomllib.loads(Path(__file__).with_name("verify.toml").read_text())


@pytest.fixture(autouse=True)
def many_cores(monkeypatch):
    monkeypatch.setattr(verify, "this_host", lambda: HostResources(gpus=0, cores=8))


def test_the_command_gives_the_recorded_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = make_finished_run(
        tmp_path / "runs" / "made",
        config={
            "data": {"image_size": (4, 5), "gray": True},
            "model": {"dropout": False},
            "optimizer": {"learning_rate": 1e-5, "epsilon": 1e-7},
            "record": {"resume": "runs/made", "keep": 3, "progress": "bars"},
        },
        world={"controller": "gloo", "threads_per_rank": 3},
        environment={"variables": {"HOROVOD_CYCLE_TIME": "0.2", "HOROVOD_RANK": "0"}},
    )
    rerun = plan_rerun(before)
    assert rerun.command[:5] == ["horovodrun", "-np", "2", "--gloo", "python"]
    assert rerun.folder == tmp_path / "runs" / "made-verify"
    assert dict(rerun.variables) == {"HOROVOD_CYCLE_TIME": "0.2"}
    config = parse_command_line(rerun.command[6:], program="train.py")
    assert config == rerun.config
    assert (config.device.threads, config.device.device) == (3, "cpu")
    record = config.record
    assert (record.runs_folder, record.name, record.resume, record.keep) == ("runs", "made-verify", None, 3)
    recorded = before.record.config
    assert replace(config, record=recorded.record, device=recorded.device) == recorded


def test_a_rerun_has_the_groups_that_were_measured():
    run = make_finished_run(config={"device": {"gradient_groups": "auto"}}, groups=MeasuredGroups(chosen="4"))
    assert " --gradient-groups 4 " in " ".join(plan_rerun(run).command)


@pytest.mark.parametrize("row", TABLES["rerun"], ids=lambda row: row["id"])
def test_a_rerun_is_started_as_it_was_with_no_more_threads_than_cores(row, monkeypatch):
    monkeypatch.setattr(verify, "this_host", lambda: HostResources(gpus=0, cores=row.get("cores", 8)))
    run = make_finished_run(world=row["world"], environment={"variables": row.get("variables", {})})
    assert re.search(row["command"], " ".join(plan_rerun(run).command))


def test_nothing_is_overwritten(tmp_path):
    before = make_finished_run(tmp_path / "made")
    for name in ("made-verify", "made-verify-2", "made-verify-3"):
        assert plan_rerun(before).folder.name == name
        (tmp_path / name).mkdir()


def written(folder, **changes):
    """Write a run of the settings of `make_config`, with its right hashes, and return its folder."""
    run = make_finished_run(folder, hashes=right_hashes(folder), **changes)
    return write_run(folder, run.record, run.epochs)


def right_hashes(folder):
    experiment = make_task(make_config(folder.parent), size=2)
    return Hashes(initial_weights=weights_hash(experiment.first_weights), sample_order=experiment.sample_order_hash,
                  final_weights="final")  # fmt: skip


@pytest.fixture
def started(monkeypatch):
    """The commands that were started; in place of each a run is written, like the one that is verified."""
    commands = []

    def start(command, *, environment):
        commands.append(list(command))
        config = parse_command_line(command[command.index("python") + 2 :], program="train.py")
        written(Path(config.record.runs_folder) / str(config.record.name))
        return 0

    monkeypatch.setattr(verify, "run_filtered", start)
    monkeypatch.setattr(verify, "require_program", lambda name: None)
    return commands


def test_another_experiment_is_not_even_run_and_times_are_compared(tmp_path, started, capfd):
    """The verdict and its table are those of `python -m analysis verify`; a real run is below."""
    folder = written(tmp_path / "run", seconds=(9.0, 9.0))
    assert main(["verify", str(folder)]) == 1
    assert "\nDoes not reproduce: time.\n" in capfd.readouterr().out
    assert main(["verify", str(folder), "--time-ratio", "5"]) == 0
    change(folder, "hashes", {"final_weights": "0" * 32})
    assert main(["verify", str(folder), "--time-ratio", "5"]) == 1
    assert "\nDoes not reproduce: final weights.\n" in capfd.readouterr().out
    change(folder, "hashes", {"sample_order": "0" * 32})
    assert main(["verify", str(folder)]) == 1
    shown = capfd.readouterr().out
    assert f"sample order: {'0' * 32} in the record, " in shown and "was not run" in shown
    assert len(started) == 3 and not (tmp_path / "run-verify-4").exists()


def change(folder, part, values):
    """Change fields of a part of run.json, or all of it where it is not the same kind of table."""
    record = json.loads((folder / "run.json").read_text())
    is_part = isinstance(values, dict) and values.keys() <= record[part].keys()
    record[part] = record[part] | values if is_part else values
    (folder / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize("row", TABLES["refused"], ids=lambda row: row["line"])
def test_what_cannot_be_run_again_is_one_line(row, tmp_path, started, capsys):
    folder = written(tmp_path / "run")
    for part, value in row.get("change", {}).items():
        change(folder, part, value)
    for part in row.get("unknown", []):
        change(folder, part, asdict(NotRecorded("an example")))
    assert main(["verify", str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and row["line"].replace("FOLDER", str(folder)) in error
    assert error.startswith("python -m launch verify: error: ") and started == []


def test_missing_data_or_framework_is_one_line(tmp_path, started, capsys, monkeypatch):
    folder = written(tmp_path / "run", config={"data": {"dataset": f"images:{tmp_path}/gone"}})
    assert main(["verify", str(folder)]) == 2
    assert "gone" in capsys.readouterr().err
    monkeypatch.setattr("common.utils.environments.package_folders", lambda framework: [])
    assert main(["verify", str(folder)]) == 2
    assert "Received: torch without torch, horovod. Run `make setup FRAMEWORKS=torch`" in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize(("ended_with", "code"), [(7, 2), (130, 130), (143, 130)])
def test_a_rerun_that_fails_or_is_interrupted_is_no_verdict(ended_with, code, tmp_path, started, capsys, monkeypatch):
    monkeypatch.setattr(verify, "run_filtered", lambda command, environment: ended_with)
    assert main(["verify", str(written(tmp_path / "run"))]) == code
    output = capsys.readouterr()
    assert "reproduce" not in output.out and ("the rerun failed" in output.err) is (code == 2)


def test_an_interrupted_rerun_is_no_verdict_whatever_its_launcher_ends_with(tmp_path, started, capsys, monkeypatch):
    def interrupted(command, *, environment):
        RunWriter.create(tmp_path / "run-verify", make_record()).end("interrupted")
        return 1  # as horovodrun ends

    monkeypatch.setattr(verify, "run_filtered", interrupted)
    assert main(["verify", str(written(tmp_path / "run"))]) == 130
    assert capsys.readouterr().out.endswith("\ninterrupted: no verdict\n")


# A real run

SMALL = [
    "--dataset", "synthetic:600x8x8x1x3", "--model", "mlp", "--epochs", "2", "--batch-size", "50", "--seed", "5",
    "--optimizer", "adam", "--learning-rate", "0.001", "--device", "cpu", "--threads", "1", "--name", "run",
]  # fmt: skip


@pytest.mark.ranks
@pytest.mark.ci
def test_a_real_run_of_two_torch_ranks_reproduces_bit_for_bit(tmp_path):
    first = run_command([*launcher_command("mpirun2"), *train_command("torch", SMALL)], folder=tmp_path)
    assert first.code == 0, first
    # Its epochs take milliseconds, so that times say nothing.
    verify = [sys.executable, "-m", "launch", "verify", "runs/run", "--time-ratio", "1000"]
    good = run_command(verify, folder=tmp_path)
    assert good.code == 0, good
    assert "\nhorovodrun -np 2 --mpi python " in good.stdout
    assert re.search(r"^stack +same\nfinal weights .* same, bit for bit$", good.stdout, re.M)
    assert "\nReproduces bit for bit.\n" in good.stdout
    again = read_run(tmp_path / "runs" / "run-verify")
    assert (again.state, again.record.hashes) == ("finished", read_run(tmp_path / "runs" / "run").record.hashes)
