"""`--find-largest-batch`: how batches are tried, and two real searches."""

import re
import sys
from contextlib import nullcontext

import pytest
from processes import finish, start_command

from common.config import parse_command_line
from common.errors import UserError
from common.task.prepare import prepare
from launch.starting import largest_batch
from launch.starting.largest_batch import find_largest_batch
from launch.starting.launchers import Launcher, launcher_at

DATA = ["--dataset", "synthetic:1000x8x8x1x3", "--model", "mlp", "--device", "cpu", "--threads", "1"]
TORCH = {"start": launcher_at(None, hosts=None), "framework": "torch", "controller": None, "arguments": DATA}


def experiment_of(size):
    return prepare(parse_command_line(DATA, program="train.py"), ranks=size)


@pytest.mark.parametrize(("limit", "size"), [(0, 1), (1, 1), (33, 1), (700, 1), (1000, 1), (333, 3)])
def test_the_answer_is_the_largest_up_to_its_fineness(limit, size, monkeypatch, capsys):
    tried = []

    def fits(command, folder, *, batch, limit_bytes):
        tried.append(batch)
        assert limit_bytes == 3e9
        return batch <= limit, ""

    monkeypatch.setattr(largest_batch, "_try", fits)
    largest = find_largest_batch(experiment_of(size), **TORCH, memory_gb=3)
    most = 1000 // size
    assert largest <= min(limit, most) <= largest + max(1, largest // 32)
    assert max(tried) <= most
    assert len(tried) == len(set(tried)) <= 12
    last = capsys.readouterr().out.splitlines()[-1]
    if largest:
        assert last.startswith(f"largest batch that fits: {largest:,}")
        assert ("all training samples of a rank" in last) == (largest == most)
    else:
        assert last == "not even one image fits"


@pytest.mark.parametrize("forecast", [985, 492])  # the next batch, or the one after it, is nearly all samples
def test_all_samples_are_tried_before_more_are_said_not_to_fit(forecast, monkeypatch, capsys):
    monkeypatch.setattr(largest_batch, "_try", lambda *_, **__: (True, ""))
    monkeypatch.setattr(largest_batch, "_forecast", lambda *_, **__: forecast)
    assert find_largest_batch(experiment_of(1), **TORCH, memory_gb=3) == 1000
    assert "all training samples of a rank" in capsys.readouterr().out


@pytest.mark.ranks
@pytest.mark.ci
@pytest.mark.parametrize(
    ("framework", "words", "tried", "last"),
    [
        (
            "torch",
            ["--", *DATA, "--batch-size", "7"],
            r"batch 1,000: fits, 0\.\d\d GB of the host",
            "largest batch that fits: 1,000, all training samples of a rank",
        ),
        (
            "keras",
            ["--memory-gb", "0.05", "--", *DATA],
            r"batch [\d,]+: does not fit, the ranks took 0\.\d\d GB",
            "not even one image fits",
        ),
    ],
)
def test_batches_are_tried_in_the_memory_that_there_is(tmp_path, framework, words, tried, last):
    command = [sys.executable, "-m", "launch", "train", "--framework", framework, "--np", "1", "--find-largest-batch"]
    ended = finish(start_command([*command, *words], folder=tmp_path), within_seconds=300)
    first, *tries, answer = ended.stdout.splitlines()
    assert (ended.code, answer) == (int(framework == "keras"), last), ended
    assert re.match(r"memory: [\d.]+ GB for all ranks; batches of 1 to 1,000 images per rank, ", first)
    assert tries and all(re.fullmatch(tried, line) for line in tries)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "is_full"),
    [("DefaultCPUAllocator: can't allocate memory", True), ("CUDA out of memory", True), ("no such thing", False)],
)
def test_full_memory_is_distinguished_from_failures_that_end_the_search(words, is_full, monkeypatch):
    command = [sys.executable, "-c", f"import sys; sys.exit({words!r})"]
    monkeypatch.setattr(Launcher, "command", lambda *_, **__: command)
    refused = pytest.raises(UserError, match=r"a trial with a batch of 1000 failed. Received: no such thing")
    with nullcontext() if is_full else refused:
        assert find_largest_batch(experiment_of(1), **TORCH, memory_gb=None) == 0
