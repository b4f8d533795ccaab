"""Set-up: its plan, its memory, its failures, and the Horovod that it installed."""

import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest
from made_programs import ended_with_the_test, is_running
from made_set_up import MadeSetUp, made_node
from waiting import wait_until

from common.errors import EXIT_CODE_USER_ERROR, UserError
from common.utils.command_line import end_cleanly_on_sigterm
from launch.installation.environment import Environment, locked, remembered
from launch.installation.programs import Programs, environment_variables
from launch.installation.run import SetUp, wanted_horovod

ROOT = Path(__file__).resolve().parents[3]
BASE_PYTHON = getattr(sys, "_base_executable", sys.executable)
TABLES = tomllib.loads(Path(__file__).with_name("setup.toml").read_text())


@pytest.fixture
def set_up(tmp_path, monkeypatch):
    """Set-up of a clone on a machine without GPUs, which runs no plan."""
    return MadeSetUp(tmp_path / "clone", monkeypatch)


@pytest.fixture
def programs(set_up):
    """What runs the programs of a set-up that has begun in that clone, with an environment that looks made."""
    environment = Environment(root=set_up.root, frameworks=("torch",), cuda=13)
    with locked(set_up.root):
        environment.begin()
        make_python(set_up.root)
        yield Programs(environment)


def make_python(clone):
    """Put there what makes a folder look like a virtual environment."""
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "python").touch()


def run_setup(set_up, *args, **env):
    """Run set-up as `make` does, for that clone."""
    return subprocess.run(
        [BASE_PYTHON, str(ROOT / "launch" / "setup.py"), "--root", str(set_up.root), "--no-gpu", *args],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


# The plan


@pytest.mark.parametrize("row", TABLES["plan"], ids=lambda row: row["id"])
def test_each_machine_gets_what_works_there_or_one_line(row, set_up, capsys):
    set_up.there = made_node(**row.get("node", {}))
    (set_up.root / "ours.toml").write_text(row.get("site", ""))
    code = set_up("--dry-run", *row["arguments"].replace("CLONE", str(set_up.root)).split())
    printed = capsys.readouterr()
    assert set_up.folders() == []
    if "refused" in row:
        assert (code, printed.out) == (2, "")
        assert re.fullmatch(f"setup: error: {row['refused']}\n", printed.err), printed.err
    else:
        this_python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        text = printed.out.replace(str(set_up.root), "CLONE").replace(f"{this_python}/site", "python3/site")
        assert (code, printed.err) == (0, "")
        assert [words for words in row["has"] if words not in text] == [], text
        assert [pattern for pattern in row.get("lacks", []) if re.search(pattern, text)] == [], text


@pytest.mark.parametrize("wheels", [False, True])
def test_a_kept_wheel_is_tried_and_not_built_again(wheels, set_up, tmp_path, capsys):
    key = wanted_horovod(Environment(root=set_up.root)).key()
    folder = (
        tmp_path / "wheels" / "horovod" / re.sub("cxx.*", "cxx4.9", key) if wheels else tmp_path / "cache/wheels" / key
    )
    folder.mkdir(parents=True)
    options = ["--dry-run", *(["--wheels", str(tmp_path / "wheels")] if wheels else [])]
    set_up(*options)
    assert "build.py --frameworks" in capsys.readouterr().out
    kept = folder / "horovod-0.28.1+twins.2-cp311.whl"
    kept.touch()
    set_up(*options)
    planned = capsys.readouterr().out
    assert "built earlier" in planned and f"build.py --try {kept} --frameworks torch tensorflow" in planned
    assert "--against" not in planned
    if not wheels:  # once an environment has it, more tools do not ask for another trial
        environment = Environment(root=set_up.root)
        environment.begin()
        make_python(set_up.root)
        for tried, is_tried_again in ((key, False), ("another", True)):
            environment.finish(tried)
            set_up("--dry-run", "--dev")
            assert ("--try" in capsys.readouterr().out) == is_tried_again


def test_launch_setup_needs_no_package_and_a_dry_run_makes_nothing(set_up):
    done = run_setup(set_up, "--dry-run", "--gpu", "--frameworks", "torch")
    assert done.returncode == 0
    assert "--cuda-home" in done.stdout
    assert set_up.folders() == []


# The memory


def test_set_up_works_only_where_something_has_changed(set_up, monkeypatch, capsys):
    assert set_up.makes("--frameworks", "torch") == [".venv"]
    environment = Environment(root=set_up.root)
    assert environment.stamp()["frameworks"] == ["torch"]

    def no_program(*_args, **_settings):
        raise AssertionError("a program was started")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", no_program)
        capsys.readouterr()
        assert set_up.makes() == [], "the choice is remembered"
        assert capsys.readouterr().out == ""
    assert set_up.makes("--need", "keras") == [".venv"]
    assert environment.stamp()["frameworks"] == ["torch", "keras"]
    assert set_up.makes("--frameworks", "keras") == [], "there is more than asked for"
    assert set_up.makes("--frameworks", "torch, keras", "--dev") == [".venv"]
    assert set_up.makes() == []
    for file, old, new, made in (
        ("pyproject.toml", "line-length = 120", "line-length = 119", []),
        ("pyproject.toml", "torch==2.13.0", "torch==2.13.1", [".venv"]),
        ("launch/installation/lock.txt", "torch==2.13.0", "torch==2.13.1", [".venv"]),
    ):
        path = set_up.root / file
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        assert set_up.makes() == made, (file, new)
    set_up.root = set_up.root.rename(set_up.root.with_name("moved"))
    assert set_up.makes() == [".venv"]


def test_a_broken_set_up_is_resumed_and_an_environment_left_by_an_interrupted_pip_made_anew(set_up):
    set_up.makes()
    half_installed = set_up.root / ".venv" / "lib" / "half"
    half_installed.mkdir(parents=True)
    set_up.failing = {".venv"}
    assert set_up("--dev") == set_up() == 2
    set_up.failing = set()
    assert set_up.makes() == [".venv"]
    assert half_installed.exists(), "interrupted while Horovod compiled: what is installed is whole"
    Environment(root=set_up.root).installing.touch()
    assert set_up.makes() == [".venv"]
    assert not half_installed.exists()


@pytest.mark.parametrize("arguments", [[], ["--gpu"]])
def test_an_environment_of_someone_else_is_left_alone(set_up, arguments, capsys):
    set_up.there = made_node(capabilities=("12.0",))  # which would get other folders
    make_python(set_up.root)
    assert set_up(*arguments) == 2
    assert "was not made by this set-up" in capsys.readouterr().err
    assert [path.name for path in (set_up.root / ".venv").iterdir()] == ["bin"]


def test_a_set_up_waits_for_another_one_in_the_same_clone(set_up):
    clone = set_up.root
    environment = Environment(root=clone)
    with ExitStack() as unlock:
        unlock.enter_context(locked(clone))
        environment.begin()
        make_python(clone)
        command = [BASE_PYTHON, str(ROOT / "launch" / "setup.py"), "--root", str(clone), "--no-gpu"]
        started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        with ended_with_the_test(started) as second:
            assert "another set-up works in this clone" in second.stdout.readline()
            environment.finish("made")
            unlock.close()
            assert (second.stdout.read(), second.wait(60)) == ("", 0)


# Failures


def test_a_missing_compiler_is_one_line_before_anything_is_made(set_up, tmp_path):
    (tmp_path / "empty").mkdir()
    done = run_setup(set_up, PATH=str(tmp_path / "empty"), CXX="")
    assert done.returncode == EXIT_CODE_USER_ERROR
    assert done.stdout == ""
    assert done.stderr.startswith("setup: error: a C++ compiler is needed")
    assert done.stderr.count("\n") == 1
    assert not (set_up.root / ".venv" / "bin").exists()


def test_a_cache_that_cannot_be_written_is_one_line_before_anything_is_made(set_up, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(tmp_path / "file"))
    assert set_up() == 2
    assert re.fullmatch("setup: error: the cache folder .*HOROVOD_TWINS_CACHE\n", capsys.readouterr().err)
    assert set_up.folders() == []


def test_a_path_with_blanks_is_refused(tmp_path, monkeypatch, capsys):
    set_up = MadeSetUp(tmp_path / "my clone", monkeypatch)
    assert set_up() == 2
    assert "no blanks in a path" in capsys.readouterr().err
    assert set_up.folders() == []


def test_wheels_for_another_python_are_refused(set_up, tmp_path, capsys):
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "numpy-2.4.6-cp399-cp399-linux_x86_64.whl").touch()
    assert set_up("--wheels", str(tmp_path / "wheels")) == 2
    assert "are for another Python. Received: numpy-2.4.6-cp399-" in capsys.readouterr().err
    (tmp_path / "wheels" / f"numpy-2.4.6-cp3{sys.version_info.minor}-cp3-linux_x86_64.whl").touch()
    assert set_up.makes("--wheels", str(tmp_path / "wheels")) == [".venv"]


@pytest.mark.ci
def test_an_empty_folder_of_wheels_is_one_line_and_never_half_used(set_up, tmp_path):
    (tmp_path / "wheels").mkdir()
    done = run_setup(set_up, "--wheels", str(tmp_path / "wheels"))
    assert done.returncode == EXIT_CODE_USER_ERROR
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert "there is no " in done.stderr
    assert "setup.log" in done.stderr
    assert not Environment(root=set_up.root).is_complete()


# Commands of the plan


def test_termination_ends_the_command_and_leaves_the_mark(programs):
    started = programs.environment.root / "started"

    def terminate():
        wait_until(lambda: started.exists() and started.read_text())
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    end_cleanly_on_sigterm()
    threading.Thread(target=terminate).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            programs.run("sh", "-c", "sleep 60 & echo $! > started; wait", installs=True)
    finally:
        signal.signal(signal.SIGTERM, before)
    sleeping = int(started.read_text(encoding="utf-8"))
    wait_until(lambda: not is_running(sleeping))  # the kernel may take a while
    assert programs.environment.installing.exists()
    assert not programs.environment.is_usable()


@pytest.mark.parametrize("output", TABLES["output"], ids=lambda row: row["said"])
def test_a_failed_command_is_explained_and_names_the_log(output, programs):
    with pytest.raises(UserError) as error:
        programs.run("sh", "-c", 'echo "$0"; exit 1', output["text"])
    assert output["said"] in str(error.value) and str(programs.log) in str(error.value)
    assert output["text"] in programs.log.read_text(encoding="utf-8")


def test_the_build_of_a_framework_is_checked_before_horovod_is_compiled(programs, monkeypatch):
    work = SetUp(programs.environment)
    for answer in ("None", "12.6"):
        monkeypatch.setattr(Programs, "ask", lambda *_, answer=answer: f"{answer}\n")
        with pytest.raises(UserError, match=f"Received: CUDA {answer} instead of 13"):
            work.check_cuda("torch")
    monkeypatch.setattr(Programs, "ask", lambda *_: "13.0\n")
    work.check_cuda("torch")


def test_a_command_of_set_up_sees_nothing_of_a_job(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # the first imports are those of the trial
    settings = environment_variables(Path("/clone/.venv"))
    assert not {"SLURM_JOB_ID", "PYTHONDONTWRITEBYTECODE"} & settings.keys()
    assert settings["PATH"].startswith("/clone/.venv/bin:")


# The Makefile


def test_help_lists_every_target():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = next(line for line in text.splitlines() if line.startswith(".PHONY:")).split()[1:]
    printed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [target for target in targets if f"make {target} " not in printed] == []


@pytest.mark.parametrize("target", ["setup", "wheels WHEELS=folder", "gpu-build"])
def test_every_set_up_is_for_the_gpus_that_were_named(target):
    words = ["make", "-n", *target.split(), "GPU=1", "NODE=ours.toml"]
    printed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(rf'launch/setup\.py +--gpu +--node "{re.escape(str(ROOT))}/ours\.toml"', printed), printed
    assert "--wheels" not in printed


@pytest.mark.long
def test_a_second_clone_uses_its_own_mpi(tmp_path):
    """A clone set up from the kept wheel loads its own MPI library, and two ranks compute together."""
    clone = tmp_path / "second-clone"
    frameworks = " ".join(remembered(ROOT)[0].frameworks)
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    subprocess.run([BASE_PYTHON, "launch/setup.py", "--no-gpu", "--frameworks", frameworks], cwd=clone, check=True)
    program = (
        "import horovod.torch as hvd, sys, torch; hvd.init(); s = hvd.allreduce(torch.ones(3), op=hvd.Sum);"
        "m = [line.split(maxsplit=5)[5] for line in open('/proc/self/maps') if 'libmpi.so' in line];"
        "sys.stdout.write(f'sum {s.tolist()} from {m[0]}')"  # one write: mpirun tags each
    )
    command = ["horovodrun", "-np", "2", "--mpi", "python", "-c", program]
    done = subprocess.run(
        command, cwd=clone, env=environment_variables(clone / ".venv"), capture_output=True, text=True, check=False
    )
    assert done.stdout.count(f"sum [2.0, 2.0, 2.0] from {clone}/.venv/lib/libmpi.so") == 2, done.stdout + done.stderr
