"""`torch_impl/LESSON.md`: every command runs, and prints what the page tells a reader to expect."""

import difflib
import os
import re
import signal
import subprocess

import pytest
from processes import END_SECONDS, HANG_SECONDS, ROOT, finish, rank_processes, start_command
from waiting import wait_until

from common.run_folder.records import read_run

PAGE = (ROOT / "torch_impl" / "LESSON.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```sh\n(.*?)```\n(?:```text\n(.*?)```)?", re.DOTALL)
# Short settings for the commands that train on MNIST: number of a step -> words added.
SHORT = {
    8: "--dataset synthetic:1280x28x28x1x10 --max-steps 4",
    10: "--dataset synthetic:1280x28x28x1x10 --max-steps 4",
}
ELASTIC = 9
TOLERANCES = {"loss": 0.01, "accuracy": 0.005}  # kernels of other processors round differently


def step(number):
    """Return the commands and the expected output of each block of a step."""
    text = PAGE.split(f"\n## {number}. ")[1].partition("\n## ")[0]
    return [(commands.splitlines(), expected.splitlines()) for commands, expected in BLOCK.findall(text)]


def start(command, folder):
    """Start a command of the page in a folder that looks like the project."""
    for name in ("torch_impl", "launch"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    return start_command(["bash", "-c", command], folder=folder)


def figures(line):
    """Return (what, number) of the losses and accuracies in a line."""
    return [(what, float(number)) for what, number in re.findall(r"(loss|accuracy):? (\d\.\d+)", line)]


def agree(line, printed):
    """Return whether a line of the page and a printed one tell the same of the same epoch, to within the tolerances."""
    wanted, found = figures(line), figures(printed)
    assert wanted
    if line.partition(": ")[0] != printed.partition(": ")[0] or [what for what, _ in wanted] != [w for w, _ in found]:
        return False
    return all(abs(a - b) < TOLERANCES[what] for (what, a), (_, b) in zip(wanted, found, strict=True))


@pytest.mark.ranks
@pytest.mark.ci
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 7, 8, 10])
def test_each_command_prints_what_the_page_shows(number, tmp_path):
    for commands, expected in step(number):
        printed = ""
        for command in commands:
            is_training = "train.py" in command
            done = finish(
                start(f"{command} {SHORT[number]}" if is_training else command, tmp_path), within_seconds=HANG_SECONDS
            )
            assert done.code == 0, done.stdout + done.stderr
            printed += done.stdout
        shown = re.findall(r"(?:np \d, epoch|test acc).*", printed)
        for line in expected:
            assert any(agree(line, other) for other in shown), f"{line!r} is not in\n{printed}"


@pytest.mark.ranks
@pytest.mark.ci
def test_the_killed_rank_is_replaced(tmp_path):
    (train, _), (kill, expected) = step(ELASTIC)
    assert len(train) == len(kill) == 1 and "pgrep -f torch_impl/train.py" in kill[0]
    process = start(f"{train[0]} --dataset synthetic:1280x28x28x1x10 --epochs 20000", tmp_path)
    run = tmp_path / "runs" / "lesson-elastic"
    # From when the folder is there, the run goes on without a rank.
    wait_until(lambda: (run / "epochs.jsonl").exists() and len(rank_processes(process.pid)) == 2, process=process)
    os.kill(rank_processes(process.pid)["1"].pid, signal.SIGKILL)
    wait_until(lambda: len(changes_of(run)) == 2, process=process)
    os.killpg(process.pid, signal.SIGINT)
    done = finish(process, within_seconds=END_SECONDS)
    assert done.code != 124, done.stderr
    assert all(words in done.stdout for words in expected)
    assert [change.ranks_after for change in changes_of(run)] == [1, 2], "a new rank joins"


def changes_of(run):
    """Return how the ranks of a run have changed so far."""
    elastic = read_run(run).record.elastic
    return elastic.changes if elastic else []


def test_each_one_line_edit_changes_one_line_of_the_script():
    edits = re.findall(r"^sed '(.*)' torch_impl/minimal\.py > (\w+\.py)$", PAGE, re.MULTILINE)
    assert [name for _, name in edits] == ["unsharded.py", "apart.py", "unscaled.py"]
    script = ROOT / "torch_impl" / "minimal.py"
    lines = script.read_text(encoding="utf-8").splitlines()
    for edit, _ in edits:
        edited = subprocess.run(["sed", edit, script], capture_output=True, text=True, check=True, timeout=60)
        changes = [line for line in difflib.ndiff(lines, edited.stdout.splitlines()) if line.startswith("- ")]
        assert len(changes) == 1


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_the_script_is_short_and_numbers_its_steps(framework):
    text = (ROOT / f"{framework}_impl" / "minimal.py").read_text(encoding="utf-8")
    assert text.count("\n") <= 70
    steps = re.findall(r"# (\d)\. (\w+)", text)
    assert steps == list(zip("1234567", ("Init", "Pin", "Shard", "Scale", "Wrap", "Broadcast", "Rank"), strict=True))
