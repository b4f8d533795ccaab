"""`python -m launch train`: settings first, then the command, its lines without noise, its exit code, signals.

Also of ranks that come and go (`--elastic`), and of those that are started again (`--restarts`).
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from builders import DATASET
from given.launch import finished_run
from made_programs import ended_with_the_test
from processes import call

from common.distributed.launchers import HOST_ALIASES
from common.utils.paths import ROOT
from launch.__main__ import main
from launch.starting import processes, train
from launch.starting.launchers import launcher_at
from launch.starting.processes import Ended, run_filtered, trainer_environment

SMALL = ["--dataset", DATASET, "--model", "mlp", "--batch-size", "10"]


LOST, DONE = Ended(137, was_interrupted=False), Ended(0, was_interrupted=False)


class Starts:
    """What stands in for the start of ranks: it keeps the commands, looks at the environment, and ends as it should."""

    def __init__(self):
        self.commands = []
        self.ends = [Ended(7, was_interrupted=False)]
        self.look = lambda environment: None

    def __call__(self, command, *, environment):
        self.commands.append(list(command))
        self.look(environment)
        return self.ends[len(self.commands) - 1]


@pytest.fixture
def starts(monkeypatch):
    """What was started; nothing really is, and all programs are there."""
    starts = Starts()
    monkeypatch.setattr(train, "run_to_end", starts)
    monkeypatch.setattr(train.shutil, "which", lambda name, path=None: f"/bin/{name}" if path else None)
    return starts


def test_the_command_is_printed_as_one_could_type_it_and_its_exit_code_returned(starts, monkeypatch):
    monkeypatch.chdir(ROOT)
    settings = [*SMALL, "--runs-folder", "runs/with blank"]
    words = ["train", "--framework", "keras", "--np", "2", "--controller", "gloo"]
    expected = ["horovodrun", "-np", "2", "--gloo", "python", "keras_impl/train.py", *settings]
    assert call(main, *words, "--dry-run", "--", *settings) == f"{shlex.join(expected)}\n"
    assert starts.commands == []
    assert call(main, *words, "--", *settings, code=7) == f"{shlex.join(expected)}\n"
    assert starts.commands == [expected]


def test_the_command_works_from_any_folder(starts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = call(main, "train", "--np", "1", "--dry-run", "--", *SMALL).split()
    assert words[:4] == ["horovodrun", "-np", "1", "python"]
    assert (tmp_path / words[4]).resolve() == ROOT / "torch_impl" / "train.py"


def test_a_run_that_can_be_resumed_is_started(tmp_path, starts):
    finished_run(tmp_path)
    words = ["--resume", str(tmp_path / "old"), "--epochs", "4"]
    assert main(["train", "--np", "1", "--", *words]) == 7
    assert starts.commands[0][-4:] == words


@pytest.mark.parametrize(
    ("program", "words", "line"),
    [
        ("horovodrun", ["--np", "2"], "horovodrun is not installed"),
        (
            "srun",
            ["--np", "1", "--site", "slurm"],
            "srun is not installed. Received: a machine without Slurm. Give the command on",
        ),
        ("ssh", ["--np", "1", "--hosts", "node1:1"], "ssh is not installed"),
    ],
)
def test_a_missing_program_is_one_line_with_the_remedy(program, words, line, starts, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(train.shutil, "which", lambda name, path=None: None if name == program else f"/bin/{name}")
    call(main, "train", *words, "--", *SMALL, "--device", "cpu", code=2, shows=line)


@pytest.mark.parametrize("command", [["train", "--framework", "keras"], ["compare"], ["experiment", "run", "smoke"]])
def test_a_framework_that_is_not_installed_is_one_line(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(processes, "missing_packages", lambda name: [name] if name == "keras" else [])
    line = "the framework is not installed. Received: keras. Run `make setup FRAMEWORKS=keras`"
    call(main, *command, code=2, shows=line)
    assert not list(tmp_path.iterdir())


def test_one_rank_needs_no_launcher(starts, monkeypatch):
    monkeypatch.setattr(train.shutil, "which", lambda name, path=None: None if name == "horovodrun" else f"/bin/{name}")
    assert main(["train", "--np", "1", "--", *SMALL]) == 7
    assert [Path(word).name for word in starts.commands[0][:2]] == ["python", "train.py"]


def test_a_folder_that_horovodrun_cannot_enter_on_other_hosts_is_refused(starts, tmp_path, monkeypatch):
    (tmp_path / "with blank").mkdir()
    monkeypatch.chdir(tmp_path / "with blank")
    line = "error: horovodrun does not find this folder on other hosts."
    call(main, "train", "--np", "2", "--hosts", "node1:1,node2:1", "--", *SMALL, code=2, shows=line)


# Ranks that come and go


def test_every_rank_of_this_host_has_a_name_that_leads_to_it(starts, tmp_path, monkeypatch):
    """Horovod asks a script for them, which reads a file that may be changed."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    words = ["train", "--elastic", "--np", "2", "--max-np", "64"]
    line, hosts = call(main, *words, "--dry-run", "--", *SMALL, "--batch-size", "40").splitlines()
    assert shlex.split(line)[:16] == [
        *("horovodrun", "-np", "2", "--min-np", "1", "--max-np", "64"),
        *("--host-discovery-script", "NEW_FOLDER/hosts.sh", "--gloo-timeout-seconds", "15"),
        *("--blacklist-cooldown-range", "5", "60", "--network-interfaces", "lo"),
    ]
    assert line.endswith(" --elastic")
    assert hosts == "NEW_FOLDER is made at the start; its hosts.sh prints: localhost:1 127.0.0.1:1"
    assert list(folder.iterdir()) == [] and starts.commands == []

    def look(environment):
        script = starts.commands[0][8]
        assert subprocess.check_output([script], text=True).split() == ["localhost:1", "127.0.0.1:1"]
        Path(script).with_name("hosts").write_text("node7:2\n")
        assert subprocess.check_output([script], text=True).split() == ["node7:2"]
        names = environment[HOST_ALIASES].split(",")
        assert len(set(names)) == 64 and {socket.gethostbyname(name) for name in names} == {"127.0.0.1"}

    starts.look = look
    assert main([*words, "--", *SMALL, "--batch-size", "40"]) == 7


def test_named_hosts_have_all_their_slots_and_no_other_names(starts, monkeypatch):
    def look(environment):
        script = starts.commands[0][8]
        assert subprocess.check_output([script], text=True).split() == ["node1:2", "node2:4"]
        assert HOST_ALIASES not in environment and "--network-interfaces" not in starts.commands[0]

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("launch.starting.launchers.require_hosts", lambda *_, **__: None)
    starts.look = look
    assert main(["train", "--elastic", "--np", "2", "--hosts", "node1:2,node2:4", "--", *SMALL]) == 7


def test_hosts_that_ssh_does_not_reach_are_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--elastic", "--hosts", "unknown.invalid:1,node1:1", "--", *SMALL]
    command, line = call(main, "train", "--np", "2", *words, code=2).splitlines()
    assert command.startswith("horovodrun ") and "ssh does not reach" in line


@pytest.mark.parametrize(
    ("ends", "state", "restarts", "code", "count"),
    [
        ([LOST, LOST, DONE], "killed", 3, 0, 3),
        ([LOST, DONE], "interrupted", 1, 0, 2),
        ([LOST, LOST], "killed", 1, 137, 2),
        ([Ended(2, was_interrupted=False)], "failed", 3, 2, 1),  # an error, which would come again
        ([Ended(2, was_interrupted=False)], None, 3, 2, 1),
        ([LOST, DONE], None, 3, 0, 2),  # before there was a run folder
        ([LOST, DONE], "running", 3, 0, 2),  # as it looks for a minute, if its first rank was on another host
        ([Ended(130, was_interrupted=True)], "interrupted", 3, 130, 1),  # the user's Ctrl-C
    ],
)
def test_ranks_are_started_again_while_they_end_by_themselves(
    ends, state, restarts, code, count, starts, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "_state_of_run", lambda settings: state)
    starts.ends = ends
    printed = call(main, "train", "--np", "1", "--restarts", str(restarts), "--", *SMALL, code=code)
    (command,) = {shlex.join(command) for command in starts.commands}
    assert len(starts.commands) == count
    assert "--resume-or-start" in command and "--on-stall end" in command and " --name torch-np1-" in command
    assert printed.count(", from the newest checkpoint") == count - 1


def test_what_is_set_already_is_left_to_ranks_that_are_started_again(starts, tmp_path, monkeypatch):
    """By a flag in any spelling, or by a recipe."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('[record]\nname = "mine"\n[faults]\non_stall = "wait"\n')
    for given in (["--recipe", "mine.toml"], ["--name=mine", "--on_stall", "wait"]):
        printed = call(main, "train", "--np", "1", "--restarts", "1", "--dry-run", "--", *SMALL, *given)
        assert "--resume-or-start" in printed and "--on-stall end" not in printed and "torch-np1" not in printed


def test_the_record_names_the_machine_that_a_job_is_on():
    start = launcher_at("aws", hosts="a:4,b:4")
    chosen = start.recorded_arguments(["--site", "aws-g6-12xlarge"])
    assert chosen == ["--site", "aws-g6-12xlarge"]
    assert start.recorded_arguments([]) == ["--site", start.node]


# Programs


def test_trainers_find_the_programs_of_this_interpreter_first(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    environment = trainer_environment()
    assert environment["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/usr/bin"
    assert environment["TF_CPP_MIN_LOG_LEVEL"] == "3"


# A line of a launcher -> as it is shown; None: it is noise.
LINES = {
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR": None,
    "I0000 00:00:17 29 port.cc:153] oneDNN custom operations are on. You may see slightly different results.": None,
    "[1,0]<stderr>:I0000 cpu.cc:227] This TensorFlow binary is optimized to use available CPU instructions": None,
    "To enable the following instructions: AVX2, in other operations, rebuild TensorFlow with the compiler": None,
    "mpirun: Forwarding signal 18 to job": None,
    "epoch 1/3  loss 0.5": "epoch 1/3  loss 0.5",
    "[1,0]<stdout>:epoch 1/3": "epoch 1/3",
    "[0]<stderr>:train.py: error: no": "train.py: error: no",
    "[1,1]<stderr>:Traceback (most recent call last):": "[1,1]<stderr>:Traceback (most recent call last):",
    "[10]<stdout>:from rank 10": "[10]<stdout>:from rank 10",
    "said [1,0]<stdout>:inside": "said [1,0]<stdout>:inside",
    "[1,0]<stdout>:": "",
}


def run_python(code, *arguments):
    return run_filtered([sys.executable, "-c", textwrap.dedent(code), *arguments], environment=os.environ)


def test_lines_of_both_streams_are_passed_on_in_full_but_for_noise_and_the_tag_of_rank_0(capsys):
    code = """
        import sys
        for number in range(1000):
            print(*sys.argv[1:], sep="\\n")
            print("error", number, file=sys.stderr)
        sys.stdout.buffer.write(b"\\xff without end")
    """
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert run_python(code, *LINES) == 0
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    printed = capsys.readouterr()
    shown = "".join(f"{line}\n" for line in LINES.values() if line is not None)
    assert printed.out == 1000 * shown + "� without end"
    assert printed.err == "".join(f"error {number}\n" for number in range(1000))


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 128 + 9)])
def test_the_exit_code_is_the_programs(ending, code):
    assert run_python(f"import os, sys\n{ending}") == code


@pytest.mark.filterwarnings("error")
def test_a_closed_pipe_ends_the_program(monkeypatch):
    class Closed:
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    code = """
        import signal
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        while True:
            print("x" * 1000)
    """
    assert run_python(code) == 128 + signal.SIGPIPE


CHILD = """
import signal, sys

def leave(number, frame):
    print("received", number, flush=True)
    sys.exit(5)

signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGINT, leave)
print("ready", flush=True)
signal.pause()
"""
LAUNCHER = """
import os, sys
from launch.starting.processes import run_filtered
sys.exit(run_filtered([sys.executable, "-c", sys.argv[1]], environment=os.environ))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_program_which_ends_first(number):
    command = [sys.executable, "-c", LAUNCHER, CHILD]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    with ended_with_the_test(process):
        assert process.stdout.readline() == "ready\n"
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # a terminal sends Ctrl-C to all processes
        else:
            process.send_signal(number)
        rest = process.communicate(timeout=30)[0]
        assert rest == f"received {int(number)}\n" and process.returncode == 5
