"""What set-up would do, as data: steps made of commands. Nothing here runs anything or looks at the machine.

`plan(request, machine=...)` is a pure function, so that the commands for a machine that is not at hand (one with an
NVIDIA GPU, say) can be tested and printed. `run.py` runs the steps.
"""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launch.installation import horovod_source, horovod_wheel, packages
from launch.installation.cuda import NAMES, ONLY, Environment, Toolkit

FRAMEWORKS = ("torch", "keras")
# PyTorch's builds that PyPI has not, by CUDA's major version; the one for CUDA 13 is on PyPI.
TORCH_BUILDS = {None: "cpu", 12: "cu126"}
TORCH_INDEX = "https://download.pytorch.org/whl"
TRIAL_SECONDS = 300  # a GPU whose driver hangs never answers
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

    wheel: Path | None = None  # the built Horovod wheel, if one was found
    key: str = "KEY"  # its folder in the cache
    jobs: int = 2  # compilers at once
    toolkit: Toolkit | None = None  # CUDA's compiler; None: pip's
    has_venv: bool = False


@dataclass(frozen=True)
class Command:
    """A program to run.

    Args:
        installs: it leaves the environment half changed when it is interrupted
        folder: where it runs, if not in the clone
        programs: a folder of programs that come next after the environment's own
        tries: it tries the new Horovod
        may_fail: nothing is said then
        seconds: after which it is ended
        remedy: what to do if it fails; without it, what its output suggests
    """

    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    installs: bool = False
    folder: Path | None = None
    programs: Path | None = None
    tries: bool = False
    may_fail: bool = False
    seconds: int | None = None
    remedy: str = ""


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
    steps.append(project_step(request, machine))
    return steps


def pip(request: Request, *args: str, installs: bool = False) -> Command:
    """Return a pip command; with a folder of wheels it asks no network."""
    return Command((request.python, "-m", "pip", *args), offline(request), installs=installs)


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
    """Install Horovod: the kept wheel, or one that is built now."""
    wheel = machine.wheel or "that wheel"
    install_wheel = Call("install_horovod", f"pip install --force-reinstall --no-deps {wheel}")
    if machine.wheel:
        return Step("installing Horovod, built earlier", "a few seconds", (install_wheel,))
    minutes = 8 if request.cuda else 4
    actions = (*build_horovod(request, machine), install_wheel)
    return Step("building Horovod", f"about {minutes} min on 2 cores, first time only", actions)


def build_horovod(request: Request, machine: Machine) -> list[Command | Call]:
    """Return the actions that fetch Horovod's source, edit it and compile it."""
    build, cuda_home = build_folder(request.venv), None
    actions: list[Command | Call] = []
    if request.cuda:
        cuda_home = machine.toolkit.home if machine.toolkit else horovod_wheel.pip_toolkit(request.venv)
        actions.append(Call("link_libraries", "name libnccl.so.2, and pip's libcudart.so.13, as the linker wants it"))
    settings = horovod_wheel.build_environment(
        venv=request.venv,
        frameworks=request.frameworks,
        jobs=machine.jobs,
        cuda_home=cuda_home,
        compute_capabilities=request.capabilities,
    )
    wheel = pip(request, "wheel", "--verbose", "--no-deps", "--no-build-isolation", "--wheel-dir", str(build), ".")
    edited = ", ".join(dict.fromkeys(edit.file for edit in horovod_source.EDITS))
    return [
        *actions,
        download_horovod(request, build),
        Call("edit_horovod", f"check its SHA-256, unpack it, edit {edited}"),
        Command(
            wheel.args,
            {**wheel.env, **settings},
            folder=build / "source" / f"horovod-{horovod_source.VERSION}",
            programs=cuda_home / "bin" if cuda_home else None,
        ),
        Call("relocate_horovod", "make the libraries' RUNPATH relative"),
    ]


def build_folder(venv: Path) -> Path:
    """Return where Horovod is built: inside the environment, so that it disappears with it."""
    return venv / "horovod-twins" / "build"


def download_horovod(request: Request, folder: Path) -> Command:
    """Return the command that fetches Horovod's source distribution."""
    source_only = ("--no-deps", "--no-build-isolation", "--no-binary", "horovod")
    return pip(request, "download", *source_only, "--dest", str(folder), f"horovod=={horovod_source.VERSION}")


def project_step(request: Request, machine: Machine) -> Step:
    """Install the project itself, editable, try what was installed, and keep a new Horovod that passed."""
    editable = ("install", "--no-deps", "--no-build-isolation", "--editable", str(request.root))
    actions: list[Command | Call] = [pip(request, *editable, installs=True)]
    actions += [trial(request, machine, framework) for framework in request.frameworks]
    if not machine.wheel:
        actions.append(Call("keep_horovod", f"keep the wheel under {machine.key}"))
    return Step("installing the project and trying it all", "about 15 s", tuple(actions))


def trial(request: Request, machine: Machine, framework: str) -> Command:
    """Return the command that tries Horovod with one framework, on one rank: without a launcher NCCL is not reached."""
    program = str(request.root / f"{framework}_impl" / "horovod_trial.py")
    words = ("mpirun", "-np", "1", request.python, program, *(["--nccl"] if request.cuda else []))
    # Alone on this machine, whoever runs it.
    settings = {"OMPI_MCA_plm": "isolated", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    settings["LD_LIBRARY_PATH"] = ""  # modules that were loaded to compile would put their libraries first
    remedy = f"Remove {machine.wheel} and run the same again: Horovod is built anew" if machine.wheel else ""
    return Command(words, settings, tries=not machine.wheel, seconds=TRIAL_SECONDS, remedy=remedy)


def wheels_step(request: Request, folder: Path) -> Step:
    """Fill a folder for set-ups without network: all packages, Horovod's source and the built wheel."""
    actions = (
        Call("download_packages", f"pip download --require-hashes what is installed to {folder}"),
        download_horovod(request, folder),
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
            if action.programs:
                settings.append(f'PATH={shlex.quote(str(action.programs))}:"$PATH"')
            place = f"cd {shlex.quote(str(action.folder))} && " if action.folder else ""
            lines.append(place + " ".join([*settings, shlex.join(action.args)]))
    return "\n".join(lines)
