"""`python -m launch bench`: a start of each framework, shown by `python -m analysis bench`, and failing commands."""

import ast
import json
import os
import subprocess
import sys

import pytest

from common.checks.bench_record import BENCHES
from common.errors import UserError
from launch.__main__ import main
from launch.bench import memory, started_commands

CNN_BYTES = 4 * 21_840  # of one exchange


@pytest.mark.ranks
@pytest.mark.ci
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("framework", "start", "contestants"), [
    ("torch", "ddp_gloo", {"np2_ddp": 2, "np2": 2}),
    ("keras", "floor", {"np2_apart": 2, "np2_mpi": 2}),
    ("keras", "batches", {"bare_batches": 1, "np1": 1}),
])  # fmt: skip
def test_a_quick_start(framework, start, contestants, tmp_path):
    pytest.importorskip("torch" if framework == "torch" else "tensorflow")
    pytest.importorskip("horovod")
    output = tmp_path / "new" / "bench.json"
    quick = ["--rounds", "2", "--seconds", "0.02", "--models", "cnn", "--frameworks", framework, "--onednn", "off"]
    words = ["-m", "launch", "bench", *quick, "--starts", start, "--output", str(output)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert f"raw turns: {output}" in done.stdout
    assert "Speed in pairs of turns\nmodel" in done.stdout  # the table of `python -m analysis bench`
    (measured,) = BENCHES.read(output).starts
    assert [(turn.round, turn.contestant, turn.ranks) for turn in measured.turns] == [
        (number, *contestant) for number in range(2) for contestant in contestants.items()
    ]
    for turn in measured.turns:
        assert max(turn.rank_seconds) == turn.seconds > 0 and len(turn.rank_seconds) == turn.ranks
        assert turn.images == turn.steps * turn.ranks * 64
    assert {"threads", "controller", "source_revision", "packages", "processor"} <= set(measured.environment)
    assert set(measured.environment["onednn"]) == {"off"}
    timed = [turn for turn in measured.turns if turn.exchanges]
    assert {turn.contestant for turn in timed} == set(contestants) & {"np2", "np2_mpi"}
    for turn in timed:
        assert len(turn.exchanges) == turn.steps and min(turn.exchanges) > 0 <= turn.wait_seconds
        assert turn.sent_bytes == turn.steps * CNN_BYTES
    assert not timed or any(turn.wait_seconds for turn in timed)  # in one turn ranks may be ready at once
    assert json.loads(output.read_text())["finished"]


# Maps a file, waits until the other rank has, too, and stays for so many seconds.
RANK = """
import mmap, pathlib, sys, time
folder, own, seconds = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
with open(folder / "shared", "r+b") as file:
    held = mmap.mmap(file.fileno(), 0)
    sum(held[::4096])
    (folder / own).touch()
    while not (folder / "0").exists() or not (folder / "1").exists():
        time.sleep(0.01)
    time.sleep(seconds)
"""
SHARED_BYTES = 60_000_000


@pytest.mark.parametrize("stay", [("1", "2"), ("2", "1")], ids=["the first ends earlier", "the first ends later"])
def test_the_memory_is_that_of_the_second_rank_beside_the_first(stay, tmp_path, monkeypatch):
    """Of a file that both have mapped, each has half; also when the first has ended and nobody has waited for it."""
    monkeypatch.setattr(memory, "WINDOW_SECONDS", 0.5)
    (tmp_path / "shared").write_bytes(bytes(SHARED_BYTES))
    python = [sys.executable, "-c", RANK, str(tmp_path)]
    ranks = [["env", f"OMPI_COMM_WORLD_RANK={rank}", *python, rank, stay[int(rank)]] for rank in "01"]
    started_both = f"import subprocess as s; both = [s.Popen(one) for one in {ranks}]; both[1].wait()"
    with subprocess.Popen([sys.executable, "-c", started_both]) as process:
        found = memory.memory_of_second_rank(process, limit=60)
    assert SHARED_BYTES / 2 < found < 0.8 * SHARED_BYTES


def test_a_command_that_fails_shows_why(tmp_path, monkeypatch, capsys):
    endings = {"fails": "sys.exit(1)", "hanging": "time.sleep(60)"}

    def command(contestant, place, *, runs):
        return [sys.executable, "-c", f"import sys, time; print('the cause'); {endings.get(contestant, '')}"]

    monkeypatch.setattr(started_commands, "_command", command)
    for contestant, words in (
        ("fails", "ended with code 1"),
        ("imports_memory", "ended before its two ranks were there"),
        ("pydtnn", "printed no speed"),
        ("hanging", "did not end within 1 s"),
    ):
        if contestant == "hanging":
            monkeypatch.setattr(started_commands, "MOST_SECONDS", 1.0)
        with pytest.raises(UserError, match=words) as error:
            list(started_commands.command_turns(contestant, "other", framework="torch", rounds=1, size=2))
        assert "\n" not in str(error.value)
        assert contestant == "hanging" or "the cause" in capsys.readouterr().err


PYDTNN_FILES = {
    "__init__.py": "",
    "layers.py": """
class Layer:
    def __init__(self, **options): self.options = options
FC = Conv2D = Flatten = Input = MaxPool2D = Layer
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
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("GIVEN", str(tmp_path / "given"))
    monkeypatch.setattr(started_commands, "_RECIPE", (*started_commands._RECIPE, "--steps-per-epoch", "5"))
    output = tmp_path / "bench.json"
    arguments = ["--rounds", "1", "--frameworks", "torch", "--output", str(output)]
    assert main(["bench", *arguments, "--starts", "pydtnn_np2", "--pydtnn", sys.executable]) == 0
    (measured,) = BENCHES.read(output).starts
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
