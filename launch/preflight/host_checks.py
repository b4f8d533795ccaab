"""The checks that each host makes for `python -m launch preflight`; one process per host prints one line of JSON.

A check returns its summary, or raises a `UserError` with what is wrong and how to fix it.
"""

import hashlib
import json
import os
import platform
import shutil
import signal
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

import psutil

from common.data import cache as dataset_cache
from common.data.images.prepared_file import load_prepared
from common.distributed.addresses import check_host_name
from common.distributed.console import counted
from common.errors import UserError, expanded
from common.pipeline.forecast import FRAMEWORK_BYTES
from common.run_folder.environment import PACKAGES_OF_FRAMEWORK, package_versions
from common.utils.cache_folder import cache_folder
from common.utils.cores import usable_cores
from common.utils.environments import package_folders
from common.utils.paths import ROOT
from launch.starting.gpus import Gpu, visible_gpus
from launch.starting.processes import output_of

LIMIT_SECONDS = 30
FREE_BYTES = 10**9  # a run of ResNet-34 with its checkpoints takes about half of it
SET_UP = "Run `make setup` there"
SOURCE_FOLDERS = ("common", "torch_impl", "keras_impl", "launch")
# What Horovod can be compiled with, and what to do where it is not.
FEATURES = {
    "mpi": ("MPI", "Run `make setup` there, or use --controller gloo"),
    "gloo": ("Gloo", "Run `make setup` there, or use --controller mpi"),
    "nccl": ("NCCL", "Run `make setup GPU=1` there, or use --device cpu"),
}
TITLES = {"torch": "PyTorch", "keras": "TensorFlow"}
INSTALLED_AS = {"torch": ("torch",), "keras": ("tensorflow", "tensorflow-cpu")}  # either name will do
HOROVODS_NAMES = {"torch": ("torch", "pytorch"), "keras": ("tensorflow", "tensorflow")}  # folder, in metadata.json
# C++ needs the names of classes at run time, so a class that was compiled leaves its name in the file.
MARKS = {"mpi": b"13MPIControllerE", "gloo": b"14GlooControllerE", "nccl": b"13NCCLAllreduceE"}

Answer = tuple[bool, str]  # whether a check passed; its summary, or a line per failure


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the ranks of a host need."""

    frameworks: tuple[str, ...]  # torch, keras or both
    controller: str = "mpi"
    device: str = "auto"  # as for trainers, as the data set
    threads: int | None = None  # per rank; None: cores / ranks
    memory_mb: int | None = None  # per rank, beyond the framework's own; None: not checked
    compiles: bool = False  # as the trainers' --compile
    dataset: str | None = None  # None: not checked
    can_fetch: bool = True  # whether training could fetch the data set
    interface: str | None = None  # of the network; None: Horovod and MPI choose
    folders: dict[str, str] = field(default_factory=dict)  # "runs", and "scratch" where the site has one -> path
    mark: str = ""  # a file in that folder, written by the host that started the preflight
    ranks: int = 0  # started on this host
    checks: tuple[str, ...] = ()  # to make


def main() -> int:
    """Print the hash of the project's files and the answers."""
    signal.alarm(LIMIT_SECONDS)  # ends this process even if the preflight is gone
    # As for launchers, the programs beside the interpreter come first.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    wanted = Wanted(**json.loads(sys.argv[1]))
    answers = {name: answer_of(HOST_CHECKS[name], wanted) for name in wanted.checks}
    print(json.dumps({"project": source_hash(), "answers": answers}), flush=True)
    return 0


def answer_of(check: Callable[..., str], *arguments: object) -> Answer:
    """Make a check; return its answer."""
    try:
        return True, check(*arguments)
    except UserError as failure:
        return False, str(failure)
    except Exception as error:  # the preflight shows it, whatever it is
        return False, f"{type(error).__name__}: {' '.join(str(error).split())}. {SET_UP}"


def source_hash() -> str:
    """Return a hash of the project's programs and tables."""
    total = hashlib.sha256()
    for file in sorted(file for folder in SOURCE_FOLDERS for file in (ROOT / folder).rglob("*")):
        if file.suffix in (".py", ".toml") and file.is_file():
            total.update(f"{file.relative_to(ROOT)}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return total.hexdigest()[:12]


def check_software(wanted: Wanted) -> str:
    """The frameworks and MPI are installed, and what torch.compile needs."""
    of_framework = {each: versions(each) for each in wanted.frameworks}
    found = {name: version for packages in of_framework.values() for name, version in packages.items()}
    mpi = ["openmpi", "mpirun"] if wanted.controller == "mpi" else []
    missing = [TITLES[each] for each, packages in of_framework.items() if not packages.keys() & INSTALLED_AS[each]]
    missing += [name for name in mpi[1:] if name not in found]
    if missing:
        raise UserError(f"not installed: {', '.join(missing)}. {SET_UP}")
    if wanted.compiles and "torch" in wanted.frameworks:
        check_compiler()
    packages = {name for each in wanted.frameworks for name in PACKAGES_OF_FRAMEWORK[each]}
    return ", ".join(f"{name} {found[name]}" for name in ["Python", *sorted(packages), *mpi] if name in found)


def check_compiler() -> None:
    """Raise UserError unless there is what torch.compile makes its code with."""
    compiler, header = os.environ.get("CXX", "g++"), Path(sysconfig.get_path("include"), "Python.h")
    missing = [*([] if shutil.which(compiler) else [compiler]), *([] if header.exists() else [str(header)])]
    if missing:
        remedy = "Install a C++ compiler and Python's headers (apt-get install g++ python3-dev), or leave it out"
        raise UserError(f"--compile needs {' and '.join(missing)}. {remedy}")


@cache  # two checks ask
def versions(framework: str) -> dict[str, str]:
    """Return the versions of Python, of the packages beside a framework, and of mpirun where it is on PATH."""
    found = {"Python": platform.python_version(), **package_versions(package_folders(framework))}
    if shutil.which("mpirun"):
        found["mpirun"] = output_of("mpirun", "--version").splitlines()[0].removeprefix("mpirun ")
    return found


def check_horovod(wanted: Wanted) -> str:
    """Horovod was compiled for the installed frameworks, with the chosen controller, and with NCCL for GPUs."""
    needed = [wanted.controller, *(["nccl"] if _uses_gpus(wanted) else [])]
    for framework in wanted.frameworks:
        title, build = TITLES[framework], horovod_build(framework)
        if build is None:
            raise UserError(f"Horovod is not compiled for {title}. {SET_UP}")
        features, compiled_for = build
        missing = [FEATURES[name] for name in needed if name not in features]
        if missing:
            feature, remedy = missing[0]
            raise UserError(f"Horovod for {title} is compiled without {feature}. {remedy}")
        installed = versions(framework)
        now = next((installed[name] for name in INSTALLED_AS[framework] if name in installed), None)
        if now and compiled_for and now.split("+")[0] != compiled_for.split("+")[0]:
            problem = f"Horovod was compiled for {title} {compiled_for}, but {now} is installed"
            raise UserError(f"{problem}. {SET_UP}: it recompiles")
    titles = " and ".join(TITLES[framework] for framework in wanted.frameworks)
    return f"compiled for {titles}, with {' and '.join(FEATURES[name][0] for name in needed)}"


def horovod_build(framework: str) -> tuple[list[str], str | None] | None:
    """Return Horovod's features and the version that it was compiled for, from its files; None: not compiled for it."""
    package = PathFinder.find_spec("horovod", package_folders(framework))
    if package is None or not package.submodule_search_locations:
        return None
    folder = Path(package.submodule_search_locations[0])
    name, name_in_metadata = HOROVODS_NAMES[framework]
    library, metadata = next(folder.glob(f"{name}/mpi_lib*.so"), None), folder / "metadata.json"
    if library is None:
        return None
    content = library.read_bytes()  # to ask Horovod itself would mean to import a framework
    compiled_for = json.loads(metadata.read_text()).get(name_in_metadata) if metadata.exists() else None
    return [feature for feature, mark in MARKS.items() if mark in content], compiled_for


def _uses_gpus(wanted: Wanted) -> bool:
    """Return whether ranks will train on GPUs: as the device says, or because the host has some."""
    return wanted.device == "gpu" or (wanted.device == "auto" and bool(gpus()))


def check_network(wanted: Wanted) -> str:
    """The site's network interface is up and has an address; so has the name of the host, which Gloo looks up."""
    name = ""
    try:
        check_host_name()
    except UserError:
        if wanted.controller == "gloo":
            raise
        name = f"; {socket.gethostname()} has no address, so --elastic, --controller gloo and one process alone fail"
    if wanted.interface is None:
        return f"Horovod and MPI choose the interface{name}"
    up, families = psutil.net_if_stats(), (socket.AF_INET, socket.AF_INET6)
    addresses = {name: [each for each in of if each.family in families] for name, of in psutil.net_if_addrs().items()}
    ready = [name for name, found in addresses.items() if found and name in up and up[name].isup]
    if wanted.interface not in ready:
        problem = f"network interface {wanted.interface} is not up with an address; ready: {', '.join(ready)}"
        raise UserError(f"{problem}. Name one that every host has (`network_interface` in the site file)")
    return f"{wanted.interface} is up and has an address{name}"


def check_gpus(wanted: Wanted) -> str:
    """There is a GPU for each rank."""
    if not _uses_gpus(wanted):
        return "not needed: ranks train on the CPU"
    found = gpus()
    if len(found) < wanted.ranks:
        problem = f"{counted(len(found), 'GPU')} visible for {counted(wanted.ranks, 'rank')}"
        remedy = "Ask for one GPU per rank (--gres, CUDA_VISIBLE_DEVICES), start fewer ranks, or use --device cpu"
        raise UserError(f"{problem}. {remedy}")
    return f"{' and '.join(sorted({gpu.name for gpu in found}))}, at least one per rank"


@cache  # nvidia-smi takes seconds on some nodes
def gpus() -> list[Gpu]:
    """Return the GPUs that a process sees; no nvidia-smi means no driver, so none."""
    if shutil.which("nvidia-smi") is None:
        return []
    return visible_gpus(_ask_nvidia("--list-gpus"))


def gpu_bytes() -> list[int]:
    """Return the free memory of each GPU that a process sees, of those that tell; a part of a GPU does not."""
    rows = _ask_nvidia("--query-gpu=uuid,memory.free", "--format=csv,noheader,nounits").splitlines()
    mib_of = dict(row.split(", ") for row in rows if row.count(", ") == 1)
    free = [mib_of.get(gpu.uuid, "") for gpu in gpus()]
    return [int(mib) * 2**20 for mib in free if mib.isdigit()]


def _ask_nvidia(*words: str) -> str:
    try:
        return output_of("nvidia-smi", *words)
    except UserError as error:
        raise UserError(f"{error}. Fix the driver there: `nvidia-smi` has to list the GPUs") from None


def check_threads(wanted: Wanted) -> str:
    """Ranks x threads fit the cores."""
    cores = usable_cores()
    threads = wanted.threads or max(1, cores // wanted.ranks)
    load = f"{counted(wanted.ranks, 'rank')} x {counted(threads, 'thread')} on {counted(cores, 'core')}"
    if wanted.ranks * threads > cores:
        remedy = "Times would not be meaningful: start fewer ranks there, give fewer --threads, or ask for more cores"
        raise UserError(f"{load}. {remedy}")
    return load


def check_memory(wanted: Wanted) -> str:
    """What training takes, by the numbers of the model, fits into the free memory of the host or of each GPU."""
    if wanted.memory_mb is None:
        return "not known what training takes"
    own = wanted.memory_mb * 10**6
    if _uses_gpus(wanted):
        each, where, free = own, "of a GPU", min(gpu_bytes(), default=own)
    else:
        each, where = own + FRAMEWORK_BYTES, "of the host"
        free = psutil.virtual_memory().available // max(1, wanted.ranks)
    needed = f"each rank takes {each / 1e9:.1f} GB {where} by the numbers of the model"
    load = f"{needed}, {free / 1e9:.1f} GB are free for it"
    if each > free:
        remedy = "Give a smaller --batch-size, start fewer ranks, or divide the model by --strategy layers or split"
        raise UserError(f"{load}. {remedy}")
    return load


def check_disk(wanted: Wanted) -> str:
    """Folders can be written and have space; the cache of data sets only if the data set is still to be fetched."""
    path = path_of_data(wanted.dataset)
    folders = wanted.folders | ({"cache": str(cache_folder())} if path and not path.exists() else {})
    failures, free = [], []
    for name, folder in folders.items():
        existing = first_existing(folder)
        free.append(shutil.disk_usage(existing).free)
        try:
            tempfile.TemporaryFile(dir=existing).close()
        except OSError as error:
            failures.append(f"the {name} folder {folder} cannot be written: {error.strerror} ({existing})")
        if free[-1] < FREE_BYTES:
            failures.append(f"{free[-1] / 1e9:.2f} GB free for the {name} folder {folder}: less than 1 GB")
    if failures:
        raise UserError("\n".join(f"{line}. Fix it, or name another folder" for line in failures))
    return f"{min(free) / 1e9:,.1f} GB free"


def first_existing(folder: str) -> Path:
    """Return the folder, or the first of its parents that exists."""
    return next(path for path in (Path(folder), *Path(folder).parents) if path.exists())


def check_shared_runs(wanted: Wanted) -> str:
    """The host sees the folder of runs of the host that started the preflight."""
    folder = wanted.folders["runs"]
    if not Path(wanted.mark).is_file():
        problem = f"what this machine writes into {folder} is not visible there"
        raise UserError(f"{problem}. Use a folder on a shared file system (--runs-folder), or check that file system")
    return f"every host sees {folder}"


def check_data(wanted: Wanted) -> str:
    """The data set is in the cache and undamaged, or can be fetched; fetches nothing."""
    dataset, path = wanted.dataset, path_of_data(wanted.dataset)
    if dataset is None or path is None:
        return f"{dataset} is made from a seed" if dataset else "no data set was named"
    fetch = f"`python -m common datasets fetch {dataset}`"
    if not path.exists():
        if wanted.can_fetch:
            return f"{dataset} is not at {path}, training fetches it"
        if ":" in dataset:
            raise UserError(f"{dataset} is not at {path}. Correct the path, or copy it there")
        raise UserError(f"{dataset} is not at {path}. Bring it: {fetch} where there is a network")
    if dataset.startswith("images:"):
        return f"{path} exists, its images are checked when they are read"
    try:
        if dataset.startswith("prepared:"):
            load_prepared(path, name=dataset)
        else:
            dataset_cache.load_entry(dataset, name=dataset)
    except (dataset_cache.DamagedEntryError, UserError) as error:
        raise UserError(f"{dataset} is damaged: {error}. Remove it there, then {fetch}") from None
    return f"{dataset}: checksums match: {path}"


def path_of_data(dataset: str | None) -> Path | None:
    """Return where a data set is looked for; None: it needs no files."""
    kind, _, path = (dataset or "synthetic").partition(":")
    if kind == "synthetic":
        return None
    return expanded(path) if path else dataset_cache.datasets_folder() / kind


HOST_CHECKS = {
    "software": check_software,
    "horovod": check_horovod,
    "network": check_network,
    "gpus": check_gpus,
    "threads": check_threads,
    "memory": check_memory,
    "disk": check_disk,
    "shared runs": check_shared_runs,
    "data": check_data,
}

if __name__ == "__main__":
    sys.exit(main())
