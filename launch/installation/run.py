"""Run the plan of set-up: run the commands, show progress, turn failures into one line that says what to do."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from common.errors import UserError
from launch.installation import horovod_source, horovod_wheel
from launch.installation import plan as setup_plan
from launch.installation.cuda import NAMES, Toolkit
from launch.installation.installer import Installer
from launch.installation.plan import Call, Command, Machine, Request, Step
from launch.installation.state import SetupState, wait_for_lock

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
        r"([^\s/]+:\d+)(?::\d+: (?:fatal )?error: | \(message\):\s+)(.{1,100})",
        "Horovod cannot be built here: {0}: {1}",
        "See the log, or name another compiler: CC=gcc-12 CXX=g++-12 make setup",
    ),
    (
        r"Temporary failure in name resolution|NewConnectionError|ConnectionError|Connection refused|"
        r"Network is unreachable|error sending request|Read timed out|ProxyError|SSLError|NameResolutionError",
        "a package index could not be reached",
        "Check the network or pip's settings (proxy, index), or set up without: make setup WHEELS=DIR",
    ),
    (
        r"(?:No matching distribution found for|there is no version of|Because) ([\w.-]+==[^\s]+)",
        "there is no {0} for this machine",
        "See `pip config list` for a wrong index, and with WHEELS fill the folder on a machine of the same kind",
    ),
    (
        r"(?:Hash mismatch for `|DO NOT MATCH THE HASHES.*\n\s+)([\w.-]+==[^\s`]+)",
        "{0} is not what lock.txt has: its SHA-256 differs",
        "See `pip config list` for an index that has another file",
    ),
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
    with only_builder(work.machine):
        machine = look_at_machine(work.request, work.machine.toolkit)  # another set-up may have built it meanwhile
        Runner(work.request, work.state, machine).run_all(setup_plan.plan(work.request, machine=machine))
    work.state.finish(work.request)
    print(f"setup: done in {spell(time.monotonic() - started)}", flush=True)


@contextmanager
def only_builder(machine: Machine) -> Iterator[None]:
    """Let one set-up of this user build a wheel, and others that want the same one wait for it, in whatever clone."""
    if machine.wheel:
        yield
        return
    path = horovod_wheel.wheel_cache() / f"{machine.key}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise horovod_wheel.cache_error(error) from None
    try:
        wait_for_lock(descriptor, "another set-up builds the same Horovod")
        yield
    finally:
        os.close(descriptor)


def look_at_machine(request: Request, toolkit: Toolkit | None = None) -> Machine:
    """Return what the plan needs to know of this machine; `toolkit`: CUDA's compiler, if not pip's."""
    pins = request.pins()
    pip_nvcc = pins["nvidia-cuda-nvcc"] if request.cuda == 13 else horovod_wheel.NO_COMPILER
    key = horovod_wheel.cache_key(
        pins=pins,
        frameworks=request.frameworks,
        compiler=horovod_wheel.compiler_version(),
        cuda=request.cuda,
        nvcc=toolkit.version if toolkit else pip_nvcc,
        compute_capabilities=request.capabilities,
    )
    wheel = horovod_wheel.find_wheel(horovod_wheel.wheel_cache(), key)
    if wheel is None and request.wheels:
        wheel = horovod_wheel.find_wheel(request.wheels / "horovod", key, any_compiler=True)
    return Machine(
        wheel=wheel,
        key=key,
        jobs=horovod_wheel.parallel_compilers(),
        toolkit=toolkit,
        has_venv=SetupState(request.root, request.folder).usable(request),
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
            check_build_tools()
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


def check_build_tools() -> None:
    """Raise UserError if Horovod cannot be compiled here."""
    if horovod_wheel.compiler() is None:
        raise UserError("a C++ compiler is needed to build Horovod. Install one (Debian, Ubuntu: apt-get install g++)")
    if shutil.which("make") is None:
        raise UserError("`make` is needed to build Horovod. Install it (Debian, Ubuntu: apt-get install make)")


class Runner:
    """Runs the steps of one set-up and shows them."""

    def __init__(self, request: Request, state: SetupState, machine: Machine) -> None:
        """Keep what the steps need."""
        self.request, self.state, self.machine = request, state, machine
        self.wheel = machine.wheel
        self.wheels_folder: Path | None = None
        self.build = setup_plan.build_folder(request.venv)

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
                env=environment(self.request.venv, command.programs) | dict(command.env),
                cwd=command.folder or self.request.root,
                start_new_session=True,  # so that its compilers can be ended with it
                pass_fds=(self.state.lock_descriptor,),  # if this process is killed, the lock outlives it with pip
            )
            try:
                code = self.wait(process, seconds=command.seconds)
            except subprocess.TimeoutExpired:
                raise UserError(
                    f"a command does not end: {command.args[-1]}. Received: nothing for {command.seconds} s. If "
                    f"`nvidia-smi` hangs, too, restart its driver. All output: {self.state.log}"
                ) from None
        if code != 0 and not command.may_fail:
            self.fail(start_of_output, self.set_apart() if command.tries else command.remedy)
        if command.installs:
            self.state.installing.unlink()
        return code == 0

    def wait(self, process: subprocess.Popen[bytes], *, seconds: float | None = None) -> int:
        """Wait for a command; when interrupted or after so many seconds, end it and all that it started."""
        try:
            return process.wait(seconds)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise

    def fail(self, start_of_output: int, remedy: str = "") -> NoReturn:
        """Raise UserError with what the failed command's output means."""
        with self.state.log.open(encoding="utf-8", errors="replace") as log:
            log.seek(start_of_output)
            what, usual = explain(log.read())
        remedy = remedy or f"{usual}, then run the same again"
        raise UserError(f"{what}. {remedy}. All output: {self.state.log}")

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

    def installer(self) -> Installer:
        """Return what installs packages with the programs of the environment."""
        return Installer(self.request, self.state.folder, self.run, self.ask)

    def install_packages(self) -> None:
        """Install all packages: by uv where there is one or pip can get it, else by pip."""
        self.state.installing.touch()
        self.installer().install()
        self.state.installing.unlink()

    def download_packages(self) -> None:
        """Put the wheels of all packages into the folder for machines without network."""
        assert self.wheels_folder
        installer = self.installer()
        installer.download(self.wheels_folder, installer.groups() | {"dev", "installer"})

    def check_cuda(self, framework: str) -> None:
        """Stop if a framework came without CUDA or with another major version."""
        found = self.ask([self.request.python, "-c", setup_plan.ASK_CUDA[framework]]).split()[-1:]
        if not found or found[0].split(".")[0] != str(self.request.cuda):
            raise UserError(
                f"{NAMES[framework]} came in another build. Received: CUDA {' '.join(found) or 'none'} instead of "
                f"{self.request.cuda}. See `pip config list` for an index that has other builds"
            )

    def link_libraries(self) -> None:
        """Make CUDA's libraries findable for the linker."""
        horovod_wheel.link_libraries(self.request.venv)

    def edit_horovod(self) -> None:
        """Check, unpack and edit Horovod's source."""
        horovod_source.unpack(self.build / horovod_source.SDIST, self.build / "source")

    def relocate_horovod(self) -> None:
        """Make the built wheel fit for any clone."""
        (built,) = self.build.glob("horovod-*.whl")
        self.wheel = horovod_wheel.relocate(built, venv=self.request.venv, folder=self.build, run=self.ask)

    def keep_horovod(self) -> None:
        """Put the wheel, which passed its trials, into the cache."""
        assert self.wheel
        horovod_wheel.keep(self.wheel, self.machine.key)
        shutil.rmtree(self.build)

    def set_apart(self) -> str:
        """Put a wheel that failed its trial where no set-up looks for one, with the log; return what to do."""
        assert self.wheel
        place = horovod_wheel.set_apart(self.wheel, self.state.log, self.machine.key)
        return f"The wheel and its log are kept in {place}: run the same again to build anew"

    def install_horovod(self) -> None:
        """Install the wheel, in place of one for other frameworks."""
        self.run(
            setup_plan.pip(self.request, "install", "--force-reinstall", "--no-deps", str(self.wheel), installs=True)
        )

    def copy_wheel(self) -> None:
        """Put the built Horovod wheel beside the packages in a folder for machines without network."""
        if self.machine.wheel and self.wheels_folder:
            place = self.wheels_folder / "horovod" / self.machine.wheel.parent.name
            place.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.machine.wheel, place / self.machine.wheel.name)


def environment(venv: Path, programs: Path | None = None) -> dict[str, str]:
    """Return the variables for commands in the environment: its programs first, then `programs`, no other packages.

    Set-up works on this machine alone, also within a job, whose variables would lead mpirun to others.
    """
    left_out = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "SLURM_", "PMI_", "PMIX_")
    settings = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    folders = [str(venv / "bin"), *([str(programs)] if programs else []), settings.get("PATH", os.defpath)]
    return settings | {
        "PATH": ":".join(folders),
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
    own = re.split(r"^-{20,}$", output, maxsplit=1, flags=re.MULTILINE)[0]  # mpirun's lines come after the program's
    lines = [line for line in output.splitlines() if re.search(r"\w", line)] or ["nothing"]
    raised = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception): .*", own, flags=re.MULTILINE)
    errors = [line for line in own.splitlines() if re.search(r"\berror\b[: ]", line, flags=re.IGNORECASE)]
    ended = [line for line in lines if "exited on signal" in line]
    message = [*raised[-1:], *ended, *errors, *lines][0]
    return f"a command failed: {message.strip()[:300]}", "See the log"


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
