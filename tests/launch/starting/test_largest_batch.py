"""`--find-largest-batch`: how batches are tried, and two real searches."""

import re
import sys
from contextlib import nullcontext

import pytest
from processes import finish, start_command

from common.config import parse_command_line
from common.errors import UserError
from common.training.run_setup import prepare_run
from launch.starting import largest_batch
from launch.starting.largest_batch import find_largest_batch

DATA = ["--dataset", "synthetic:1000x8x8x1x3", "--model", "mlp", "--device", "cpu", "--threads", "1"]
TORCH = {"framework": "torch", "controller": None, "arguments": DATA}


def experiment_of(size):
    return prepare_run(parse_command_line(DATA, program="train.py"), size=size)


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


def search(folder, framework, *more):
    command = [sys.executable, "-m", "launch", "train", "--framework", framework, "--np", "1", "--find-largest-batch"]
    ended = finish(start_command([*command, *more], folder=folder), within_seconds=300)
    return [str(ended.code), *ended.stdout.splitlines(), ended.stderr]


@pytest.mark.ranks
@pytest.mark.ci
def test_all_samples_fit_into_much_memory(tmp_path):
    code, first, *tries, last, _ = search(tmp_path, "torch", "--", *DATA, "--batch-size", "7")
    assert code == "0"
    batches = "batches of 1 to 1,000 images per rank, 1,000 by the numbers of the model"
    assert re.fullmatch(rf"memory: [\d.]+ GB for all ranks; {batches}", first)
    assert [line.split(":")[0] for line in tries] == ["batch 1,000"]
    assert all(re.search(r": fits, 0\.\d\d GB of the host$", line) for line in tries)
    assert last == "largest batch that fits: 1,000, all training samples of a rank"
    assert not (tmp_path / "runs").exists()


@pytest.mark.ranks
@pytest.mark.ci
def test_nothing_fits_into_no_memory_and_no_process_remains(tmp_path):
    code, _, *tries, last, _ = search(tmp_path, "keras", "--memory-gb", "0.05", "--", *DATA)
    assert code == "1"
    assert tries
    assert all(re.search(r": does not fit, the ranks took 0\.\d\d GB$", line) for line in tries)
    assert last == "not even one image fits"


@pytest.mark.parametrize(
    ("words", "is_full"),
    [("DefaultCPUAllocator: can't allocate memory", True), ("CUDA out of memory", True), ("no such thing", False)],
)
def test_full_memory_is_distinguished_from_failures_that_end_the_search(words, is_full, monkeypatch):
    command = [sys.executable, "-c", f"import sys; sys.exit({words!r})"]
    monkeypatch.setattr(largest_batch, "train_command", lambda *_, **__: command)
    refused = pytest.raises(UserError, match=r"a trial with a batch of 1000 failed. Received: no such thing")
    with nullcontext() if is_full else refused:
        assert find_largest_batch(experiment_of(1), **TORCH, memory_gb=None) == 0
