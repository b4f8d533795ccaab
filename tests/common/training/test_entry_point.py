"""The frame of both trainers: how a run ends by an error, and the settings of one that is resumed."""

import subprocess
import sys

import pytest
from builders import make_config, make_record, make_setup
from fake_ranks import alone
from played_session import LostRankError, no_hooks

from common.run_folder.records import RunWriter, read_run
from common.training import entry_point
from common.training.entry_point import read_settings, run_program
from common.training.resume import MAY_CHANGE
from common.utils.paths import ROOT

PROGRAM = "torch_impl/train.py"


LOST = LostRankError("Connection closed by peer")
LINE_OF_LOST = "another rank has ended; finished epochs are kept, continue with --resume"


@pytest.mark.parametrize(
    ("error", "code", "line", "state", "message"),
    [
        (MemoryError(), 2, "not enough memory", "failed", "not enough memory"),
        (LOST, 3, LINE_OF_LOST, "interrupted", "another rank has ended"),
        # A bug keeps its traceback.
        (ZeroDivisionError("a bug\nof two lines"), None, "", "failed", "of two lines"),
        (SystemExit(7), None, "", "failed", "SystemExit: 7"),
    ],
)
def test_an_error_ends_a_run_whose_record_says_why(error, code, line, state, message, tmp_path, capfd, monkeypatch):
    def train(config, comm, session):
        session.start(make_setup(config), device="cpu", gpu=None, threads=1)
        raise error

    def run():
        config = make_config(tmp_path)
        return run_program(train, config, comm=alone(), hooks=no_hooks, framework="torch", program=PROGRAM)

    monkeypatch.setattr(entry_point, "_watch_signals", lambda session: None)  # of this process
    if code is None:
        with pytest.raises(type(error)) as raised:
            run()
        assert raised.value is error
    else:
        assert run() == code
        printed = capfd.readouterr().err
        assert printed.count("\n") == 1 and line in printed
    status = read_run(tmp_path / "run").record.status
    assert status.state == state and message in status.message and "\n" not in status.message
    assert status.ended_at is not None


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
