"""Install what the lock has: by uv, which takes a sixth of pip's time, or by pip where there is no uv.

uv is given pip's settings. Both check the SHA-256 of every file. PyTorch's builds that PyPI has not come from
PyTorch's own index alone, by exact version, without a SHA-256; with one where a local folder has the one for the CPU.
"""

import os
import re
import shutil
import sys
from hashlib import sha256
from pathlib import Path

from launch.installation.environment import Environment
from launch.installation.packages import for_pip, for_uv, is_cuda, local_folders, pip_settings, read_lock
from launch.installation.programs import Programs

# PyTorch's builds that PyPI has not, by CUDA's major version; the one for CUDA 13 is on PyPI.
TORCH_BUILDS = {None: "cpu", 12: "cu126"}
TORCH_INDEX = "https://download.pytorch.org/whl"
CONNECTION = ("cert", "client-cert", "proxy", "timeout", "trusted-host", "no-cache-dir")  # how an index is reached


def groups_of(environment: Environment) -> set[str]:
    """Return the groups of the lock that an environment needs, wherever PyTorch comes from."""
    groups, cuda = {"base", "dev"} if environment.dev else {"base"}, environment.cuda
    if "torch" in environment.frameworks:
        groups |= {"torch", "torch-cuda13", "nvcc"} if cuda == 13 else {"torch"}
    if "keras" in environment.frameworks:
        groups |= {"tensorflow", "tensorflow-cuda12" if cuda else "tensorflow-cpu"}
        if cuda and "torch" not in environment.frameworks:  # else PyTorch names the versions for both
            groups.add("cuda12")
    return groups


class Installer:
    """Installs or downloads the packages of one environment."""

    def __init__(self, environment: Environment, programs: Programs) -> None:
        """Read the lock, and pip's settings."""
        self.environment, self.programs, self.python = environment, programs, environment.python
        self.lock, self.uv = read_lock(environment.lock), ""
        self.settings = pip_settings(programs.ask(self.python, "-m", "pip", "config", "list", logged=False))
        self.offline = {}
        if environment.wheels:
            self.settings |= {"no-index": "1", "find-links": str(environment.wheels), "extra-index-url": ""}
            self.offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(environment.wheels)}

    @property
    def own_builds(self) -> list[str]:
        """What PyTorch's own index has to bring."""
        versions = self.environment.pins()
        return [f"{name}=={versions[name]}+{TORCH_BUILDS[self.environment.cuda]}" for name in ("torch", "torchvision")]

    @property
    def own_index(self) -> str:
        """PyTorch's own index of such builds."""
        return f"{TORCH_INDEX}/{TORCH_BUILDS[self.environment.cuda]}"

    def describe(self) -> str:
        """Return what is installed from where, in words."""
        environment, groups = self.environment, groups_of(self.environment)
        text = f"uv pip sync, else pip install --require-hashes: {' '.join(sorted(groups))} of {environment.lock}"
        if self.lacks_torch(groups):
            place = environment.wheels or f"a local folder of pip's settings, else {self.own_index}"
            text += f"; {' '.join(self.own_builds)} from {place}" + "; what CUDA that names" * bool(environment.cuda)
        return text

    def install(self) -> None:
        """Install all, in place of what was there before."""
        self.do("install", *self.listed("uv.txt", {"installer"}), may_fail=True)
        path = f"{self.environment.venv}/bin:{os.environ.get('PATH', os.defpath)}"
        self.uv = shutil.which("uv", path=path) or ""
        groups = self.groups() | ({"installer"} if self.uv else set())
        self.sync(groups)
        if self.lacks_torch(groups) and not self.install_own_build():
            print(" PyTorch's index cannot be reached: PyPI's build brings CUDA, 3 GB ...", end="", flush=True)
            self.sync(groups | {"torch-cuda13"})
        shutil.rmtree(self.environment.memory / "uv-cache", ignore_errors=True)

    def sync(self, groups: set[str]) -> None:
        """Install the packages of these groups; uv also removes all others.

        Bytecode is written by the first import: compiling all takes longer than the first epoch gains by it.
        """
        no_deps, file, path, *words = self.listed("packages.txt", groups)
        self.do(*(("sync", path) if self.uv else ("install", "--no-compile", no_deps, file, path)), *words)

    def install_own_build(self) -> bool:
        """Install PyTorch's own build and the CUDA that it names; return False if it cannot be reached."""
        environment, torch = self.environment, self.own_builds
        index = () if environment.wheels else (f"--index-url={self.own_index}",)
        is_optional = environment.cuda is None and not environment.wheels  # as PyPI has another that works
        if not self.do("install", "--no-deps", *index, *torch, alone=True, may_fail=is_optional):
            return False
        if environment.cuda:
            tensorflow = f"tensorflow[and-cuda]=={environment.pins()['tensorflow']}"
            self.do("install", *torch, *([tensorflow] if "keras" in environment.frameworks else []))
        return True

    def download(self, folder: Path, groups: set[str]) -> None:
        """Download the packages of these groups into a folder for machines without network."""
        into = ("download", f"--dest={folder}")
        installed = self.programs.ask(self.python, "-m", "pip", "freeze").split()
        if "torch" in groups and f"torch=={self.environment.pins()['torch']}" in installed:  # PyPI's
            groups = groups | {"torch-cuda13"}
        self.do(*into, *self.listed("packages.txt", groups))
        if self.lacks_torch(groups):
            self.do(*into, "--no-deps", f"--index-url={self.own_index}", *self.own_builds, alone=True)
            if self.environment.cuda:  # the lock has not what PyTorch names
                self.do(*into, "--no-deps", *filter(is_cuda, installed))

    def groups(self) -> set[str]:
        """Return the groups of the lock to install; which PyTorch depends on what is at hand."""
        groups, wheels = groups_of(self.environment), self.environment.wheels
        if "torch" in groups and self.environment.cuda is None:
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
        path = self.environment.memory / name
        text = "".join(str(package) for package in self.lock if package.groups & groups)
        # As it is written: for "==" a build for the CPU, "2.13.0+cpu", would do, too, and be preferred.
        path.write_text(re.sub(r"(?m)^(torch\w*)==", r"\1===", text), encoding="utf-8")
        return "--no-deps", "-r", str(path), "--require-hashes", "--only-binary=:all:"

    def do(self, *words: str, alone: bool = False, may_fail: bool = False) -> bool:
        """Run `uv pip` or `pip` with these words; return whether it succeeds, or raise UserError unless it may fail.

        Args:
            words: the command and its arguments.
            alone: of pip's settings, only those of the connection hold.
            may_fail: nothing is said then.
        """
        alone = alone and not self.environment.wheels
        settings = {key: value for key, value in self.settings.items() if not alone or key in CONNECTION}
        if self.uv:
            no_index = ["--no-index"] if settings.get("no-index", "0") != "0" else []  # uv has no variable for it
            # What comes from a folder is not kept a second time.
            cache = {"UV_CACHE_DIR": f"{self.environment.memory}/uv-cache"} if self.environment.wheels else {}
            program, variables = (self.uv, "pip", *words, *no_index), for_uv(settings) | cache
        else:
            program = (self.python, "-m", "pip", *words)
            variables = for_pip(settings) if alone else self.offline
        is_change = words[0] != "download"
        return self.programs.run(*program, variables=variables, installs=is_change, may_fail=may_fail)
