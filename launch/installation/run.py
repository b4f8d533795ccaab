"""Run the plan of set-up: run the commands, show progress, turn failures into one line that says what to do."""

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from common.errors import UserError
from common.utils.cache_folder import cache_folder
from launch.horovod import build as horovod_build
from launch.installation import plan as setup_plan
from launch.installation.cuda import NAMES, Toolkit
from launch.installation.installer import Installer
from launch.installation.plan import Call, Command, Machine, Request, Step
from launch.installation.state import SetupState

# Output of pip, uv, venv, CMake or the compiler (a regular expression), what it means, the remedy. First match counts.
FAILURES = (
    (
        r"No space left on device|Disk quota exceeded",
        "the disk is full",
        "Free some space there, in the home folder's cache or in the folder for temporary files (TMPDIR)",
    ),
    (
        r"ensurepip is not|No module named '?(venv|ensurepip)",
        "this Python has no venv module",
        "Install it (Debian, Ubuntu: apt-get install python3-venv), or name another Python: make setup PYTHON=PATH",
    ),
    (r"[Kk]illed signal|cannot allocate memory|MemoryError", "there was not enough memory", "Close other programs"),
    (
        r"Temporary failure in name resolution|NewConnectionError|ConnectionError|Connection refused|"
        r"Network is unreachable|error sending request|Read timed out|ProxyError|SSLError|NameResolutionError",
        "a package index could not be reached",
        "Check the network or pip's settings (proxy, index), or set up without: make setup WHEELS=DIR",
    ),
    (
        r"(?:No matching distribution found for|there is no version of|Because|you\s+require) ([\w.-]+==[^\s,]+)",
        "there is no {0} for this machine",
        "See `pip config list` for a wrong index, and with WHEELS fill the folder on a machine of the same kind",
    ),
    (
        r"(?:Hash mismatch for `|DO NOT MATCH THE HASHES.*\n\s+)([\w.-]+==[^\s`]+)",
        "{0} is not what lock.txt has: its SHA-256 differs",
        "See `pip config list` for an index that has another file",
    ),
    (r"(?m)^build\.py: error: (.*)", "{0}", ""),
)


@dataclass(frozen=True, kw_only=True)
class Work:
    """An environment to be brought to what is asked for.

    Attributes:
        request: what it will hold, with what is installed already.
        state: its memory.
        machine: what the plan depends on.
        installed: the frameworks in it.
    """

    request: Request
    state: SetupState
    machine: Machine
    installed: tuple[str, ...]


def work_on(request: Request, state: SetupState, toolkit: Toolkit | None = None) -> Work:
    """Return what has to be done for a request; `toolkit`: CUDA's compiler, if not pip's."""
    frameworks, dev = state.installed() if state.usable(request) else ((), False)
    wanted = tuple(f for f in setup_plan.FRAMEWORKS if f in {*request.frameworks, *frameworks})
    full = replace(request, frameworks=wanted, dev=request.dev or dev)
    return Work(request=full, state=state, machine=look_at_machine(full, toolkit), installed=frameworks)


def run_set_up(work: Work) -> None:
    """Run the plan, the lock being held and the work begun; write the stamp at the very end."""
    started = time.monotonic()
    runner = Runner(work.request, work.state, work.machine)
    runner.run_all(setup_plan.plan(work.request, machine=work.machine))
    work.state.finish(work.request, runner.horovod().parent.name)
    print(f"setup: done in {spell(time.monotonic() - started)}", flush=True)


def look_at_machine(request: Request, toolkit: Toolkit | None = None) -> Machine:
    """Return what the plan needs to know of this machine; `toolkit`: CUDA's compiler, if not pip's."""
    wanted, wheels = setup_plan.wanted_horovod(request, toolkit), cache_folder() / "wheels"
    state = SetupState(request.root, request.folder)
    wheel = horovod_build.find_wheel(wheels, wanted.key())
    if wheel is None and request.wheels:
        wheel = horovod_build.find_wheel(request.wheels / "horovod", wanted.key(), any_compiler=True)
    return Machine(
        horovod=wanted,
        wheels=wheels,
        wheel=wheel,
        toolkit=toolkit,
        is_tried=wheel is not None and state.tried(request) == wheel.parent.name,
        has_venv=state.usable(request),
    )


def check_needs(works: Sequence[Work]) -> None:
    """Raise UserError for what can be known to be missing before minutes are spent or anything is removed."""
    if not works:
        return
    root = works[0].request.root
    if sys.platform != "linux":
        raise UserError(f"Horovod and MPI are set up on Linux only. Received: {sys.platform}. Use a container or WSL")
    if re.search(r"\s", str(root)):
        raise UserError(f"MPI and Horovod's build take no blanks in a path. Received: {root}. Move this clone")
    for request, machine in ((work.request, work.machine) for work in works):
        if request.wheels and not request.wheels.is_dir():
            raise UserError(f"WHEELS names no folder. Received: {request.wheels}. Fill one: make wheels WHEELS=DIR")
        others = sorted(request.wheels.glob("numpy-*.whl")) if request.wheels else []
        python = f"cp3{sys.version_info.minor}"
        if others and not any(f"-{python}-" in wheel.name for wheel in others):
            problem = (
                f"the wheels are for another Python. Received: {others[0].name}, Python 3.{sys.version_info.minor}"
            )
            raise UserError(f"{problem}. Use theirs: make setup WHEELS={request.wheels} PYTHON=PATH")
        if machine.wheel is None:
            check_build(machine)
        if machine.wheel is None and request.cuda == 12 and machine.toolkit is None:
            raise UserError(
                "Horovod has to be compiled by an nvcc 12, which pip does not have. Received: no CUDA 12 toolkit. "
                "Install one, load its module, or name it in HOROVOD_CUDA_HOME"
            )
    needed = sum(
        setup_plan.gigabytes(work.request, installed=work.installed, build=work.machine.wheel is None) for work in works
    )
    free = shutil.disk_usage(root).free / 1e9
    if free < needed:
        raise UserError(f"set-up needs {needed:.1f} GB of free disk. Received: {free:.1f} GB at {root}. Free some")


def check_build(machine: Machine) -> None:
    """Raise UserError if Horovod cannot be compiled or kept here."""
    assert machine.wheels
    try:
        horovod_build.check_tools()
        machine.wheels.mkdir(parents=True, exist_ok=True)
    except horovod_build.BuildError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        problem = f"the cache folder cannot be written: {error}. Change its permissions"
        raise UserError(f"{problem}, or name another in HOROVOD_TWINS_CACHE") from None


class Runner:
    """Runs the steps of one set-up and shows them."""

    def __init__(self, request: Request, state: SetupState, machine: Machine) -> None:
        """Keep what the steps need."""
        self.request, self.state, self.machine = request, state, machine
        self.wheels_folder: Path | None = None

    @functools.cached_property
    def installer(self) -> Installer:
        """What installs packages with the programs of the environment, once it is there."""
        return Installer(self.request, self.state.folder, self.run, self.ask)

    def run_all(self, steps: list[Step]) -> None:
        """Run the steps, one line each."""
        for number, step in enumerate(steps, start=1):
            started = time.monotonic()
            print(f"[{number}/{len(steps)}] {step.title} ({step.expect}) ...", end="", flush=True)
            try:
                for action in step.actions:
                    if isinstance(action, Call):
                        getattr(self, action.method)(*filter(None, [action.argument]))
                    else:
                        self.run(action)
            except BaseException:
                print(flush=True)
                raise
            print(f" {spell(time.monotonic() - started)}", flush=True)

    def run(self, command: Command) -> bool:
        """Run one command, its output into the log; return whether it succeeds, or raise UserError if it must."""
        if command.installs:
            self.state.installing.touch()
        with self.state.log.open("a", encoding="utf-8") as log:
            print(f"\n$ {' '.join(command.args)}", file=log, flush=True)
            start_of_output = log.tell()
            process = subprocess.Popen(
                command.args,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(self.request.venv) | dict(command.env),
                cwd=self.request.root,
                start_new_session=True,  # so that its compilers can be ended with it
                pass_fds=(self.state.lock_descriptor,),  # if this process is killed, the lock outlives it with pip
            )
            code = self.wait(process)
        if code != 0 and not command.may_fail:
            self.fail(start_of_output)
        if command.installs:
            self.state.installing.unlink()
        return code == 0

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for a command; when interrupted, end it and all that it started."""
        try:
            return process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise

    def fail(self, start_of_output: int) -> NoReturn:
        """Raise UserError with what the failed command's output means."""
        with self.state.log.open(encoding="utf-8", errors="replace") as log:
            log.seek(start_of_output)
            what, remedy = explain(log.read())
        remedy = f". {remedy}, then run the same again" if remedy else ""
        raise UserError(f"{what}{remedy}. All output: {self.state.log}")

    def ask(self, args: list[str], *, logged: bool = True) -> str:
        """Return what a program of the environment prints; raise UserError if it fails."""
        settings = environment(self.request.venv)
        done = subprocess.run(args, capture_output=True, text=True, env=settings, check=False)
        with self.state.log.open("a", encoding="utf-8") as log:
            print(f"\n$ {' '.join(args)}\n{done.stdout if logged else ''}{done.stderr}", file=log)
            if done.returncode != 0:
                what, remedy = explain(done.stderr)
                raise UserError(f"{what}. {remedy}, then run the same again. All output: {self.state.log}")
        return done.stdout

    # The calls of the plan.

    def install_packages(self) -> None:
        """Install all packages: by uv where there is one or pip can get it, else by pip."""
        self.installer.install()

    def download_packages(self) -> None:
        """Put the wheels of all packages into the folder for machines without network."""
        assert self.wheels_folder
        self.installer.download(self.wheels_folder, self.installer.groups() | {"dev", "installer"})

    def check_cuda(self, framework: str) -> None:
        """Stop if a framework came without CUDA or with another major version."""
        found = self.ask([self.request.python, "-c", setup_plan.ASK_CUDA[framework]]).split()[-1:]
        if not found or found[0].split(".")[0] != str(self.request.cuda):
            raise UserError(
                f"{NAMES[framework]} came in another build. Received: CUDA {' '.join(found) or 'none'} instead of "
                f"{self.request.cuda}. See `pip config list` for an index that has other builds"
            )

    def install_horovod(self) -> None:
        """Install the wheel, in place of one for other frameworks."""
        self.installer.do("install", "--no-deps", "--force-reinstall", str(self.horovod()))

    def horovod(self) -> Path:
        """Return the wheel that was found, or built meanwhile."""
        machine = self.machine
        assert machine.horovod and machine.wheels
        wheel = machine.wheel or horovod_build.find_wheel(machine.wheels, machine.horovod.key())
        assert wheel
        return wheel

    def install_project(self) -> None:
        """Install the project itself, editable."""
        self.installer.do("install", "--no-deps", "--no-build-isolation", "--editable", str(self.request.root))

    def copy_wheel(self) -> None:
        """Put the built Horovod wheel beside the packages in a folder for machines without network."""
        if self.machine.wheel and self.wheels_folder:
            place = self.wheels_folder / "horovod" / self.machine.wheel.parent.name
            place.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.machine.wheel, place / self.machine.wheel.name)


def environment(venv: Path) -> dict[str, str]:
    """Return the variables for commands in the environment: its programs first, no other packages.

    Set-up works on this machine alone, also within a job, whose variables would lead mpirun to others.
    """
    left_out = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "SLURM_", "PMI_", "PMIX_")
    settings = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return settings | {
        "PATH": f"{venv / 'bin'}:{settings.get('PATH', os.defpath)}",
        "VIRTUAL_ENV": str(venv),
        "PYTHONNOUSERSITE": "1",
        "PIP_USER": "0",
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def explain(output: str) -> tuple[str, str]:
    """Return what a failed command's output means, and the remedy."""
    for pattern, what, remedy in FAILURES:
        if found := re.search(pattern, output):
            return what.format(*found.groups()), remedy
    return f"a command failed: {horovod_build.reason(output)}", "See the log"


def spell(seconds: float) -> str:
    """Return a duration as text: "42 s" or "3 min 12 s"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def fill_wheels(request: Request, state: SetupState, folder: Path, toolkit: Toolkit | None = None) -> None:
    """Fill a folder from which `make setup WHEELS=...` works on a machine of the same kind without any network."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder for the wheels cannot be made: {error}. Name another one in WHEELS") from None
    runner = Runner(request, state, look_at_machine(request, toolkit))
    runner.wheels_folder = folder
    runner.run_all([setup_plan.wheels_step(request, folder)])
