"""The bench: its statistics on made data, what it prints, what it refuses, and one start of each framework."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from common.checks.bench_turns import Turn
from launch.__main__ import main
from launch.checks.bench_table import STARTS, Row, Spread, controller_lines, format_table, make_row, pair_ratios, spread

MPI = next(start for start in STARTS if start.name == "mpi")
GLOO = next(start for start in STARTS if start.name == "gloo")


def turn(contestant: str, number: int, *, images: int, seconds: float) -> Turn:
    ranks = 2 if contestant == "np2" else 1
    return Turn(model="cnn", contestant=contestant, round=number, ranks=ranks, steps=1, images=images, seconds=seconds,
                cpu_seconds=seconds)  # fmt: skip


def row(ratio: Spread, start: object = MPI) -> Row:
    return Row(
        framework="torch", model="cnn", start=start, base=spread([1000.0]), measured=spread([1800.0]), ratio=ratio
    )


def test_the_ratio_is_that_of_pairs_not_of_averages() -> None:
    """The machine slows down threefold between rounds: pairs do not see it, averages would mix it in."""
    turns = [
        turn("np1", 0, images=300, seconds=1.0),
        turn("np2", 0, images=600, seconds=1.0),
        turn("np1", 1, images=300, seconds=3.0),
        turn("np2", 1, images=600, seconds=4.0),
        turn("np1", 2, images=300, seconds=1.0),
        turn("np2", 2, images=900, seconds=2.0),
        turn("np1", 3, images=300, seconds=1.0),  # its pair was never measured
    ]
    assert pair_ratios(turns, base="np1", measured="np2") == pytest.approx([2.0, 1.5, 1.5])
    result = make_row(turns, framework="torch", start=MPI)
    assert result.ratio == Spread(1.5, 1.5, 2.0, 3)
    assert (result.base.median, result.measured.median) == (300.0, 450.0)


def test_the_spread_of_an_even_number_of_values() -> None:
    assert spread([4.0, 1.0, 3.0, 2.0]) == Spread(2.5, 1.0, 4.0, 4)


def test_the_table_has_base_range_and_count() -> None:
    table = format_table([row(Spread(1.8, 1.75, 1.851, 5))])
    assert [
        word for word in ("1,000", "1,800", "1.80 (1.75-1.85)", "np 2 / np 1, MPI that yields") if word not in table
    ] == []
    assert table.splitlines()[-1].endswith("5")


def test_the_winner_is_named_and_overlapping_ranges_are_said() -> None:
    clear = [row(Spread(1.8, 1.7, 1.9, 5)), row(Spread(1.5, 1.4, 1.6, 5), start=GLOO)]
    assert controller_lines(clear) == ["cnn, torch: mpi won, 1.80 against 1.50 (gloo)"]
    close = [row(Spread(1.8, 1.7, 1.9, 5)), row(Spread(1.85, 1.75, 1.9, 5), start=GLOO)]
    assert controller_lines(close) == ["cnn, torch: gloo won, 1.85 against 1.80 (mpi); the ranges overlap"]
    assert controller_lines(clear[:1]) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--models", "resnet35"], ("'resnet35'", "resnet34")),
        (["--frameworks", "jax"], ("'jax'", "torch, keras")),
        (["--starts", "nccl"], ("'nccl'", "gloo")),
        (["--rounds", "0"], ("--rounds 0",)),
        (["--seconds", "0"], ("--seconds 0",)),
        (["--frameworks", "keras", "--starts", "ddp"], ("ddp",)),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert all(word in printed.err for word in (*words, "Received:"))


def test_an_existing_file_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("framework", "start", "contestants"), [("torch", "bare", {"bare": 1, "np1": 1}),
                                                                 ("keras", "mpi", {"np1": 1, "np2": 2})])  # fmt: skip
def test_a_quick_start(framework: str, start: str, contestants: dict[str, int], tmp_path: Path) -> None:
    pytest.importorskip("torch" if framework == "torch" else "tensorflow")
    pytest.importorskip("horovod")
    output = tmp_path / "new" / "bench.json"
    command = [sys.executable, "-m", "launch", "bench", "--quick", "--models", "cnn", "--frameworks", framework]
    done = subprocess.run([*command, "--starts", start, "--output", str(output)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(output) in done.stdout
    record = json.loads(output.read_text())
    (measured,) = record["starts"]
    turns = [Turn(**values) for values in measured["turns"]]
    assert [(turn.contestant, turn.round) for turn in turns] == [
        (name, number) for number in (0, 1) for name in contestants
    ]
    assert all(turn.ranks == contestants[turn.contestant] for turn in turns)
    assert all(turn.images == turn.steps * turn.ranks * 64 and turn.seconds > 0 for turn in turns)
    assert measured["ratios"]["cnn"]["n"] == 2
    assert {"packages", "processor", "threads", "controller"} <= set(measured["environment"])
    assert len(record["load_average_before"]) == 3
