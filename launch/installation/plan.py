"""What set-up would do, as data: steps made of commands. Nothing here runs anything or looks at the machine.

`plan(request, machine=...)` is a pure function, so that the commands for a machine that is not at hand (one with an
NVIDIA GPU, say) can be tested and printed. `run.py` runs the steps.
"""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launch.installation import horovod_wheel

FRAMEWORKS = ("torch", "keras")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# On PyPI torch 2.13.0 brings CUDA 13 and TensorFlow 2.21.0 CUDA 12, and their cuDNN and NCCL would overwrite each other
# (both are unpacked into nvidia/). PyTorch's build for CUDA 12.6 asks for versions that suit TensorFlow too, so that
# both frameworks compute with the same libraries. Untried.
CUDA_BUILD = "cu126"
CUDA_INDEX = f"https://download.pytorch.org/whl/{CUDA_BUILD}"
CUDA_PACKAGES = ("nvidia-", "cuda-", "triton")
GIGABYTES = {"base": 0.5, "torch": 1.2, "keras": 2.0, "dev": 0.2, "build": 0.8, "cuda": 12.0}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for."""

    root: Path
    frameworks: tuple[str, ...] = FRAMEWORKS
    dev: bool = False
    gpu: bool = False
    wheels: Path | None = None

    @property
    def venv(self) -> Path:
        """The virtual environment's folder."""
        return self.root / ".venv"

    @property
    def python(self) -> str:
        """The virtual environment's interpreter."""
        return str(self.venv / "bin" / "python")

    @property
    def lock_files(self) -> Path:
        """The folder of the pinned versions."""
        return self.root / "launch" / "installation" / "requirements"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the plan depends on and cannot know by itself."""

    wheel: Path | None = None  # the built Horovod wheel, if one was found
    key: str = "KEY"  # its folder in the cache
    jobs: int = 2  # compilers at once
    compute_capabilities: tuple[str, ...] = ()  # of the NVIDIA GPUs here
    has_venv: bool = False


@dataclass(frozen=True)
class Command:
    """A program to run.

    Args:
        installs: it leaves the environment half changed when it is interrupted
        folder: where it runs, if not in the clone
        remedy: what to do if it fails; without it, what its output suggests
    """

    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    installs: bool = False
    folder: Path | None = None
    remedy: str = ""


@dataclass(frozen=True)
class Call:
    """Something done in Python: the name of a method of `run.Runner`, and what it does in words."""

    method: str
    words: str


@dataclass(frozen=True)
class Step:
    """One line of progress: what, how long it may take, and what is run for it."""

    title: str
    expect: str
    actions: tuple[Command | Call, ...]


def plan(request: Request, *, machine: Machine) -> list[Step]:
    """Return the steps that bring the environment to what is asked for. Steps that find their work done are quick."""
    steps = [] if machine.has_venv else [venv_step(request)]
    steps.append(Step("installing MPI, CMake and the base packages", "about 20 s", (install(request, "base"),)))
    if "torch" in request.frameworks:
        steps.append(torch_step(request))
    if "keras" in request.frameworks:
        steps.append(tensorflow_step(request))
    if request.dev:
        steps.append(Step("installing the tools for tests, lint and types", "about 10 s", (install(request, "dev"),)))
    steps.append(horovod_step(request, machine))
    steps.append(project_step(request, machine))
    return steps


def pins(lock_files: Path) -> dict[str, str]:
    """Return package name -> version from all lock files."""
    return {name: version for path in sorted(lock_files.glob("*.txt")) for name, version in read_pins(path).items()}


def read_pins(path: Path) -> dict[str, str]:
    """Return package name -> version from one lock file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("==", maxsplit=1) for line in lines if line and not line.startswith("#"))


def pip(request: Request, *args: str, installs: bool = False) -> Command:
    """Return a pip command; with a folder of wheels it asks no network."""
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(request.wheels)} if request.wheels else {}
    return Command((request.python, "-m", "pip", *args), offline, installs=installs)


def install(request: Request, name: str) -> Command:
    """Return the command that installs one lock file."""
    return pip(request, "install", "-r", str(request.lock_files / f"{name}.txt"), installs=True)


def venv_step(request: Request) -> Step:
    """Make the virtual environment, from the interpreter behind one that may itself be `.venv`'s."""
    python = getattr(sys, "_base_executable", sys.executable)
    return Step("making .venv", "a few seconds", (Command((python, "-m", "venv", str(request.venv)), installs=True),))


def torch_step(request: Request) -> Step:
    """Install PyTorch: without an NVIDIA GPU the build without CUDA, with one (untried) that for TensorFlow's CUDA."""
    if request.gpu:
        command = pip(request, "install", *torch_with_cuda(request), installs=True)
        return Step("installing PyTorch", "a few gigabytes", (command,))
    actions: tuple[Command | Call, ...] = (install(request, "torch"),)
    if not request.wheels:
        words = f"ask pip, without downloading: would torch bring CUDA packages? Then take it from {CPU_INDEX}"
        actions = (Call("avoid_cuda", words), *actions)
    return Step("installing PyTorch", "about 200 MB", actions)


def torch_with_cuda(request: Request) -> list[str]:
    """Return pip's arguments for PyTorch's build with CUDA, which brings its CUDA packages along."""
    versions, lock = pins(request.lock_files), str(request.lock_files / "torch.txt")
    wanted = [f"{name}=={versions[name]}+{CUDA_BUILD}" for name in ("torch", "torchvision")]
    return ["--extra-index-url", CUDA_INDEX, "-c", lock, *wanted]


def tensorflow_with_cuda(request: Request) -> list[str]:
    """Return pip's arguments for TensorFlow with its CUDA packages."""
    version, lock = pins(request.lock_files)["tensorflow-cpu"], str(request.lock_files / "tensorflow.txt")
    return ["-c", lock, f"tensorflow[and-cuda]=={version}"]


def torch_dry_run(request: Request, report: Path) -> Command:
    """Return the command by which pip says what it would install, without downloading it."""
    lock = str(request.lock_files / "torch.txt")
    return pip(request, "install", "--dry-run", "--ignore-installed", "--quiet", "--report", str(report), "-r", lock)


def torch_without_cuda(request: Request) -> Command:
    """Return the command that installs PyTorch's CPU build from its own index; what it needs comes from PyPI after."""
    versions = pins(request.lock_files)
    wanted = [f"{name}=={versions[name]}+cpu" for name in ("torch", "torchvision")]
    return pip(request, "install", "--no-deps", "--index-url", CPU_INDEX, *wanted, installs=True)


def tensorflow_step(request: Request) -> Step:
    """Install TensorFlow: with a GPU (untried), `tensorflow` with its CUDA packages in place of `tensorflow-cpu`."""
    if not request.gpu:
        return Step("installing TensorFlow", "about 300 MB", (install(request, "tensorflow"),))
    command = pip(request, "install", *tensorflow_with_cuda(request), installs=True)
    return Step("installing TensorFlow", "a few gigabytes", (command,))


def horovod_step(request: Request, machine: Machine) -> Step:
    """Install Horovod: the kept wheel, or one that is built now and kept."""
    wheel = machine.wheel or "that wheel"
    install_wheel = Call("install_horovod", f"pip install --force-reinstall --no-deps {wheel}")
    if machine.wheel:
        return Step("installing Horovod, built earlier", "a few seconds", (install_wheel,))
    actions = (*build_horovod(request, machine), install_wheel)
    return Step("building Horovod", "about 4 min on 2 cores, first time only", actions)


def build_horovod(request: Request, machine: Machine) -> list[Command | Call]:
    """Return the actions that fetch Horovod's source, edit it, compile it and keep the wheel."""
    build = build_folder(request.venv)
    settings = horovod_wheel.build_environment(
        venv=request.venv,
        frameworks=request.frameworks,
        gpu=request.gpu,
        jobs=machine.jobs,
        compute_capabilities=machine.compute_capabilities,
    )
    wheel = pip(request, "wheel", "--verbose", "--no-deps", "--no-build-isolation", "--wheel-dir", str(build), ".")
    actions: list[Command | Call] = [
        download_horovod(request, build),
        Call("edit_horovod", f"check its SHA-256, unpack it, edit {', '.join(e.file for e in horovod_wheel.EDITS)}"),
        Command(wheel.args, {**wheel.env, **settings}, folder=build / "source" / f"horovod-{horovod_wheel.VERSION}"),
        Call("keep_horovod", f"make the libraries' RUNPATH relative; keep the wheel under {machine.key}"),
    ]
    if request.gpu:
        actions.insert(0, Call("link_nccl", "name libnccl.so.2 of the nvidia-nccl package libnccl.so for the linker"))
    return actions


def build_folder(venv: Path) -> Path:
    """Return where Horovod is built: inside the environment, so that it disappears with it."""
    return venv / "horovod-twins" / "build"


def download_horovod(request: Request, folder: Path) -> Command:
    """Return the command that fetches Horovod's source distribution."""
    source_only = ("--no-deps", "--no-build-isolation", "--no-binary", "horovod")
    return pip(request, "download", *source_only, "--dest", str(folder), f"horovod=={horovod_wheel.VERSION}")


def project_step(request: Request, machine: Machine) -> Step:
    """Install the project itself, editable, and try what was installed."""
    editable = ("install", "--no-deps", "--no-build-isolation", "--editable", str(request.root))
    trials = [trial(request, machine, framework) for framework in request.frameworks]
    actions = (pip(request, *editable, installs=True), *trials)
    return Step("installing the project and trying it all", "about 10 s", actions)


def trial(request: Request, machine: Machine, framework: str) -> Command:
    """Return the command that loads Horovod's library for one framework and asks it what it can do."""
    module = {"torch": "horovod.torch", "keras": "horovod.tensorflow"}[framework]
    built = "hvd.mpi_built() and hvd.gloo_built()" + (" and hvd.nccl_built()" if request.gpu else "")
    remedy = f"Remove {machine.wheel}, so that Horovod is built again" if machine.wheel else ""
    return Command((request.python, "-c", f"import {module} as hvd; assert {built}"), remedy=remedy)


def wheels_step(request: Request, folder: Path, *, cpu_index: bool) -> Step:
    """Fill a folder for set-ups without network: all packages, Horovod's source and the built wheel.

    Args:
        cpu_index: take PyTorch from its CPU index, because the usual one has the build with CUDA
    """
    into = ("download", "--only-binary", ":all:", "--dest", str(folder))
    if request.gpu:
        needs = {name: ["-r", str(request.lock_files / f"{name}.txt")] for name in lock_names(request)}
        with_cuda = {"torch": torch_with_cuda(request), "tensorflow": tensorflow_with_cuda(request)}
        # In one command, so that both frameworks get the same CUDA packages.
        frameworks = [argument for name in needs if name in with_cuda for argument in with_cuda[name]]
        wanted = [needs["base"], needs["dev"], frameworks]
    else:  # the lock files are complete, so nothing needs to be resolved
        of_torch = ("torch", "torchvision") if cpu_index else ()
        found = [read_pins(request.lock_files / f"{name}.txt") for name in lock_names(request)]
        wanted = [["--no-deps", *(f"{n}=={v}" for n, v in part.items() if n not in of_torch)] for part in found]
        if cpu_index:
            builds = [f"{name}=={pins(request.lock_files)[name]}+cpu" for name in of_torch]
            wanted.append(["--no-deps", "--index-url", CPU_INDEX, *builds])
    actions: list[Command | Call] = [pip(request, *into, *arguments) for arguments in wanted]
    actions += [download_horovod(request, folder), Call("copy_wheel", f"copy the built wheel to {folder / 'horovod'}")]
    return Step(f"filling {folder.name}", "about 650 MB; several gigabytes with a GPU", tuple(actions))


def lock_names(request: Request) -> list[str]:
    """Return the names of the lock files that a request needs, and of the developers' tools."""
    frameworks = {"torch": "torch", "keras": "tensorflow"}
    return ["base", *(frameworks[framework] for framework in request.frameworks), "dev"]


def gigabytes(request: Request, *, installed: tuple[str, ...], build: bool) -> float:
    """Return the free space that set-up needs, generously."""
    missing = [framework for framework in request.frameworks if framework not in installed]
    total = sum(GIGABYTES[framework] for framework in missing) + (GIGABYTES["build"] if build else 0)
    if not installed:
        total += GIGABYTES["base"] + GIGABYTES["dev"] * request.dev
    return total + (GIGABYTES["cuda"] if request.gpu and missing else 0)


def describe(steps: list[Step]) -> str:
    """Return the plan as text: commands as one could type them, the rest as comments."""
    lines = []
    for number, step in enumerate(steps, start=1):
        lines.append(f"# [{number}/{len(steps)}] {step.title} ({step.expect})")
        for action in step.actions:
            if isinstance(action, Call):
                lines.append(f"#   {action.words}")
                continue
            settings = [f"{name}={shlex.quote(value)}" for name, value in action.env.items()]
            place = f"cd {shlex.quote(str(action.folder))} && " if action.folder else ""
            lines.append(place + " ".join([*settings, shlex.join(action.args)]))
    return "\n".join(lines)
