"""The frame of both trainers: exit codes, one line from rank 0, a status for bugs and signals, resumed settings."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from builders import make_config, make_record, make_setup, random_weights
from fake_ranks import alone, run_ranks
from played_session import FakeTrainer, LostRankError, no_hooks

from common.errors import UserError
from common.run_folder.checkpoints import PartialEpoch
from common.run_folder.records import RunWriter, read_run
from common.training import entry_point as program_module
from common.training.entry_point import exit_rank, program_name, read_settings, run_program
from common.training.resume import MAY_CHANGE

PROGRAM = "torch_impl/train.py"


@pytest.fixture(autouse=True)
def _no_signal_handlers(request, monkeypatch):
    """Leave this process's signals alone; the tests of signals start a process of their own."""
    monkeypatch.setattr(program_module, "_watch_signals", lambda session: None)
    yield


def run_with(train, settings, *, size=1):
    def work(comm):
        return run_program(train, settings, comm=comm, hooks=no_hooks, framework="torch", program=PROGRAM)

    return [work(alone())] if size == 1 else run_ranks(size, work)


def start(config, comm, session):
    session.start(make_setup(config, size=comm.size), device="cpu", gpu=None, threads=1)


def status_of(folder):
    return read_run(folder).record.status


def test_success_is_exit_code_0(tmp_path):
    config = make_config(tmp_path)
    given = []
    assert run_with(lambda *arguments: given.append(arguments), config) == [0]
    ((settings, comm, session),) = given
    assert settings is config and comm.size == 1 and session.framework == "torch"


@pytest.mark.parametrize("size", [1, 3])
def test_wrong_settings_are_one_line_of_rank_0_and_exit_code_2(size, capfd):
    settings = read_settings(["--epochs", "-1"], program=PROGRAM)
    assert isinstance(settings, UserError)
    assert run_with(lambda *_: pytest.fail("was trained"), settings, size=size) == [2] * size
    output = capfd.readouterr()
    assert output.out == ""
    assert output.err == f"{PROGRAM}: error: {settings}\n" and "--epochs -1" in output.err


def test_too_little_memory_is_one_line_and_exit_code_2(tmp_path, capfd):
    def train(config, comm, session):
        start(config, comm, session)
        capfd.readouterr()
        raise MemoryError

    assert run_with(train, make_config(tmp_path)) == [2]
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and "not enough memory" in error
    assert status_of(tmp_path / "run").state == "failed"


def test_an_error_of_one_rank_is_one_line_and_exit_code_2_of_all(tmp_path, capfd):
    def train(config, comm, session):
        start(config, comm, session)
        capfd.readouterr()
        with comm.propagate_errors("training"):
            if comm.rank == 1:
                raise UserError("labels out of range. Received: 11. Correct the source")

    assert run_with(train, make_config(tmp_path, training={"batch_size": 15}), size=2) == [2, 2]
    assert (
        capfd.readouterr().err == f"{PROGRAM}: error: labels out of range. Received: 11. Correct the source (rank 1)\n"
    )
    status = status_of(tmp_path / "run")
    assert status.state == "failed" and "labels out of range" in str(status.message)


def test_a_full_disk_is_one_line_even_if_the_status_cannot_be_written(tmp_path, monkeypatch, capfd):
    def full(*args, **settings):
        raise OSError(28, "No space left on device", str(tmp_path))

    def train(config, comm, session):
        start(config, comm, session)
        monkeypatch.setattr(os, "fsync", full)
        trainer = FakeTrainer(random_weights(session.setup))
        session.start_training(trainer, None).save_epoch(1, trainer.state, PartialEpoch())

    assert run_with(train, make_config(tmp_path)) == [2]
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and "No space left on device" in error and "Free some space" in error


@pytest.mark.parametrize("bug", [ZeroDivisionError("a bug\nof two lines"), SystemExit(7)])
def test_a_bug_keeps_its_traceback_and_leaves_a_failed_status(bug, tmp_path):
    def train(config, comm, session):
        start(config, comm, session)
        raise bug

    with pytest.raises(type(bug)) as error:
        run_with(train, make_config(tmp_path))
    assert error.value is bug
    status = status_of(tmp_path / "run")
    assert status.state == "failed" and status.ended_at is not None
    assert str(status.message) == ("of two lines" if isinstance(bug, ZeroDivisionError) else "SystemExit: 7")


def test_a_lost_rank_is_one_line_and_the_run_can_be_resumed(tmp_path, capfd):
    def train(config, comm, session):
        start(config, comm, session)
        raise LostRankError("Connection closed by peer")

    assert run_with(train, make_config(tmp_path)) == [3]
    assert capfd.readouterr().err == "another rank has ended; finished epochs are kept, continue with --resume\n"
    status = status_of(tmp_path / "run")
    assert (status.state, status.message) == ("interrupted", "another rank has ended")


SIGNALLED = """
    import signal, sys
    from pathlib import Path
    from builders import make_config, make_setup
    from fake_ranks import alone
    from common.training.entry_point import run_program
    from played_session import no_hooks

    def train(config, comm, session):
        session.start(make_setup(config), device="cpu", gpu=None, threads=1)
        print("started", flush=True)
        while True:
            signal.pause()

    run_program(train, make_config(Path(sys.argv[1])), comm=alone(), hooks=no_hooks, framework="torch",
                program="train.py")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_at_once_with_its_status(number, tmp_path):
    tests = Path(__file__).parents[2] / "support"
    environment = {**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent}"}
    command = [sys.executable, "-c", textwrap.dedent(SIGNALLED), str(tmp_path)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        assert any(line == "started\n" for line in process.stdout)
        process.send_signal(number)
        error = process.communicate(timeout=30)[1]  # the run itself would sleep for a minute
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert error == f"interrupted by {number.name}; finished epochs are kept, continue with --resume\n"
    status = status_of(tmp_path / "run")
    assert (status.state, status.message) == ("interrupted", f"received {number.name}")


def test_leave_ends_at_once_with_the_code():
    lines = (
        "import atexit",
        "from common.training.entry_point import exit_rank",
        "atexit.register(print, 'late')",
        "print('x')",
    )
    code = "\n".join([*lines, "exit_rank(2)"])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[3], timeout=120
    )
    assert (done.returncode, done.stdout) == (2, "x\n")
    assert exit_rank(0) is None


def test_program_names():
    assert program_name("/anywhere/torch_impl/train.py") == "torch_impl/train.py"


@pytest.fixture
def old_run(tmp_path):
    """The folder of a run with settings that are not the defaults."""
    RunWriter.create(tmp_path / "old", make_record(config=make_config(tmp_path))).end("interrupted")
    return tmp_path / "old"


def test_a_resumed_run_has_its_settings(old_run):
    config = read_settings(["--resume", str(old_run)], program=PROGRAM)
    expected = make_config(old_run.parent, record={"resume": str(old_run)})
    assert config == expected


CHANGES = {
    "epochs": "9",
    "max_steps": "5",
    "keep": "3",
    "checkpoint_minutes": "2.5",
    "progress": "lines",
    "tensorboard": None,
    "data_folder": "/data",
    "stall_seconds": "90.0",
    "on_stall": "end",
}


def test_every_change_that_is_allowed_is_tried_below():
    assert set().union(*MAY_CHANGE.values()) - {"resume", "resume_or_start"} == set(CHANGES)


@pytest.mark.parametrize("name", CHANGES)
def test_what_may_change(name, old_run):
    flags = [f"--{name.replace('_', '-')}", *([CHANGES[name]] if CHANGES[name] else [])]
    config = read_settings(["--resume", str(old_run), *flags], program=PROGRAM)
    values = {field: value for part in config.as_dict().values() for field, value in part.items()}
    assert str(values[name]) == (CHANGES[name] or "True")


def test_the_old_value_may_be_given_again_also_by_a_recipe(old_run, tmp_path):
    (tmp_path / "recipe.toml").write_text('[model]\nmodel = "mlp"\n[training]\nepochs = 3\n')
    config = read_settings(
        ["--resume", str(old_run), "--recipe", str(tmp_path / "recipe.toml"), "--batch-size", "30"], program=PROGRAM
    )
    assert (config.model.model, config.training.epochs, config.training.batch_size) == ("mlp", 3, 30)


def test_a_cosine_may_be_given_its_length_again(tmp_path):
    config = make_config(tmp_path, schedule={"decay": "cosine"})
    RunWriter.create(tmp_path / "old", make_record(config=config)).end("interrupted")
    config = read_settings(["--resume", str(tmp_path / "old"), "--epochs", "3"], program=PROGRAM)
    assert config.training.epochs == 3
