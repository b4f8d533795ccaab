"""`python -m launch chaos`: faults are drawn by a seed, judged in every respect, counted, and a campaign goes on."""

import collections
import contextlib
import ctypes
import dataclasses
import itertools
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import psutil
import pytest
from processes import environment

from common.checks.chaos_record import SignalKind, Trial, add_trial, read_trials
from common.errors import UserError
from common.run_folder.checkpoints import checkpoint_folders
from common.run_folder.world_changes import WorldChange
from common.utils.paths import ROOT
from launch.__main__ import main
from launch.checks import chaos_files, chaos_trial
from launch.checks.chaos_files import DAMAGES, WRITERS, FileFault, FileTrials, Writer, draw_file_fault
from launch.checks.chaos_trial import HOST_KINDS, MARK, Trials, draw_fault
from launch.checks.file_faults import ACTIONS, build_library
from launch.checks.host_faults import can_have_hosts

TABLES = tomllib.loads(Path(__file__).with_name("chaos.toml").read_text())


def test_seed_and_number_decide_on_a_fault(monkeypatch):
    def drawn(seed=1, **options):
        return [draw_fault(seed, number, frameworks=["torch", "keras"], **options) for number in range(420)]

    monkeypatch.setattr(chaos_trial, "can_have_hosts", lambda: True)
    faults = drawn()
    assert faults == drawn() != drawn(2)
    kinds = [*get_args(SignalKind), chaos_trial.PAUSE]
    assert {(fault.way, fault.kind, fault.victim) for fault in faults} == {
        *itertools.product(["mpi", "gloo", "elastic"], kinds, ["0", "1", "launcher"]),
        *itertools.product(["mpi", "gloo"], ACTIONS, ["0"]),
        # Of hosts what the ranks of one host use.
        *(("mpi" if kind == "full shared memory" else "gloo", kind, "host") for kind in HOST_KINDS),
    }
    shares = [fault.share for fault in faults if fault.kind.startswith("SIG")]
    assert min(shares) < 0.1 and 0.95 < max(shares) <= 1.05
    again = {(fault.way, fault.kind) for fault in faults if fault.again}
    assert again == {("elastic", f"SIG{name}") for name in ("KILL", "TERM", "INT")}
    monkeypatch.setattr(chaos_trial, "can_have_hosts", lambda: False)
    assert {fault.kind for fault in drawn()} == {*kinds, *ACTIONS}
    assert {fault.way for fault in drawn(ways=["elastic"])} == {"elastic"}


def test_seed_and_number_decide_on_a_file_fault():
    faults, again, others = (
        [draw_file_fault(seed, number, writers=list(WRITERS)) for number in range(500)] for seed in (1, 1, 2)
    )
    assert faults == again != others
    damages = itertools.product(["run of PyTorch", "run of Keras"], DAMAGES)
    assert {(fault.writer, fault.kind) for fault in faults} == {*itertools.product(WRITERS, ACTIONS), *damages}
    drawn = collections.Counter(fault.writer for fault in faults)
    assert 0 < drawn["experiment"] < 0.4 * drawn["run of Keras"]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    library = tmp_path_factory.mktemp("library") / "file_faults.so"
    build_library(library)
    return library


def write_under(library, folder, *, operation, kind):
    """Write 10 bytes to each of two files: operations 1 to 4; then print the clock."""
    code = (
        f"import ctypes, os, time; before = time.time(); "
        f"ctypes.CDLL(None).file_faults_arm(b'{folder}', ctypes.c_long({operation}), {ACTIONS[kind]});"
        f"os.write(os.open('{folder}/a', os.O_CREAT | os.O_WRONLY), bytes(10));"
        f"os.chdir('{folder}'); os.write(os.open('b', os.O_CREAT | os.O_WRONLY), bytes(10));"
        f"open('/dev/null', 'w').write('elsewhere'); print(round(time.time() - before, -3))"
    )
    command = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.run(command, env={"LD_PRELOAD": str(library)}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("row", TABLES["operation"], ids=lambda row: f"{row['kind']} {row['number']}")
def test_the_chosen_file_operation_fails(row, library, tmp_path):
    ended = write_under(library, tmp_path, operation=row["number"], kind=row["kind"])
    assert ended.returncode == row["code"], ended.stderr
    assert [file.stat().st_size for file in sorted(tmp_path.iterdir())] == row["sizes"]
    assert row.get("printed", "") in ended.stdout + ended.stderr


GOOD_WRITER = """
import pathlib, time
def content(mark):
    there = mark.exists()
    mark.touch()
    return "again" if there else "much"
def main(arguments):
    folder = pathlib.Path(arguments[0])
    new, made = folder / ".made.new", folder / "made"
    try:
        with new.open("w") as file:
            file.write("much")
        new.rename(made)
    except OSError:
        new.unlink(missing_ok=True)
        return 2
    return 0
"""


@pytest.mark.parametrize("row", TABLES["writer"], ids=lambda row: row["id"])
def test_what_a_writer_does_wrong_is_found(row, library, tmp_path, monkeypatch):
    (tmp_path / "writer.py").write_text(GOOD_WRITER.replace(*row.get("edit", ["", ""])))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    wrong = row.get("wrong", {})
    if wrong.get("hung"):
        monkeypatch.setattr(chaos_files, "MOST_SECONDS", 1.0)
    monkeypatch.setitem(WRITERS, "writer", Writer("writer", lambda folder: [str(folder)], "made"))
    folder = tmp_path / "trials"
    folder.mkdir()
    with FileTrials(folder, library, writers=["writer"]) as trials:
        fault = FileFault(writer="writer", kind=row["kind"], share=(row["operation"] - 0.5) / 3)
        trial = trials.make(fault, number=0)
    assert trial.operation == row["operation"]
    assert trial.is_survived is not bool(wrong)
    assert {name: getattr(trial, name) for name in wrong} == wrong


def test_without_a_compiler_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="Install one"):
        build_library(tmp_path / "library.so")


def make_trial(**changes):
    values = {
        "number": 0, "framework": "torch", "way": "gloo", "kind": "SIGKILL", "victim": "1", "after_seconds": 3.5,
        "epochs_before": 2, "ended_seconds": 0.5, "hung": False, "is_readable": True, "is_kept": True, "starts": 2,
        "is_equal": True, "left_behind": [], "traceback": False,
    }  # fmt: skip
    return Trial(**(values | changes))


def make_change(seconds, *, cause="a rank ended", lost_steps=3, after=1):
    return WorldChange(
        at="2026-11-24T10:00:00+00:00", cause=cause, step=10, ranks_before=2, ranks_after=after, ended=[], joined=[],
        lost_steps=lost_steps, detect_seconds=0.1, agree_seconds=0.2, resume_seconds=seconds - 0.3,
    )  # fmt: skip


def test_trials_are_kept_and_counted_by_fault_and_survived_only_in_every_respect(tmp_path, capsys):
    hosts = {"cause": "the hosts changed", "lost_steps": 0}
    trials = [
        {"strikes": 4}, {"is_equal": False}, {"is_readable": False}, {"is_kept": False}, {"traceback": True},
        {"left_behind": ["sem.x"]},
        {"victim": "launcher", "hung": True, "starts": 0, "is_equal": False},
        {"strikes": 0, "starts": 1},  # its victim had ended: no fault
        {"way": "elastic", "changes": [make_change(seconds) for seconds in (1.0, 2.0, 6.0)]},
        {"way": "elastic", "changes": [make_change(18.0 - after, after=after, **hosts) for after in (3, 2, 1)]},
        {"way": "elastic", "framework": "keras", "changes": [make_change(3.0, lost_steps=9)]},
    ]  # fmt: skip
    for number, changes in enumerate(trials):
        add_trial(tmp_path, make_trial(number=number, **changes))
    words = ["--frameworks", "torch", "--faults", "0", "--file-faults", "0", "--folder", str(tmp_path)]
    assert main(["chaos", *words]) == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line.startswith(("elastic ", "gloo ", "keras ", "torch "))] == [
        "elastic SIGKILL to a rank 3 3 3 3 3 3 3 3 3",  # and do not end
        "gloo SIGKILL to a rank 9 6 6 6 5 5 6 5 1 0.5 0.5",
        "gloo SIGKILL to the launcher 1 1 0 0 1 1 0 0 0 0.5 0.5",
        "keras a rank ended 1 0.1 0.1 3 3 3 9 9",
        "torch a host was removed 1 0.1 0.1 17 17 17 0 0",
        "torch a rank ended 3 0.1 0.1 2 6 6 3 3",
        "torch a rank joined 1 0.1 0.1 15 15 15 0 0",
        "torch a rank that joined ended 1 0.1 0.1 16 16 16 0 0",
    ]
    assert f"13 faults, 6 not survived: see {tmp_path}; 1 more came before or after their victim" in lines


def left_of(folder):
    processes = psutil.process_iter(["environ", "status"])
    living = [process.info["environ"] for process in processes if process.info["status"] != psutil.STATUS_ZOMBIE]
    return [environ for environ in living if (environ or {}).get(MARK, "").startswith(str(folder))]


@pytest.mark.parametrize("moment", ["_wait_for_moment", "_epochs", "_ended"])
def test_a_campaign_that_is_interrupted_leaves_no_process(moment, library, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        assert left_of(tmp_path)
        raise KeyboardInterrupt

    def start(trials, fault, *, name, **_):
        return subprocess.Popen(["sleep", "600"], env={MARK: f"{trials.folder}/{name}"})

    monkeypatch.setattr(Trials, "_start", start)
    monkeypatch.setattr(Trials, moment, interrupt)
    if moment != "_ended":  # the first of the undisturbed run
        undisturbed = chaos_trial.Undisturbed(folder=tmp_path, seconds=1.0, operations=9)
        monkeypatch.setattr(Trials, "_reference", lambda *_: undisturbed)
    with pytest.raises(KeyboardInterrupt):
        Trials(tmp_path, library).make(
            chaos_trial.Fault(framework="torch", way="gloo", kind="SIGKILL", victim="1"), number=0
        )
    assert not left_of(tmp_path)


@pytest.mark.ranks
@pytest.mark.ci
def test_damage_that_nobody_finds_is_not_survived(library, tmp_path, monkeypatch):
    def damage(run, kind, *, seed):
        return checkpoint_folders(run)[-1]  # does nothing to it

    monkeypatch.setattr(chaos_files, "damage_newest_checkpoint", damage)
    with FileTrials(tmp_path, library, writers=["run of PyTorch"]) as trials:
        made = trials.make(FileFault(writer="run of PyTorch", kind=DAMAGES[0], share=0.6), number=0)
    assert not made.is_survived
    assert not made.is_readable


_CLONE_FS = 0x00000200
_CLONE_NEWNS = 0x00020000
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def own_shared_memory():
    """Give this thread, and the processes that it starts, an empty `/dev/shm`; without namespaces do nothing."""
    if not can_have_hosts():
        yield
        return
    folder = Path.cwd()
    with Path("/proc/thread-self/ns/mnt").open() as namespace:
        _called(_LIBC.unshare(_CLONE_NEWNS))
        try:
            for arguments in (["--make-rprivate", "/"], ["-t", "tmpfs", "tmpfs", "/dev/shm"]):
                subprocess.run(["mount", *arguments], check=True, timeout=60)
            yield
        finally:
            _called(_LIBC.unshare(_CLONE_FS))  # threads that were started since then share it
            _called(_LIBC.setns(namespace.fileno(), _CLONE_NEWNS))
            os.chdir(folder)  # which is the root after a change of namespace


def _called(code):
    if code != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@pytest.fixture(autouse=True)
def alone(request):
    """Tests beside this one kill ranks, whose shared memory stays."""
    with own_shared_memory() if request.node.get_closest_marker("ranks") else contextlib.nullcontext():
        yield


@pytest.fixture
def short_runs(monkeypatch):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(chaos_trial, "EPOCHS", 5)


@pytest.mark.ranks
@pytest.mark.ci
def test_a_rank_that_ends_before_all_have_met_leaves_the_other_to_go_on(library, tmp_path, short_runs):
    """And before there is a run folder."""
    early = chaos_trial.Fault(framework="torch", way="elastic", kind="SIGKILL", victim="0", share=0.1)
    made = Trials(tmp_path, library).make(early, number=0)
    assert made.is_survived and made.starts == 1, (made, printed(tmp_path))


@pytest.mark.ranks
@pytest.mark.ci
def test_a_short_campaign_loses_nothing_and_goes_on(tmp_path, short_runs, monkeypatch, capfd):
    folder = tmp_path / "chaos"
    command = ["chaos", "--frameworks", "torch", "--folder", str(folder), "--seed", "3", "--file-faults", "0"]
    network = chaos_trial.Fault(framework="torch", way="gloo", kind="network down", victim="host", epochs=2)
    if not can_have_hosts():
        network = dataclasses.replace(network, kind="SIGSTOP", victim="0")
    full_disk = chaos_trial.Fault(framework="torch", way="gloo", kind="ENOSPC", victim="0", share=0.3)
    drawn = []

    def as_listed(seed, number, **_):
        drawn.append(number)
        return [network, full_disk][number]

    monkeypatch.setattr("launch.checks.chaos.draw_fault", as_listed)
    assert main([*command, "--faults", "1"]) == 0, (capfd.readouterr(), printed(folder))
    first = read_trials(folder)
    assert main([*command, "--faults", "2"]) == 0, (capfd.readouterr(), printed(folder))
    assert drawn == [0, 1]
    trials = read_trials(folder)
    assert trials[:1] == first
    assert [trial.starts for trial in trials] == [2, 2]
    assert all(trial.is_survived for trial in trials)
    assert [trial.operation is None for trial in trials] == [True, False]
    assert "2 faults, 0 not survived" in capfd.readouterr().out
    assert not left_of(tmp_path)


def printed(folder):
    return "".join(log.read_text() for log in sorted(folder.glob("*.log")))


@pytest.mark.ranks
@pytest.mark.ci
def test_file_faults_lose_nothing(tmp_path, capfd):
    """With a seed that draws every kind and every program."""
    folder = tmp_path / "chaos"
    command = ["chaos", "--frameworks", "torch", "--folder", str(folder), "--faults", "0"]
    command += ["--file-faults", "10", "--seed", "1705"]
    assert main(command) == 0, (capfd.readouterr(), printed(folder))
    trials = read_trials(folder)
    assert len(trials) == 10
    assert {trial.kind for trial in trials} == {*ACTIONS, *DAMAGES}
    assert {trial.victim for trial in trials} == WRITERS.keys() - {"run of Keras"}
    # Other programs may end after the file that counts has its name.
    killed = [trial for trial in trials if (trial.kind, trial.victim) == ("end", "run of PyTorch")]
    assert {trial.starts for trial in killed} == {2}
    assert not list(folder.glob("files-*"))  # of faults that were survived nothing stays
