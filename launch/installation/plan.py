"""What set-up would do, as data: steps made of commands. Nothing here runs anything or looks at the machine.

`plan(request, machine=...)` is a pure function, so that the commands for a machine that is not at hand (one with an
NVIDIA GPU, say) can be tested and printed. `run.py` runs the steps.
"""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launch.installation import horovod_source, horovod_wheel
from launch.installation.cuda import NAMES, ONLY, Environment, Toolkit

FRAMEWORKS = ("torch", "keras")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_12_BUILD = "cu126"  # PyTorch's only build for CUDA 12; the one for CUDA 13 is on PyPI
CUDA_12_INDEX = f"https://download.pytorch.org/whl/{CUDA_12_BUILD}"
TRIAL_SECONDS = 300  # a GPU whose driver hangs never answers
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
        seconds: after which it is ended
        remedy: what to do if it fails; without it, what its output suggests
    """

    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    installs: bool = False
    folder: Path | None = None
    programs: Path | None = None
    tries: bool = False
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
        if not machine.toolkit:
            lock = str(request.lock_files / "cuda13.txt")
            actions.append(pip(request, "install", "-c", lock, *PIP_TOOLKIT, installs=True))
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
    actions += [download_horovod(request, folder), Call("copy_wheel", f"copy the built wheel to {folder / 'horovod'}")]
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
            if action.programs:
                settings.append(f'PATH={shlex.quote(str(action.programs))}:"$PATH"')
            place = f"cd {shlex.quote(str(action.folder))} && " if action.folder else ""
            lines.append(place + " ".join([*settings, shlex.join(action.args)]))
    return "\n".join(lines)
