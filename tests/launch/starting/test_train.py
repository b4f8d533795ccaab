"""`python -m launch train`: settings first, then the command, its lines without noise, its exit code, signals."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from builders import DATASET
from given.launch import finished_run

from common.errors import UserError
from common.utils.paths import ROOT
from launch.__main__ import main
from launch.starting import train
from launch.starting.launchers import train_command
from launch.starting.processes import Ended, clean_line, run_filtered, trainer_environment
from launch.starting.ssh import Ssh, require_hosts

SMALL = ["--dataset", DATASET, "--model", "mlp", "--batch-size", "10"]


@pytest.fixture
def started(monkeypatch):
    """The commands that were started; none really is."""
    commands = []

    def start(command, *, environment):
        commands.append(list(command))
        return Ended(7, was_interrupted=False)

    monkeypatch.setattr(train, "run_to_end", start)
    monkeypatch.setattr(train.shutil, "which", lambda name, path=None: f"/bin/{name}" if path else None)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    return commands


def test_the_command_is_that_of_the_readme(monkeypatch):
    monkeypatch.chdir(ROOT)
    command = train_command("torch_impl/train.py", np=4, controller=None, arguments=["--epochs", "1"])
    assert command == ["horovodrun", "-np", "4", "python", "torch_impl/train.py", "--epochs", "1"]
    command = train_command("keras_impl/train.py", np=2, controller="gloo", arguments=[])
    assert command == ["horovodrun", "-np", "2", "--gloo", "python", "keras_impl/train.py"]


def test_the_command_works_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = train_command("torch_impl/train.py", np=1, controller=None, arguments=[])[-1]
    assert (tmp_path / path).resolve() == ROOT / "torch_impl" / "train.py"


def test_the_command_is_printed_as_one_could_type_it_and_its_exit_code_returned(started, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    folder = "runs/with blank"
    assert main(["train", "--framework", "keras", "--np", "2", "--", *SMALL, "--runs-folder", folder]) == 7
    expected = ["horovodrun", "-np", "2", "python", "keras_impl/train.py", *SMALL, "--runs-folder", folder]
    assert started == [expected]
    shown = capsys.readouterr().out
    assert shown == f"horovodrun -np 2 python keras_impl/train.py {' '.join(SMALL)} --runs-folder 'runs/with blank'\n"


def test_a_dry_run_starts_nothing(started, capsys):
    assert main(["train", "--np", "2", "--dry-run", "--", *SMALL]) == 0
    assert started == [] and capsys.readouterr().out.startswith("horovodrun -np 2 python ")


def test_a_run_that_can_be_resumed_is_started(tmp_path, started):
    finished_run(tmp_path)
    words = ["--resume", str(tmp_path / "old"), "--epochs", "4"]
    assert main(["train", "--np", "1", "--", *words]) == 7
    assert started[0][-4:] == words


def test_without_horovodrun_one_line_names_the_remedy(monkeypatch, capsys):
    monkeypatch.setattr(train.shutil, "which", lambda name, path=None: None)
    assert main(["train", "--np", "1", "--", *SMALL]) == 2
    assert "horovodrun is not installed" in capsys.readouterr().err


def test_a_missing_program_that_set_up_does_not_install_has_its_own_remedy(monkeypatch, capsys):
    monkeypatch.setattr(train.shutil, "which", lambda name, path=None: None)
    assert main(["train", "--site", "slurm", "--np", "1", "--", *SMALL]) == 2
    assert "srun is not installed. Received: a machine without Slurm. Give the command on" in capsys.readouterr().err
    with pytest.raises(UserError, match="ssh is not installed"):
        require_hosts(["node1"], ssh=Ssh())


def test_help_of_the_trainer_starts_nothing(started, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--", "--help"])
    assert stop.value.code == 0 and "--batch-size" in capsys.readouterr().out and started == []


def test_trainers_find_the_programs_of_this_interpreter_first(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    environment = trainer_environment()
    assert environment["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/usr/bin"
    assert environment["TF_CPP_MIN_LOG_LEVEL"] == "3"


NOISE = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n",
    "I0000 00:00:17 29 port.cc:153] oneDNN custom operations are on. You may see slightly different results.\n",
    "[1,0]<stderr>:I0000 cpu.cc:227] This TensorFlow binary is optimized to use available CPU instructions in perf\n",
    "To enable the following instructions: AVX2, in other operations, rebuild TensorFlow with the compiler flags.\n",
    "mpirun: Forwarding signal 18 to job\n",
]
LINES = [
    ("epoch 1/3  loss 0.5\n", "epoch 1/3  loss 0.5\n"),
    ("[1,0]<stdout>:epoch 1/3\n", "epoch 1/3\n"),
    ("[0]<stderr>:train.py: error: no\n", "train.py: error: no\n"),
    ("[1,1]<stderr>:Traceback (most recent call last):\n", "[1,1]<stderr>:Traceback (most recent call last):\n"),
    ("[10]<stdout>:from rank 10\n", "[10]<stdout>:from rank 10\n"),
    ("said [1,0]<stdout>:inside\n", "said [1,0]<stdout>:inside\n"),
    ("[1,0]<stdout>:\n", "\n"),
]


def test_noise_is_left_out_and_rank_0_has_no_tag():
    assert [clean_line(line) for line in NOISE] == [None] * len(NOISE)
    assert [(line, clean_line(line)) for line, _ in LINES] == LINES


def run_python(code, *arguments):
    return run_filtered([sys.executable, "-c", textwrap.dedent(code), *arguments], environment=os.environ)


def test_lines_of_both_streams_are_passed_on_in_full(capsys):
    code = """
        import sys
        for number in range(3000):
            print("[1,0]<stdout>:line", number)
            print("error", number, file=sys.stderr)
        print("oneDNN custom operations are on", file=sys.stderr)
        sys.stdout.buffer.write(b"\\xff without end")
    """
    assert run_python(code) == 0
    output = capsys.readouterr()
    assert output.out == "".join(f"line {number}\n" for number in range(3000)) + "� without end"
    assert output.err == "".join(f"error {number}\n" for number in range(3000))


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
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, CHILD], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "ready\n"
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # a terminal sends Ctrl-C to all processes
        else:
            process.send_signal(number)
        rest = process.communicate(timeout=30)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert rest == f"received {int(number)}\n" and process.returncode == 5


def test_signals_are_as_before_afterwards():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run_python("")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_make_train_calls_this():
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(
        r"-m launch train --framework \$\(FRAMEWORK\) --np \$\(NP\) \$\(if .*ELASTIC.*,--elastic\) -- \$\(ARGS\)",
        makefile,
    )
