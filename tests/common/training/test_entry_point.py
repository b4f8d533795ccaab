"""The frame of both trainers: exit codes, one line from rank 0, a status for bugs and signals, resumed settings."""

import subprocess
import sys

import pytest
from builders import make_config, make_record, make_setup
from fake_ranks import alone
from played_session import LostRankError, no_hooks

from common.run_folder.records import RunWriter, read_run
from common.training import entry_point as program_module
from common.training.entry_point import read_settings, run_program
from common.training.resume import MAY_CHANGE
from common.utils.paths import ROOT

PROGRAM = "torch_impl/train.py"


def raise_in_training(error, config, monkeypatch):
    """Run a program that ends with an error once its session has started; return its exit code."""

    def train(config, comm, session):
        session.start(make_setup(config), device="cpu", gpu=None, threads=1)
        raise error

    monkeypatch.setattr(program_module, "_watch_signals", lambda session: None)  # of this process
    return run_program(train, config, comm=alone(), hooks=no_hooks, framework="torch", program=PROGRAM)


def status_of(folder):
    return read_run(folder).record.status


@pytest.mark.parametrize(
    ("error", "code", "line", "status"),
    [
        (MemoryError(), 2, "not enough memory", ("failed", "not enough memory")),
        (
            LostRankError("Connection closed by peer"),
            3,
            "another rank has ended; finished epochs are kept, continue with --resume",
            ("interrupted", "another rank has ended"),
        ),
    ],
)
def test_too_little_memory_and_a_lost_rank_are_one_line(error, code, line, status, tmp_path, capfd, monkeypatch):
    assert raise_in_training(error, make_config(tmp_path), monkeypatch) == code
    printed = capfd.readouterr().err
    assert printed.count("\n") == 1 and line in printed
    recorded = status_of(tmp_path / "run")
    assert recorded.state == status[0] and status[1] in recorded.message


@pytest.mark.parametrize("bug", [ZeroDivisionError("a bug\nof two lines"), SystemExit(7)])
def test_a_bug_keeps_its_traceback_and_leaves_a_failed_status(bug, tmp_path, monkeypatch):
    with pytest.raises(type(bug)) as error:
        raise_in_training(bug, make_config(tmp_path), monkeypatch)
    assert error.value is bug
    status = status_of(tmp_path / "run")
    assert status.state == "failed" and status.ended_at is not None
    assert str(status.message) == ("of two lines" if isinstance(bug, ZeroDivisionError) else "SystemExit: 7")


def test_a_rank_that_failed_ends_at_once():
    lines = ["import atexit", "from common.training.entry_point import exit_rank", "atexit.register(print, 'late')"]
    code = "\n".join([*lines, "print('x')", "exit_rank(0)", "exit_rank(2)"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (done.returncode, done.stdout) == (2, "x\n")


@pytest.fixture
def old_run(tmp_path):
    """The folder of a run with settings that are not the defaults."""
    config = make_config(tmp_path, schedule={"decay": "cosine"})
    RunWriter.create(tmp_path / "old", make_record(config=config)).end("interrupted")
    return tmp_path / "old"


CHANGES = {
    "max_steps": "5",
    "keep": "3",
    "checkpoint_minutes": "2.5",
    "progress": "lines",
    "tensorboard": "True",
    "data_folder": "/data",
    "stall_seconds": "90.0",
    "on_stall": "end",
}


def test_a_resumed_run_has_its_settings_but_for_those_that_may_change(old_run):
    config = read_settings([f"--resume={old_run}"], program=PROGRAM)
    assert config == make_config(old_run.parent, schedule={"decay": "cosine"}, record={"resume": str(old_run)})

    assert set().union(*MAY_CHANGE.values()) == {"resume", "resume_or_start", "epochs", *CHANGES}
    pairs = [(f"--{name.replace('_', '-')}", value) for name, value in CHANGES.items()]
    flags = [word for pair in pairs for word in pair if word != "True"]
    changed = read_settings(["--resume", str(old_run), *flags], program=PROGRAM)
    values = {name: str(value) for part in changed.as_dict().values() for name, value in part.items()}
    assert {name: values[name] for name in CHANGES} == CHANGES


def test_the_length_may_change_and_the_old_value_may_be_given_again_also_by_a_recipe(old_run, tmp_path):
    (tmp_path / "recipe.toml").write_text('[model]\nmodel = "mlp"\n')
    recipe = ["--recipe", str(tmp_path / "recipe.toml")]
    flags = ["--batch-size", "30", "--epochs", "3"]  # the cosine's, which is for 3 epochs
    config = read_settings(["--resume", str(old_run), *recipe, *flags], program=PROGRAM)
    assert (config.model.model, config.training.epochs, config.training.batch_size) == ("mlp", 3, 30)
    RunWriter.create(tmp_path / "plain", make_record(config=make_config(tmp_path))).end("interrupted")
    config = read_settings(["--resume", str(tmp_path / "plain"), "--epochs", "9"], program=PROGRAM)
    assert config.training.epochs == 9
