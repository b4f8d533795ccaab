"""`--resume-or-start`: one command for a batch system to run again: it starts a run, resumes it, or does nothing.

Which runs it refuses: `refusals/launch-train.toml`.
"""

import json
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import DATASET, make_config
from fake_ranks import alone
from played_run import Played

from common.config import config_from_dict
from common.errors import UserError
from common.run import resume
from common.run.program import read_settings
from common.run.resume import AlreadyFinished, look_at_run
from common.run_folder.checkpoints import CHECKPOINTS_FOLDER, checkpoint_folders
from common.run_folder.records import now, read_run
from launch.__main__ import main

GONE = 2**22  # no process of this machine


def config_of(folder, **subjects):
    """Return settings of 3 epochs of 4 steps in a run of name `run` that is started or resumed."""
    base = make_config(folder, record={"resume_or_start": True})
    return config_from_dict(subjects, base=base)


def start(config):
    return Played(config, alone())


def run_some(config, epochs, *, end="failed"):
    """Train some epochs, then end the run; None ends it with its test."""
    played = start(config)
    for epoch in range(played.done + 1, epochs + 1):
        played.end_epoch(epoch)
    if end is None:
        played.finish()
    else:
        played.end(end)


def change_status(folder, **values):
    """Write other values into the status of a run."""
    file = folder / "run.json"
    record = json.loads(file.read_text())
    record["status"] |= values
    file.write_text(json.dumps(record))


def replace_sleep(monkeypatch, sleep):
    """Do something else in place of a wait for a heartbeat."""
    monkeypatch.setattr(resume, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(config):
    """Return why a run is neither started nor resumed; nothing is changed then."""
    before = contents(Path(config.record.runs_folder))
    with pytest.raises(UserError) as error:
        start(config)
    assert contents(Path(config.record.runs_folder)) == before and "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture(autouse=True)
def outside_of_slurm(monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)


def test_a_run_is_started_resumed_and_left_alone(tmp_path, capsys):
    config = config_of(tmp_path)
    run_some(config, 1)
    played = start(config)
    assert played.step == 4 and "resuming" in capsys.readouterr().out
    played.end_epoch(2)
    played.end("interrupted")
    run_some(config, 3, end=None)
    run = read_run(tmp_path / "run")
    assert run.state == "finished" and len(run.epochs) == 3
    assert run.record.status.resumed_after_epochs == [1, 2]
    before = contents(tmp_path)
    with pytest.raises(AlreadyFinished):
        start(config)
    assert contents(tmp_path) == before
    assert start(config_of(tmp_path, training={"epochs": 5})).step == 12
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("state", ["failed", "interrupted"])
def test_a_run_without_checkpoint_is_set_aside_and_started_again(state, tmp_path, capsys):
    config = config_of(tmp_path)
    for number in (1, 2):
        run_some(config, 0, end=state)
        (tmp_path / "run" / "mine").write_text(str(number))
    step = start(config).step
    assert step == 0
    assert f"its folder was moved to {tmp_path / 'set-aside/run-2'}\n" in capsys.readouterr().out
    for number in (1, 2):
        aside = tmp_path / f"set-aside/run-{number}"
        assert (aside / "mine").read_text() == str(number) and read_run(aside).state == state
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "set-aside"]


@pytest.mark.parametrize("left", [set(), {".run.json.abcdef"}, {"run.json"}])
def test_a_run_that_was_killed_at_once_is_set_aside(left, tmp_path):
    run_some(config_of(tmp_path), 0)
    (tmp_path / "run/.run.json.abcdef").touch()
    for file in (tmp_path / "run").iterdir():
        if file.name not in left:
            file.unlink()
    assert start(config_of(tmp_path)).step == 0
    assert {file.name for file in (tmp_path / "set-aside/run-1").iterdir()} == left


def test_a_checkpoint_whose_epoch_is_not_on_record_is_none(tmp_path):
    config = config_of(tmp_path)
    run_some(config, 1)
    (tmp_path / "run/epochs.jsonl").write_text("")
    assert start(config).step == 0
    assert checkpoint_folders(tmp_path / "set-aside/run-1")


def test_a_metered_run_is_started_again_unless_it_is_finished(tmp_path):
    config = config_of(tmp_path)
    run_some(config, 1)
    file = tmp_path / "run/run.json"
    file.write_text(file.read_text().replace('"energy": false', '"energy": true'))
    metered = config_of(tmp_path, energy={"energy": True})
    assert look_at_run(metered, framework="torch", report=print) == "to be set aside"
    change_status(tmp_path / "run", state="finished")
    assert look_at_run(metered, framework="torch", report=print) == "finished"
    longer = config_of(tmp_path, energy={"energy": True}, training={"epochs": 9})
    with pytest.raises(UserError, match="a metered run measures from its start to its end"):
        look_at_run(longer, framework="torch", report=print)


def test_a_run_whose_process_is_gone_is_resumed_at_once(tmp_path, monkeypatch):
    config = config_of(tmp_path)
    run_some(config, 1)
    change_status(tmp_path / "run", state="running", host=socket.gethostname(), process=GONE, heartbeat_at=now())
    replace_sleep(monkeypatch, lambda _: pytest.fail("it is known already"))
    assert start(config).step == 4


def test_a_job_that_slurm_requeued_is_resumed_at_once_on_another_host(tmp_path, monkeypatch):
    config = config_of(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "1234")
    run_some(config, 1)
    status = read_run(tmp_path / "run").record.status
    assert status.slurm_job == "1234.0"
    change_status(tmp_path / "run", state="running", host="node17", process=1, heartbeat_at=now())
    assert read_run(tmp_path / "run").state == "running"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert read_run(tmp_path / "run").state == "killed"
    replace_sleep(monkeypatch, lambda _: pytest.fail("it is known already"))
    assert start(config).step == 4
    status = read_run(tmp_path / "run").record.status
    assert status.slurm_job == "1234.1"


@pytest.mark.parametrize("job", ["1234.1", "123.0", "12345.0", None])
def test_other_jobs_are_not_taken_for_ones_own(job, tmp_path, monkeypatch):
    """Among them an earlier start of the same job: what it started may still run."""
    run_some(config_of(tmp_path), 1)
    monkeypatch.setenv("SLURM_JOB_ID", "1234")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    change_status(tmp_path / "run", state="running", host="node17", heartbeat_at=now(), slurm_job=job)
    assert read_run(tmp_path / "run").state == "running"


def test_a_heartbeat_that_continues_is_that_of_a_running_run(tmp_path, monkeypatch, capsys):
    config, folder = config_of(tmp_path), tmp_path / "run"
    run_some(config, 1)
    change_status(folder, state="running", host="node17", heartbeat_at="2026-01-31T12:00:00.000+00:00")
    monkeypatch.setattr("common.run_folder.records.seconds_since", lambda _: 1.0)
    minutes = iter(range(60))
    replace_sleep(
        monkeypatch,
        lambda _: change_status(folder, heartbeat_at=f"2026-01-31T12:{next(minutes):02d}:01.000+00:00"),
    )
    with pytest.raises(UserError, match=r"the run is still running\. Received: .*run\. Wait for it, or stop it first"):
        start(config)
    assert f"checking whether {folder} is still running on node17 (up to 60 s)\n" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_heartbeat_that_becomes_stale_is_waited_for(tmp_path, monkeypatch):
    """Also where the last one is seen late, as on a network's file system."""
    config, age = config_of(tmp_path), [50.0]
    run_some(config, 1)
    change_status(tmp_path / "run", state="running", host="node17", heartbeat_at=now())
    monkeypatch.setattr("common.run_folder.records.seconds_since", lambda _: age[0])

    def wait(seconds):
        if age[0] == 50.0:
            change_status(tmp_path / "run", heartbeat_at="2026-01-31T12:00:00.000+00:00")
        age[0] += seconds

    replace_sleep(monkeypatch, wait)
    assert start(config).step == 4
    assert 60.0 < age[0] < 62.0


def test_a_clock_that_is_far_ahead_does_not_make_it_wait_forever(tmp_path, monkeypatch):
    monkeypatch.setattr(resume, "STALE_HEARTBEAT_SECONDS", 0.3)
    monkeypatch.setattr(resume, "POLL_SECONDS", 0.01)
    run_some(config_of(tmp_path), 1)
    change_status(tmp_path / "run", state="running", host="node17", heartbeat_at="2999-01-31T12:00:00.000+00:00")
    assert "still running" in refused(config_of(tmp_path))


def test_other_settings_are_refused_also_where_the_run_could_be_set_aside(tmp_path):
    run_some(config_of(tmp_path), 0)
    assert "keeps its settings (seed is 1)" in refused(config_of(tmp_path, training={"seed": 2}))


def test_a_run_goes_on_from_another_folder_and_by_its_own(tmp_path, monkeypatch):
    run_some(config_of(tmp_path), 1)
    monkeypatch.chdir(tmp_path)
    played = start(config_of(tmp_path, record={"runs_folder": "."}))
    played.end("interrupted")
    assert played.step == start(read_settings(["--resume", "run"], program="torch_impl/train.py")).step == 4


def test_a_damaged_checkpoint_is_refused_not_set_aside(tmp_path):
    run_some(config_of(tmp_path), 1)
    next((tmp_path / "run" / CHECKPOINTS_FOLDER).glob("*/weights.safetensors")).write_bytes(b"noise")
    assert "cannot read the weights" in refused(config_of(tmp_path))


FLAGS = ["--dataset", DATASET, "--model", "mlp", "--batch-size", "30", "--epochs", "3", "--lr-scaling", "none"]
FLAGS += ["--warmup-epochs", "0", "--resume-or-start", "--name", "run"]


@pytest.mark.parametrize(("epochs", "end"), [(None, ""), (0, "failed"), (1, "failed"), (3, "finished")])
def test_launch_looks_before_it_starts_ranks(epochs, end, tmp_path, capsys):
    if epochs is not None:
        run_some(config_of(tmp_path), epochs, end=end)
    before = contents(tmp_path)
    capsys.readouterr()
    assert main(["train", "--np", "1", "--dry-run", "--", *FLAGS, "--runs-folder", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    finished = f"the run is already finished: {tmp_path / 'run'}\n"
    assert shown == finished if end == "finished" else shown.startswith("horovodrun -np 1 ")
    assert contents(tmp_path) == before
