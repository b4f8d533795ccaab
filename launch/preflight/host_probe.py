"""What a host tells of itself to `python -m launch preflight`: one process a host, JSON on one line.

    python -m launch.preflight.host_probe '{"host": "a", "limit_seconds": 15, "folders": {"runs": "runs"}}'

Imports no framework, for that takes seconds: what Horovod was built with is read from its compiled files. Each part
stands alone: where one cannot be told the reason is, and the others go on. So only the standard library is imported at
the top: the host also answers where packages of the project are missing.
"""

import hashlib
import importlib.util
import json
import mmap
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from common.distributed.pinning import visible_gpus
from common.utils.paths import ROOT

SOURCE_FOLDERS = ("common", "torch_impl", "keras_impl", "launch")
SOURCE_KINDS = (".py", ".toml")
PROGRAM_SECONDS = 10  # for a program that is asked for a version or a list
# Where Horovod keeps the compiled side of each framework.
EXTENSIONS = {"torch": "torch/mpi_lib_v2*.so", "keras": "tensorflow/mpi_lib*.so"}
COMPILED_FOR = {"torch": "pytorch", "keras": "tensorflow"}  # as Horovod's metadata.json calls the frameworks
# A class that is compiled in leaves its name in the file: C++ needs it at run time.
MARKS = {"mpi": b"13MPIControllerE", "gloo": b"14GlooControllerE", "nccl": b"13NCCLAllreduceE"}
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Software:
    """What is installed.

    Attributes:
        packages: name -> version, of those that take part in training.
        revision: commit of the project's files, "unknown" without git.
        sources: hash of the same files; tells apart what the commit does not.
        cores: that a process may use.
    """

    packages: dict[str, str]
    revision: str
    sources: str
    cores: int


@dataclass(frozen=True, kw_only=True)
class HorovodBuild:
    """What Horovod was built with for one framework; `compiled_for`: the framework's version then, if it tells."""

    mpi: bool
    gloo: bool
    nccl: bool
    compiled_for: str | None


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder of the run.

    Attributes:
        path: absolute.
        free_bytes: where it lies, or where its first existing parent lies.
        problem: why nothing can be written there; None: it can.
    """

    path: str
    free_bytes: int
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class Data:
    """The data set.

    Attributes:
        state: "verified", "absent", "damaged", or "unread" (where only training itself can check it).
        published: whether it can be fetched.
    """

    state: str
    text: str
    published: bool = False


@dataclass(frozen=True, kw_only=True)
class HostProbe:
    """What a host tells. A part that is None has its reason in `errors`; `seconds` tells how long each part took.

    Attributes:
        host: as the preflight names it.
        node: as it names itself.
        clock_first, clock_last: its Unix time when it began and when it ended.
        horovod: framework -> build; a framework that Horovod was not built for is missing.
        mpirun: first line of its version.
        interfaces: name -> addresses, of those that are up.
        gpus: names of those that a process sees here.
        folders: runs, scratch and cache -> what is known of them.
        sees_runs: whether the file that the preflight put into the folder of runs is seen here; what this host writes
            beside it the preflight looks for. None: there is none.
    """

    host: str
    node: str
    python: str
    executable: str
    clock_first: float
    clock_last: float
    seconds: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    software: Software | None = None
    horovod: dict[str, HorovodBuild] | None = None
    mpirun: str | None = None
    interfaces: dict[str, list[str]] | None = None
    gpus: list[str] | None = None
    folders: dict[str, Folder] | None = None
    sees_runs: bool | None = None
    data: Data | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a host is asked.

    Attributes:
        host: the name to answer by.
        limit_seconds: after which the process ends itself, whoever waits for it.
        dataset: as trainers are given it; None: not asked.
        folders: runs, scratch, ... -> path.
        mark: file to leave in a folder that the preflight has made in the folder of runs; None: not asked.
    """

    host: str
    limit_seconds: int
    dataset: str | None = None
    folders: dict[str, str] = field(default_factory=dict)
    mark: str | None = None


def main() -> int:
    """Tell all, on one line."""
    clock_first = time.time()
    request = Request(**json.loads(sys.argv[1]))
    signal.alarm(request.limit_seconds)  # ends this process, also where nobody is left to do it
    print(json.dumps(asdict(probe(request, clock_first=clock_first))), flush=True)
    return 0


def probe(request: Request, *, clock_first: float) -> HostProbe:
    """Return what this host tells."""
    seconds: dict[str, float] = {}
    errors: dict[str, str] = {}

    def part(name: str, tell: Callable[[], Value]) -> Value | None:
        began = time.perf_counter()
        try:
            return tell()
        except Exception as error:  # whatever it is, the preflight shows it
            errors[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return None
        finally:
            seconds[name] = time.perf_counter() - began

    return HostProbe(
        host=request.host,
        node=platform.node(),
        python=platform.python_version(),
        executable=sys.executable,
        clock_first=clock_first,
        seconds=seconds,
        errors=errors,
        # The folder of runs comes first, so that a host that is slow elsewhere has left its file there.
        sees_runs=part("shared", lambda: leave_file(request)),
        software=part("software", software),
        horovod=part("horovod", horovod_builds),
        mpirun=part("mpirun", mpirun_version),
        interfaces=part("interfaces", interfaces),
        gpus=part("gpus", gpus),
        folders=part("folders", lambda: folders(request.folders)),
        data=part("data", lambda: data_state(request.dataset)),
        clock_last=time.time(),
    )


def software() -> Software:
    """Return what is installed."""
    from common.run_folder.environment import describe_environment

    environment = describe_environment()
    return Software(
        packages=environment.packages,
        revision=environment.source_revision,
        sources=source_hash(),
        cores=environment.cores,
    )


def source_hash() -> str:
    """Return a hash of the project's programs and tables."""
    files = sorted(
        file
        for folder in SOURCE_FOLDERS
        for file in (ROOT / folder).rglob("*")
        if file.suffix in SOURCE_KINDS and file.is_file()
    )
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.relative_to(ROOT)}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return total.hexdigest()[:12]


def horovod_builds() -> dict[str, HorovodBuild]:
    """Return framework -> what Horovod was built with."""
    found = importlib.util.find_spec("horovod")  # looks, imports nothing
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("Horovod is not installed")
    folder = Path(next(iter(found.submodule_search_locations)))
    versions: dict[str, str] = {}
    with suppress(OSError, ValueError):
        versions = json.loads((folder / "metadata.json").read_text())
    builds = {}
    for framework, pattern in EXTENSIONS.items():
        for file in folder.glob(pattern):
            built = built_with(file)
            builds[framework] = HorovodBuild(**built, compiled_for=versions.get(COMPILED_FOR[framework]))
    return builds


def built_with(file: Path) -> dict[str, bool]:
    """Return mpi, gloo and nccl -> whether a compiled file of Horovod has it."""
    with file.open("rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return {name: content.find(mark) >= 0 for name, mark in MARKS.items()}


def mpirun_version() -> str | None:
    """Return the first line of `mpirun --version`, of the one that this interpreter's launchers would take."""
    return run_program("mpirun", "--version").splitlines()[0].strip()


def interfaces() -> dict[str, list[str]]:
    """Return network interface -> addresses, of those that are up."""
    import psutil

    states = psutil.net_if_stats()
    families = {"AF_INET", "AF_INET6"}
    return {
        name: [entry.address for entry in addresses if entry.family.name in families]
        for name, addresses in psutil.net_if_addrs().items()
        if name in states and states[name].isup
    }


def gpus() -> list[str]:
    """Return the names of the GPUs that a process sees; nvidia-smi comes with the driver, so without it there is none.

    Raises:
        RuntimeError: nvidia-smi is there and fails, mostly because driver and kernel module differ.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    lines = run_program("nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader").splitlines()
    rows = [[word.strip() for word in line.split(",", 2)] for line in lines if line.count(",") >= 2]
    return visible_gpus([(index, uuid, name) for index, uuid, name in rows], os.environ.get("CUDA_VISIBLE_DEVICES"))


def folders(paths: dict[str, str]) -> dict[str, Folder]:
    """Return folder -> what is known of it, the cache of data sets among them."""
    from common.utils.cache_folder import cache_folder

    return {name: look_at(Path(path)) for name, path in ({"cache": str(cache_folder())} | paths).items()}


def look_at(path: Path) -> Folder:
    """Return space and writability of a folder, or of its first parent that is there: the run makes the rest."""
    path = path.absolute()
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    problem = None
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"preflight")
    except OSError as error:
        problem = f"{error.strerror} ({there})"
    return Folder(path=str(path), free_bytes=shutil.disk_usage(there).free, problem=problem)


def leave_file(request: Request) -> bool | None:
    """Leave this host's file where all hosts leave theirs; return whether the place is seen here."""
    if request.mark is None:
        return None
    mark = Path(request.mark)
    if not mark.parent.is_dir():
        return False
    mark.touch()
    return True


def data_state(dataset: str | None) -> Data | None:
    """Return whether the data set is there as it should be; nothing is fetched."""
    if dataset is None:
        return None
    from common.data import cache as dataset_cache
    from common.data.catalog import PUBLISHED
    from common.data.images.prepared_file import load_prepared
    from common.errors import UserError

    kind, _, rest = dataset.partition(":")
    place = Path(rest) if rest else dataset_cache.datasets_folder() / dataset
    if kind == "synthetic":
        return Data(state="verified", text="made from a seed, no files")
    if not place.exists():
        return Data(state="absent", text=f"not there: {place}", published=dataset in PUBLISHED)
    if kind == "images":
        return Data(state="unread", text=f"checked when it is read: {place}")
    try:
        if kind == "prepared":
            load_prepared(place, name=dataset)
        else:
            dataset_cache.load_entry(dataset, name=dataset)
    except (dataset_cache.DamagedEntryError, UserError) as error:
        return Data(state="damaged", text=str(error))
    return Data(state="verified", text=f"checksums right: {place}")


def run_program(*command: str) -> str:
    """Return what a program prints; the interpreter's own folder is searched first, as launchers do.

    Raises:
        FileNotFoundError: there is none of this name.
        RuntimeError: it failed or did not end.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which(command[0], path=path)
    if program is None:
        raise FileNotFoundError(f"{command[0]} is not on PATH")
    try:
        done = subprocess.run(
            [program, *command[1:]], capture_output=True, text=True, errors="replace", timeout=PROGRAM_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{command[0]} did not end within {PROGRAM_SECONDS} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {lines[-1]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
