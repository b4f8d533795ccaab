"""What a host reports to `python -m launch preflight`: one process per host prints one line of JSON.

    python -m launch.preflight.host_probe '{"host": "a", "limit_seconds": 15, "folders": {"runs": "runs"}}'

Imports no framework, which would take seconds: what Horovod was built with is read from its compiled files. Each part
is independent: if one fails, its reason is reported, and so are the other parts. Only the standard library is
imported at the top, so that a host also answers where packages are missing.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from common.distributed.pinning import visible_gpus
from common.utils.paths import ROOT

SOURCE_FOLDERS = ("common", "torch_impl", "keras_impl", "launch")
SOURCE_KINDS = (".py", ".toml")
PROGRAM_SECONDS = 10
# framework -> Horovod's compiled file, and the framework's name in Horovod's metadata.json.
EXTENSIONS = {
    "torch": ("torch/mpi_lib_v2*.so", "pytorch"),
    "keras": ("tensorflow/mpi_lib*.so", "tensorflow"),
}
# C++ needs the names of classes at run time, so a class that was compiled leaves its name in the file.
BUILD_MARKS = {"mpi": b"13MPIControllerE", "gloo": b"14GlooControllerE", "nccl": b"13NCCLAllreduceE"}
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class ProbeRequest:
    """What a host is asked.

    Attributes:
        host: the name to answer by.
        limit_seconds: after which the process ends itself.
        dataset: as for trainers; None: not checked.
        folders: "runs", "scratch" -> path.
        mark: file to create in a folder that the preflight made in the runs folder; None: not asked.
    """

    host: str
    limit_seconds: int
    dataset: str | None = None
    folders: dict[str, str] = field(default_factory=dict)
    mark: str | None = None


@dataclass(frozen=True, kw_only=True)
class Software:
    """Versions of Python, the packages and the project's files; the number of cores that a process may use."""

    versions: dict[str, str]
    cores: int


@dataclass(frozen=True, kw_only=True)
class HorovodBuild:
    """What Horovod was built with (mpi, gloo, nccl) for one framework, and the framework's version then."""

    features: list[str]
    compiled_for: str | None


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder of the run, or its first parent that exists; `problem`: why it cannot be written."""

    path: str
    free_bytes: int
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class DataState:
    """The data set: verified, absent, damaged, or unread (where only training can check it)."""

    state: str
    text: str
    published: bool = False


@dataclass(frozen=True, kw_only=True)
class HostReport:
    """What a host reports; a part that is None has its reason in `errors`.

    Attributes:
        horovod: framework -> build, of frameworks that Horovod was built for.
        mpirun: first line of its version.
        interfaces: name -> addresses, of interfaces that are up.
        gpus: names of the GPUs that a process sees.
        folders: cache, runs and scratch.
    """

    host: str
    errors: dict[str, str] = field(default_factory=dict)
    software: Software | None = None
    horovod: dict[str, HorovodBuild] | None = None
    mpirun: str | None = None
    interfaces: dict[str, list[str]] | None = None
    gpus: list[str] | None = None
    folders: dict[str, Folder] | None = None
    data: DataState | None = None


def main() -> int:
    """Print the report."""
    request = ProbeRequest(**json.loads(sys.argv[1]))
    signal.alarm(request.limit_seconds)  # ends this process even if the preflight is gone
    print(json.dumps(asdict(probe(request))), flush=True)
    return 0


def probe(request: ProbeRequest) -> HostReport:
    """Return this host's report."""
    errors: dict[str, str] = {}

    def part(name: str, read: Callable[[], Value]) -> Value | None:
        try:
            return read()
        except Exception as error:  # the preflight shows it, whatever it is
            errors[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return None

    # First, so that a host that is slow elsewhere has created its file.
    part("shared", lambda: create_mark(request.mark))
    return HostReport(
        host=request.host,
        errors=errors,
        software=part("software", software),
        horovod=part("horovod", horovod_builds),
        mpirun=part("mpirun", lambda: run_program("mpirun", "--version").splitlines()[0].strip()),
        interfaces=part("interfaces", interfaces),
        gpus=part("gpus", gpus),
        folders=part("folders", lambda: folders(request.folders)),
        data=part("data", lambda: data_state(request.dataset)),
    )


def create_mark(mark: str | None) -> None:
    """Create this host's file, if its folder is visible here."""
    if mark is not None and Path(mark).parent.is_dir():
        Path(mark).touch()


def software() -> Software:
    """Return what is installed."""
    from common.run_folder.environment import describe_environment

    found = describe_environment()
    project = f"{source_hash()} (revision {found.source_revision[:12]})"
    versions = {"Python": platform.python_version(), "the project": project, **found.packages}
    return Software(versions=versions, cores=found.cores)


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
    """Return framework -> what Horovod was built with; imports nothing."""
    found = importlib.util.find_spec("horovod")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("Horovod is not installed")
    folder = Path(next(iter(found.submodule_search_locations)))
    versions: dict[str, str] = {}
    with suppress(OSError, ValueError):
        versions = json.loads((folder / "metadata.json").read_text())
    return {
        framework: HorovodBuild(features=build_features(file), compiled_for=versions.get(name))
        for framework, (pattern, name) in EXTENSIONS.items()
        for file in folder.glob(pattern)
    }


def build_features(file: Path) -> list[str]:
    """Return which of mpi, gloo and nccl a compiled file of Horovod contains."""
    with file.open("rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return [name for name, mark in BUILD_MARKS.items() if content.find(mark) >= 0]


def interfaces() -> dict[str, list[str]]:
    """Return network interface -> addresses, of those that are up."""
    import psutil

    states = psutil.net_if_stats()
    return {
        name: [entry.address for entry in addresses if entry.family.name in ("AF_INET", "AF_INET6")]
        for name, addresses in psutil.net_if_addrs().items()
        if name in states and states[name].isup
    }


def gpus() -> list[str]:
    """Return the names of the GPUs that a process sees; no nvidia-smi means no driver, so none.

    Raises:
        RuntimeError: nvidia-smi fails, mostly because driver and kernel module differ.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    lines = run_program("nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader").splitlines()
    rows = [[word.strip() for word in line.split(",", 2)] for line in lines if line.count(",") >= 2]
    return visible_gpus([(index, uuid, name) for index, uuid, name in rows], os.environ.get("CUDA_VISIBLE_DEVICES"))


def folders(paths: dict[str, str]) -> dict[str, Folder]:
    """Return name -> folder, the cache of data sets included."""
    from common.utils.cache_folder import cache_folder

    return {name: check_folder(Path(path)) for name, path in ({"cache": str(cache_folder())} | paths).items()}


def check_folder(path: Path) -> Folder:
    """Return free space and whether the folder, or its first existing parent, can be written; creates no folder."""
    path = path.absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    problem = None
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"preflight")
    except OSError as error:
        problem = f"{error.strerror} ({existing})"
    return Folder(path=str(path), free_bytes=shutil.disk_usage(existing).free, problem=problem)


def data_state(dataset: str | None) -> DataState | None:
    """Return whether the data set is in place and undamaged; fetches nothing."""
    if dataset is None:
        return None
    from common.data import cache as dataset_cache
    from common.data.catalog import PUBLISHED
    from common.data.images.prepared_file import load_prepared
    from common.errors import UserError

    kind, _, rest = dataset.partition(":")
    path = Path(rest) if rest else dataset_cache.datasets_folder() / dataset
    if kind == "synthetic":
        return DataState(state="verified", text="made from a seed, no files")
    if not path.exists():
        return DataState(state="absent", text=f"not there: {path}", published=dataset in PUBLISHED)
    if kind == "images":
        return DataState(state="unread", text=f"checked when it is read: {path}")
    try:
        if kind == "prepared":
            load_prepared(path, name=dataset)
        else:
            dataset_cache.load_entry(dataset, name=dataset)
    except (dataset_cache.DamagedEntryError, UserError) as error:
        return DataState(state="damaged", text=str(error))
    return DataState(state="verified", text=f"checksums match: {path}")


def run_program(*command: str) -> str:
    """Return what a program prints; the interpreter's folder is searched first, as launchers do.

    Raises:
        FileNotFoundError: there is no such program.
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
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {lines[-1]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
