"""The frame of both trainers: how a run ends by an error, and the settings of one that is resumed."""

import pytest
from builders import make_config, make_record, make_task
from fake_ranks import alone, run_ranks
from played_run import HOOKS, LostRankError, Played
from processes import run_python

from common.run import program
from common.run.program import how_to_go_on, read_settings, run_program
from common.run.resume import MAY_CHANGE
from common.run_folder.records import read_run
from common.run_folder.run_writer import RunWriter

PROGRAM = "torch_impl/train.py"


LOST = LostRankError("Connection closed by peer")
LINE_OF_LOST = "another rank has ended\n"  # before there is something to resume


@pytest.mark.parametrize(
    ("error", "code", "line", "state", "message"),
    [
        (MemoryError(), 2, "not enough memory", "failed", "not enough memory"),
        (LOST, 3, LINE_OF_LOST, "interrupted", "another rank has ended"),
        # A bug keeps its traceback.
        (ZeroDivisionError("a bug\nof two lines"), None, "", "failed", "ZeroDivisionError: a bug"),
        (SystemExit(7), None, "", "failed", "SystemExit: 7"),
    ],
)
def test_an_error_ends_a_run_whose_record_says_why(error, code, line, state, message, tmp_path, capfd, monkeypatch):
    def train(config, comm, run):
        Played.open(run, make_task(config))
        raise error

    def run():
        config = make_config(tmp_path)
        return run_program(train, config, comm=alone(), hooks=HOOKS, framework="torch", program=PROGRAM)

    monkeypatch.setattr(program, "_watch_signals", lambda run: None)  # of this process
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


def test_a_rank_without_memory_says_so_itself(tmp_path, capfd, monkeypatch):
    """No other rank knows of it."""

    def train(config, comm, run):
        if comm.rank == 1:
            raise MemoryError

    def work(comm):
        config = make_config(tmp_path)
        return run_program(train, config, comm=comm, hooks=HOOKS, framework="torch", program=PROGRAM)

    monkeypatch.setattr(program, "_watch_signals", lambda run: None)  # of this process
    assert run_ranks(2, work) == [0, 2]
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"{PROGRAM}: error: there is not enough memory") and line.endswith(" (rank 1)")


@pytest.mark.parametrize(
    ("settings", "is_kept"), [({}, True), ({"energy": {"energy": True, "idle_seconds": 0}}, False)]
)
def test_a_run_that_ends_early_is_resumed_only_where_there_is_something_to_resume(settings, is_kept, tmp_path):
    run = Played(make_config(tmp_path / "new", **settings), alone()).run
    assert how_to_go_on(run) == ""
    run.recorder.end("interrupted", message="by the test")
    played = Played(make_config(tmp_path, training={"epochs": 2}, **settings), alone())
    played.end_epoch(1)
    assert ("continue with --resume" in how_to_go_on(played.run)) == is_kept


def test_a_rank_that_failed_ends_at_once():
    lines = ["import atexit", "from common.run.program import exit_rank", "atexit.register(print, 'late')"]
    code = "\n".join([*lines, "print('x')", "exit_rank(0)", "exit_rank(2)"])
    done = run_python("-c", code)
    assert (done.returncode, done.stdout) == (2, "x\n")


def resumed(folder, *flags, **subjects):
    """Return the settings of a run that is resumed, after it was started with those of some subjects."""
    if not folder.exists():
        config = make_config(folder.parent, **subjects)
        RunWriter.create(folder, make_record(config=config)).end("interrupted")
    return read_settings([f"--resume={folder}", *flags], program=PROGRAM)


CHANGES = {
    "training": {"epochs": 9, "max_steps": 5},
    "record": {"keep": 3, "checkpoint_minutes": 2.5, "progress": "lines", "tensorboard": True, "verbose": True},
    "data": {"data_folder": "/data"},
    "faults": {"stall_seconds": 90.0, "on_stall": "end"},
}


def test_a_resumed_run_has_its_settings_but_for_those_that_may_change(tmp_path):
    old, resume = tmp_path / "old", {"resume": str(tmp_path / "old")}
    assert resumed(old) == make_config(tmp_path, record=resume)
    named = {subject: names - {"resume", "resume_or_start"} for subject, names in MAY_CHANGE.items()}
    assert named == {subject: set(values) for subject, values in CHANGES.items()}
    pairs = [
        (f"--{name.replace('_', '-')}", str(value)) for values in CHANGES.values() for name, value in values.items()
    ]
    flags = [word for pair in pairs for word in pair if word != "True"]
    assert resumed(old, *flags) == make_config(tmp_path, **CHANGES | {"record": CHANGES["record"] | resume})


def test_the_old_values_may_be_given_again_also_by_a_recipe(tmp_path):
    (tmp_path / "recipe.toml").write_text('[model]\nmodel = "mlp"\n')
    recipe = ["--recipe", str(tmp_path / "recipe.toml")]
    flags = ["--batch-size", "30", "--epochs", "3"]  # which the cosine is for
    config = resumed(tmp_path / "old", *recipe, *flags, schedule={"decay": "cosine"})
    assert (config.model.model, config.training.epochs, config.training.batch_size) == ("mlp", 3, 30)
