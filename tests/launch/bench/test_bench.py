"""`python -m launch bench`: what it refuses, and one start of each framework, shown by `python -m analysis bench`."""

import ast
import json
import subprocess
import sys
from contextlib import contextmanager

import pytest

from common.checks.bench_record import COMMAND, BenchRecord
from common.checks.result_file import read_result
from common.errors import UserError
from launch.__main__ import main
from launch.bench import command, started_commands
from launch.bench.memory import memory_of_second_rank
from launch.starting.processes import started


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--models", "resnet35"], ("'resnet35'", "resnet34")),
        (["--frameworks", "jax"], ("'jax'", "torch")),
        (["--starts", "nccl"], ("'nccl'", "exchange_gloo")),
        (["--rounds", "0"], ("argument --rounds: must be a whole number, 1 or more. Received: 0",)),
        (["--seconds", "0"], ("Received: --seconds 0",)),
        (["--frameworks", "keras", "--starts", "ddp"], ("Received: --starts ddp",)),
        (["--frameworks", "keras", "keras", "--starts", "ddp"], ("--frameworks keras. Of PyTorch alone",)),
        (["--starts", "bare", "pydtnn"], ("Received: --starts bare pydtnn", "add --pydtnn")),
        (["--starts", "pydtnn", "--pydtnn", sys.executable], (f"Received: --pydtnn {sys.executable}",)),
        (["--starts", "pydtnn", "--pydtnn", "/missing/python"], ("Received: --pydtnn /missing/python",)),
        (["--starts", "pydtnn", "--pydtnn", "/bin/true"], ("Received: --pydtnn /bin/true",)),
        (["--starts", "bare", "--pydtnn", sys.executable], ("no start needs PyDTNN", "Add pydtnn or pydtnn_np2")),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, words, capsys):
    try:
        code = main(["bench", *arguments])
    except SystemExit as error:
        code = int(str(error.code))
    assert code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert all(word in printed.err for word in words)


def test_an_existing_file_is_not_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "load_dataset", lambda name: pytest.fail("data are fetched before all is checked"))
    output = tmp_path / "bench.json"
    output.write_text("mine")
    assert main(["bench", "--output", str(output)]) == 2
    assert output.read_text() == "mine"
    assert str(output) in capsys.readouterr().err
    assert main(["bench", "--output", str(tmp_path / ("b" * 300))]) == 2
    assert "File name too long" in capsys.readouterr().err
    assert main(["bench", "--output", str(tmp_path / "new.json"), "--starts", "ddp", "--frameworks", "keras"]) == 2
    assert "Received: --starts ddp --frameworks keras" in capsys.readouterr().err
    assert not (tmp_path / "new.json").exists()


CNN_BYTES = 4 * 21_840  # of one exchange


@pytest.mark.ranks
@pytest.mark.ci
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("framework", "start", "contestants"), [
    ("torch", "ddp_gloo", {"np2_ddp": 2, "np2": 2}),
    ("torch", "floor_spinning", {"np2_apart": 2, "np2_mpi": 2}),
    ("torch", "batches", {"bare_batches": 1, "np1": 1}),
    ("keras", "floor", {"np2_apart": 2, "np2_mpi": 2}),
    ("keras", "batches", {"bare_batches": 1, "np1": 1}),
    ("keras", "exchange", {"np2_apart": 2, "np2": 2}),
    ("torch", "horovodrun", {"mpirun": 2, "horovodrun": 2}),
    ("torch", "first_update", {"imports": 2, "first_update": 2}),
])  # fmt: skip
def test_a_quick_start(framework, start, contestants, tmp_path):
    pytest.importorskip("torch" if framework == "torch" else "tensorflow")
    pytest.importorskip("horovod")
    output, rounds = tmp_path / "new" / "bench.json", 1 if start == "first_update" else 2
    started_by = [
        sys.executable,
        "-m",
        "launch",
        "bench",
        "--rounds",
        str(rounds),
        "--seconds",
        "0.02",
        "--models",
        "cnn",
        "--frameworks",
        framework,
    ]
    done = subprocess.run([*started_by, "--starts", start, "--output", str(output)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"raw turns: {output}" in done.stdout
    assert "Speed in pairs of turns\nmodel" in done.stdout  # the table of `python -m analysis bench`
    (measured,) = read_result(output, BenchRecord, command="bench").starts
    assert [(turn.contestant, turn.round) for turn in measured.turns] == [
        (name, number) for number in range(rounds) for name in contestants
    ]
    assert all(turn.ranks == contestants[turn.contestant] for turn in measured.turns)
    assert all(turn.seconds > 0 for turn in measured.turns)
    if measured.turns[0].model != COMMAND:
        assert all(max(turn.rank_seconds) == turn.seconds and len(turn.rank_seconds) == turn.ranks
                   for turn in measured.turns)  # fmt: skip
    assert {"threads", "controller", "source_revision"} <= set(measured.environment)
    if measured.turns[0].model != COMMAND:
        assert all(turn.images == turn.steps * turn.ranks * 64 for turn in measured.turns)
        assert {"packages", "processor"} <= set(measured.environment)
    timed = [turn for turn in measured.turns if turn.exchanges]
    assert {turn.contestant for turn in timed} == set(contestants) & {"np2", "np2_mpi"}
    assert all(len(turn.exchanges) == turn.steps for turn in timed)
    assert all(min(turn.exchanges) > 0 <= turn.wait_seconds for turn in timed)
    assert not timed or any(turn.wait_seconds for turn in timed)  # in one turn ranks may be ready at once
    assert all(turn.sent_bytes == turn.steps * CNN_BYTES for turn in timed)
    assert json.loads(output.read_text())["finished"]


@pytest.mark.ci
def test_a_report_is_made_and_then_found_up_to_date(monkeypatch):
    monkeypatch.setattr(started_commands, "REPORT_RUNS", 12)
    monkeypatch.setattr(started_commands, "REPORT_SETTINGS", 2)
    said = []

    @contextmanager
    def noted(command, *, log, **others):
        with started(command, log=log, **others) as process:
            yield process
        said.append(log.read_text())

    monkeypatch.setattr(started_commands, "started", noted)
    turns = list(started_commands.command_turns("report", "report_again", framework="none", rounds=1, size=1))
    assert [(turn.contestant, turn.model, turn.ranks) for turn in turns] == [
        ("report", COMMAND, 1), ("report_again", COMMAND, 1)
    ]  # fmt: skip
    assert all(turn.seconds > 0 for turn in turns)
    made, again, made_anew, _ = said
    assert "chapters" in made and "is up to date" in again and "chapters" in made_anew


RANK = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as file:
    held = mmap.mmap(file.fileno(), 0)
    sum(held[::4096])
    time.sleep(float(sys.argv[2]))
"""
SHARED_BYTES = 60_000_000


@pytest.mark.parametrize("first_seconds", [1.2, 3.5], ids=["the first ends earlier", "the first ends later"])
def test_the_memory_is_that_of_the_second_rank_beside_the_first(first_seconds, tmp_path):
    """Of a file that both have mapped, each has half; also when the first has ended and nobody has waited for it."""
    file = tmp_path / "shared"
    file.write_bytes(bytes(SHARED_BYTES))
    ranks = [["env", f"OMPI_COMM_WORLD_RANK={number}", sys.executable, "-c", RANK, str(file), str(seconds)]
             for number, seconds in enumerate((first_seconds, 3.0))]  # fmt: skip
    started_both = f"import subprocess as s; both = [s.Popen(one) for one in {ranks}]; both[1].wait()"
    with subprocess.Popen([sys.executable, "-c", started_both]) as process:
        found = memory_of_second_rank(process, limit=60)
    assert found is not None
    assert SHARED_BYTES / 2 < found < 0.8 * SHARED_BYTES


def test_a_command_that_fails_shows_why(tmp_path, monkeypatch, capsys):
    def failing(contestant, place, *, runs):
        if contestant == "hanging":
            return [sys.executable, "-c", "import time; time.sleep(60)"]
        return [sys.executable, "-c", "import sys; print('the cause'); sys.exit(contestant == 'fails')"
                .replace("contestant", repr(contestant))]  # fmt: skip

    monkeypatch.setattr(started_commands, "_command", failing)
    monkeypatch.setattr(started_commands, "MOST_SECONDS", 1.0)
    for contestant, words in (
        ("fails", "ended with code 1"),
        ("imports_memory", "ended before its two ranks were there"),
        ("pydtnn", "printed no speed"),
        ("hanging", "did not end within 1 s"),
    ):
        with pytest.raises(UserError, match=words) as error:
            list(started_commands.command_turns(contestant, "other", framework="torch", rounds=1, size=2))
        assert "\n" not in str(error.value)
        assert ("the cause" in capsys.readouterr().err) is (contestant != "hanging")


PYDTNN_FILES = {
    "__init__.py": "",
    "layers.py": """
class Layer:
    def __init__(self, **options): self.options = options
class FC(Layer): pass
class Conv2D(Layer): pass
class Flatten(Layer): pass
class Input(Layer): pass
class MaxPool2D(Layer): pass
""",
    "pydtnn_benchmark.py": """
import importlib, os, pathlib, sys
def main():
    layers = []
    class Model: add = layers.append
    options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    importlib.import_module(f"pydtnn.models.{options['--model']}").create_recipe(Model)
    if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
        print("Training throughput: 7.0 samples/s")
        print(f"Training throughput (from model, from last half of each epoch): {100 * len(layers)}.5 samples/s")
        given = options | {"threads": os.environ["OMP_NUM_THREADS"], "ranks": os.environ["OMPI_COMM_WORLD_SIZE"]}
        pathlib.Path(os.environ["GIVEN"]).write_text(repr(given))
""",
    "models/__init__.py": "",
}


@pytest.mark.ranks
@pytest.mark.ci
def test_the_trainer_is_compared_with_another(tmp_path, monkeypatch):
    """With a package of PyDTNN's names in its place; the layers of the recipe are counted."""
    pytest.importorskip("horovod")
    for name, text in PYDTNN_FILES.items():
        file = tmp_path / "pydtnn" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("GIVEN", str(tmp_path / "given"))
    output = tmp_path / "bench.json"
    arguments = ["--rounds", "1", "--frameworks", "torch", "--output", str(output)]
    assert main(["bench", *arguments, "--starts", "pydtnn_np2", "--pydtnn", sys.executable]) == 0
    (measured,) = read_result(output, BenchRecord, command="bench").starts
    assert [(turn.contestant, turn.model, turn.ranks) for turn in measured.turns] == [
        ("pydtnn", "simplecnn", 2), ("recipe", "simplecnn", 2)
    ]  # fmt: skip
    given = ast.literal_eval((tmp_path / "given").read_text())
    assert given == given | {
        "threads": str(measured.environment["threads"]), "ranks": "2", "--batch_size": "64", "--steps_per_epoch": "125",
        "--validation_split": "0.2", "--optimizer": "adam", "--learning_rate": "0.01", "--parallel": "data",
    }  # fmt: skip
    assert measured.turns[0].value == pytest.approx(700.5)
    assert measured.turns[1].value > 0


@pytest.mark.ranks
@pytest.mark.ci
@pytest.mark.timeout(240)
def test_the_memory_of_training_is_compared_with_that_of_imports():
    pytest.importorskip("horovod")
    turns = list(
        started_commands.command_turns("imports_memory", "training_memory", framework="torch", rounds=1, size=2)
    )
    assert [(turn.contestant, turn.model, turn.unit, turn.ranks) for turn in turns] == [
        ("imports_memory", COMMAND, "MB", 2), ("training_memory", COMMAND, "MB", 2)
    ]  # fmt: skip
    imports, training = (turn.value for turn in turns)
    assert 50 < imports < training < 2000
