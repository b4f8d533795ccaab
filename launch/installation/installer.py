"""Install what the lock has: by uv, which takes a sixth of pip's time, or by pip where there is no uv.

uv is told what pip's settings say. Both check the SHA-256 of every file. PyTorch's builds that PyPI has not come from
PyTorch's own index alone, by exact version, without a SHA-256; with one where a local folder has the one for the CPU.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from launch.installation import plan
from launch.installation.packages import for_uv, is_cuda, local_folders, pip_settings, read_lock
from launch.installation.plan import Command, Request

# How an index is reached, as against which one.
CONNECTION = ("cert", "client-cert", "proxy", "timeout", "trusted-host", "no-cache-dir")


class Installer:
    """Installs or downloads the packages of one environment."""

    def __init__(self, request: Request, folder: Path, run: Callable[[Command], bool], ask: Callable[..., str]) -> None:
        """Read the lock, and pip's settings; `folder` gets the lists of packages."""
        self.request, self.folder, self.run, self.ask = request, folder, run, ask
        self.lock, self.python = read_lock(request.lock), request.python
        self.settings = pip_settings(self.ask([self.python, "-m", "pip", "config", "list"], logged=False))
        if request.wheels:
            self.settings |= {"no-index": "1", "find-links": str(request.wheels), "extra-index-url": ""}
        self.uv = ""

    def install(self) -> None:
        """Install all, in place of what was there before."""
        self.do("install", *self.listed("uv.txt", {"installer"}), may_fail=True)
        self.uv = shutil.which("uv", path=f"{self.request.venv}/bin:{os.environ.get('PATH', os.defpath)}") or ""
        groups = self.groups() | ({"installer"} if self.uv else set())
        self.sync(groups)
        if self.lacks_torch(groups) and not self.install_own_build():
            print(" PyTorch's index cannot be reached: PyPI's build brings CUDA, 3 GB ...", end="", flush=True)
            self.sync(groups | {"torch-cuda13"})
        shutil.rmtree(self.folder / "uv-cache", ignore_errors=True)

    def sync(self, groups: set[str]) -> None:
        """Install the packages of these groups; uv also removes all others.

        Bytecode is written by the first import: compiling all takes longer than the first epoch gains by it.
        """
        no_deps, file, path, *words = self.listed("packages.txt", groups)
        self.do(*(("sync", path) if self.uv else ("install", "--no-compile", no_deps, file, path)), *words)

    def install_own_build(self) -> bool:
        """Install PyTorch's own build and the CUDA that it names; return False if it cannot be reached."""
        request, torch = self.request, plan.own_builds(self.request)
        index = () if request.wheels else (f"--index-url={plan.own_index(request)}",)
        optional = request.cuda is None and not request.wheels  # as PyPI has another that works
        if not self.do("install", "--no-deps", *index, *torch, alone=True, may_fail=optional):
            return False
        if request.cuda:
            tensorflow = f"tensorflow[and-cuda]=={request.pins()['tensorflow']}"
            self.do("install", *torch, *([tensorflow] if "keras" in request.frameworks else []))
        return True

    def download(self, folder: Path, groups: set[str]) -> None:
        """Download the packages of these groups into a folder for machines without network."""
        into = ("download", f"--dest={folder}")
        installed = self.ask([self.python, "-m", "pip", "freeze"]).split()
        if "torch" in groups and f"torch=={self.request.pins()['torch']}" in installed:  # PyPI's
            groups = groups | {"torch-cuda13"}
        self.do(*into, *self.listed("packages.txt", groups))
        if self.lacks_torch(groups):
            index = f"--index-url={plan.own_index(self.request)}"
            self.do(*into, "--no-deps", index, *plan.own_builds(self.request), alone=True)
            if self.request.cuda:  # the lock has not what PyTorch names
                self.do(*into, "--no-deps", *filter(is_cuda, installed))

    def groups(self) -> set[str]:
        """Return the groups of the lock to install; which PyTorch depends on what is at hand."""
        groups, wheels = plan.groups(self.request), self.request.wheels
        if "torch" in groups and self.request.cuda is None:
            if self.has_cpu_build():
                groups.add("torch-cpu")
            elif wheels and not list(wheels.glob("torch-*+cpu-*.whl")):
                groups.add("torch-cuda13")
        return groups

    def has_cpu_build(self) -> bool:
        """Return whether a local folder has PyTorch's build for the CPU, as it was locked, for this Python."""
        python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
        return any(
            f"sha256:{sha256(wheel.read_bytes()).hexdigest()}" in build.hashes
            for build in self.lock
            if build.name == "torch" and "torch-cpu" in build.groups
            for folder in local_folders(self.settings)
            for wheel in folder.glob(f"torch-{build.version}-{python}-*.whl")
        )

    def lacks_torch(self, groups: set[str]) -> bool:
        """Return whether PyTorch is wanted and not in these groups."""
        return "torch" in groups and not groups & {"torch-cpu", "torch-cuda13"}

    def listed(self, name: str, groups: set[str]) -> tuple[str, ...]:
        """Write the packages of these groups into a file beside the log; return pip's arguments for it."""
        path = self.folder / name
        text = "".join(str(one) for one in self.lock if one.groups & groups)
        # As it is written: for "==" a build for the CPU, "2.13.0+cpu", would do, too, and be preferred.
        path.write_text(re.sub(r"(?m)^(torch\w*)==", r"\1===", text), encoding="utf-8")
        return "--no-deps", "-r", str(path), "--require-hashes", "--only-binary=:all:"

    def do(self, *words: str, alone: bool = False, may_fail: bool = False) -> bool:
        """Run `uv pip` or `pip` with these words; return whether it succeeds, or raise UserError if it must.

        Args:
            words: the command and its arguments.
            alone: of pip's settings, only those of the connection hold.
            may_fail: then nothing is said.
        """
        alone = alone and not self.request.wheels
        settings = {key: value for key, value in self.settings.items() if not alone or key in CONNECTION}
        if self.uv:
            offline = ["--no-index"] if settings.get("no-index", "0") != "0" else []  # uv has no variable for it
            # What comes from a folder is not kept a second time.
            cache = {"UV_CACHE_DIR": str(self.folder / "uv-cache")} if self.request.wheels else {}
            program, variables = (self.uv, "pip", *words, *offline), for_uv(settings) | cache
        else:
            variables = plan.offline(self.request) | (for_pip(settings) if alone else {})
            program = (self.python, "-m", "pip", *words)
        return self.run(Command(program, variables, installs=words[0] != "download", may_fail=may_fail))


def for_pip(settings: dict[str, str]) -> dict[str, str]:
    """Return variables by which pip has these settings alone, whatever its files and variables say."""
    others = dict.fromkeys(("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"), "")
    named = {f"PIP_{key.upper().replace('-', '_')}": value for key, value in settings.items()}
    return {"PIP_CONFIG_FILE": os.devnull, **others, **named}
