"""The lock file, what of it an environment gets, and where uv finds it. Standard library only.

`lock.txt` has each package once, for all Pythons, with the SHA-256 of its files and the groups that need it:

base                the project, MPI, and the tools that build Horovod
torch, tensorflow   what a framework needs
torch-cpu           PyTorch's build for the CPU, as far as its wheels were at hand when it was locked
torch-cuda13        PyPI's build of PyTorch, with CUDA's libraries; `nvcc` has the compiler of the same release
tensorflow-cpu, tensorflow-cuda12   TensorFlow's builds; `cuda12` has CUDA's libraries for the second
dev, installer      tools for tests, lint and types; uv
"""

import ast
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError

CUDA = ("nvidia-", "cuda-", "triton")  # how names of CUDA's packages begin
NOT_CUDA = "nvidia-ml-py"  # which asks the driver
ENTRY = re.compile(
    r"^# (?P<groups>[\w -]+)\n(?P<name>[\w.-]+)==(?P<version>\S+)(?P<hashes>(?: \\\n +--hash=\S+)+)$", re.MULTILINE
)
HEAD = "# Written by `make lock`; do not edit. The line above a package names the groups that need it.\n"
# What uv reads in place of pip's settings, and how it separates several.
UV = {
    "index-url": ("UV_DEFAULT_INDEX", ""),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", ""),
    "client-cert": ("SSL_CLIENT_CERT", ""),
    "proxy": ("ALL_PROXY", ""),
    "timeout": ("UV_HTTP_TIMEOUT", ""),
    "no-cache-dir": ("UV_NO_CACHE", ""),
}


@dataclass(frozen=True, kw_only=True)
class Package:
    """An entry of the lock file."""

    name: str
    version: str
    hashes: tuple[str, ...]
    groups: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """Return the entry as the lock, pip and uv read it."""
        return " \\\n    ".join([f"{self.name}=={self.version}", *map("--hash={}".format, self.hashes)]) + "\n"


def is_cuda(name: str) -> bool:
    """Return whether a package is one of CUDA's."""
    return name.startswith(CUDA) and not name.startswith(NOT_CUDA)


def read_lock(path: Path) -> tuple[Package, ...]:
    """Return the entries of a lock file; none if there is no such file.

    Raises:
        UserError: it holds something else, too, such as the marks of a merge.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = tuple(
        Package(
            name=entry["name"],
            version=entry["version"],
            groups=frozenset(entry["groups"].split()),
            hashes=tuple(re.findall(r"--hash=(\S+)", entry["hashes"])),
        )
        for entry in ENTRY.finditer(text)
    )
    others = [line for line in ENTRY.sub("", text.removeprefix(HEAD)).splitlines() if line]
    if others:
        raise UserError(f"{path.name} is damaged. Received: {others[0][:80]!r} in it. Restore it by git")
    return found


def pins(packages: Iterable[Package]) -> dict[str, str]:
    """Return name -> version, without a local part such as +cpu."""
    return {package.name: package.version.partition("+")[0] for package in packages}


def as_lock(packages: Iterable[Package]) -> str:
    """Return the lock file of these packages."""
    return HEAD + "".join(f"# {' '.join(sorted(package.groups))}\n{package}" for package in packages)


def pip_settings(listed: str) -> dict[str, str]:
    """Return setting -> value as `pip install` takes them, from what `pip config list` prints."""
    found = re.findall(r"^(?:(global)|(install)|(:env:))\.([\w-]+)=('.*'|\".*\")$", listed, re.MULTILINE)
    places = sorted(found, key=lambda place: place[:3], reverse=True)  # the last one counts
    return {key: ast.literal_eval(value) for *_, key, value in places}


def for_uv(settings: dict[str, str]) -> dict[str, str]:
    """Return uv's variables that mean what pip's settings do; uv itself ignores pip's."""
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # the newest of all indexes, as pip; hashes decide
    for key, (name, separator) in UV.items():
        if settings.get(key):
            variables[name] = separator.join(settings[key].split()) if separator else settings[key]
    return variables


def local_folders(settings: dict[str, str]) -> list[Path]:
    """Return the folders among pip's find-links."""
    places = [place.removeprefix("file://") for place in settings.get("find-links", "").split()]
    return [Path(place) for place in places if Path(place).is_dir()]


def for_pip(settings: dict[str, str]) -> dict[str, str]:
    """Return variables by which pip has these settings alone, whatever its files and variables say."""
    others = dict.fromkeys(("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"), "")
    named = {f"PIP_{key.upper().replace('-', '_')}": value for key, value in settings.items()}
    return {"PIP_CONFIG_FILE": os.devnull, **others, **named}
