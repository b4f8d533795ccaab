"""What a host reports to `python -m launch preflight`: one process per host prints one line of JSON.

    python -m launch.preflight.host_probe '{"limit_seconds": 15, "dataset": "mnist", "folders": {"runs": "runs"}}'

Imports no framework, which would take seconds: what Horovod was built with is read from its compiled files. Each part
is independent: where one fails, its reason is in `errors`, and the other parts are reported. Only the standard library
is imported at the top, so that a host also answers where packages are missing.
"""

import hashlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common.distributed.pinning import visible_gpus
from common.utils.cache_folder import cache_folder
from common.utils.cores import usable_cores
from common.utils.paths import ROOT
from launch.installation.build_features import build_features

SOURCE_FOLDERS = ("common", "torch_impl", "keras_impl", "launch")
SOURCE_KINDS = (".py", ".toml")
PROGRAM_SECONDS = 10
HOROVODS_NAMES = {"torch": ("torch", "pytorch"), "keras": ("tensorflow", "tensorflow")}  # folder, in metadata.json


def main() -> int:
    """Print the report."""
    request = json.loads(sys.argv[1])
    signal.alarm(request["limit_seconds"])  # ends this process even if the preflight is gone
    # As for launchers, the programs beside the interpreter come first.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    print(json.dumps(probe(request)), flush=True)
    return 0


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """Return this host's report.

    Args:
        request: dataset: as for trainers, or None; folders: name -> path; mark: a file in the runs folder.

    Returns:
        The parts below; of one that fails, the reason is in `errors`.
    """
    parts = {
        "versions": versions,
        "horovod": horovod_builds,
        "interfaces": interfaces,
        "gpus": gpus,
        "cores": usable_cores,
        "folders": lambda: check_folders({**request["folders"], "cache": cache_folder()}),
        "sees_mark": lambda: Path(request["mark"]).exists(),
        "data": lambda: data_state(request["dataset"]),
    }
    report: dict[str, Any] = {"project": source_hash(), "errors": {}}
    for name, read in parts.items():
        try:
            report[name] = read()
        except Exception as error:  # the preflight shows it, whatever it is
            report["errors"][name] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return report


def source_hash() -> str:
    """Return a hash of the project's programs and tables."""
    total = hashlib.sha256()
    for file in sorted(file for folder in SOURCE_FOLDERS for file in (ROOT / folder).rglob("*")):
        if file.suffix in SOURCE_KINDS and file.is_file():
            total.update(f"{file.relative_to(ROOT)}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return total.hexdigest()[:12]


def versions() -> dict[str, str]:
    """Return the versions of Python, of the packages, and of mpirun where it is on PATH."""
    from common.run_folder.environment import describe_environment

    found = {"Python": platform.python_version(), **describe_environment().packages}
    if shutil.which("mpirun"):
        found["mpirun"] = output_of("mpirun", "--version").splitlines()[0].removeprefix("mpirun ")
    return found


def horovod_builds() -> dict[str, dict[str, Any]]:
    """Return framework -> {features, compiled_for}, of those that Horovod was built for; imports nothing."""
    found = importlib.util.find_spec("horovod")
    if found is None or not found.submodule_search_locations:
        return {}
    folder = Path(next(iter(found.submodule_search_locations)))
    metadata = folder / "metadata.json"
    compiled_for = json.loads(metadata.read_text()) if metadata.exists() else {}
    builds = {framework: build_features(folder, name) for framework, (name, _) in HOROVODS_NAMES.items()}
    return {
        framework: {"features": features, "compiled_for": compiled_for.get(HOROVODS_NAMES[framework][1])}
        for framework, features in builds.items()
        if features is not None
    }


def interfaces() -> list[str]:
    """Return the network interfaces that are up and have an address."""
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    return [
        name
        for name, addresses in psutil.net_if_addrs().items()
        if name in up and any(each.family.name in ("AF_INET", "AF_INET6") for each in addresses)
    ]


def gpus() -> list[str]:
    """Return the names of the GPUs that a process sees; no nvidia-smi means no driver, so none."""
    if shutil.which("nvidia-smi") is None:
        return []
    lines = output_of("nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader").splitlines()
    rows = [[word.strip() for word in line.split(",", 2)] for line in lines if line.count(",") >= 2]
    return visible_gpus([(index, uuid, name) for index, uuid, name in rows], os.environ.get("CUDA_VISIBLE_DEVICES"))


def check_folders(paths: dict[str, str | Path]) -> dict[str, dict[str, Any]]:
    """Return name -> {path, free_bytes, problem: why it cannot be written}, of the first parent that exists."""
    found = {}
    for name, path in paths.items():
        path = Path(path).absolute()
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
        problem = None
        try:
            with tempfile.TemporaryFile(dir=existing) as file:
                file.write(b"preflight")
        except OSError as error:
            problem = f"{error.strerror} ({existing})"
        found[name] = {"path": str(path), "free_bytes": shutil.disk_usage(existing).free, "problem": problem}
    return found


def data_state(dataset: str | None) -> dict[str, str]:
    """Return the state of the data set (verified, absent or damaged) and its description; fetches nothing."""
    if dataset is None:
        return {"state": "verified", "text": "no data set was named"}
    from common.data import cache as dataset_cache
    from common.data.images.prepared_file import load_prepared
    from common.errors import UserError

    kind, _, rest = dataset.partition(":")
    path = Path(rest) if rest else dataset_cache.datasets_folder() / dataset
    if kind == "synthetic":
        return {"state": "verified", "text": f"{dataset} is made from a seed"}
    if not path.exists():
        return {"state": "absent", "text": f"{dataset} is not at {path}"}
    if kind == "images":
        return {"state": "verified", "text": f"{path} exists, its images are checked when they are read"}
    try:
        if kind == "prepared":
            load_prepared(path, name=dataset)
        else:
            dataset_cache.load_entry(dataset, name=dataset)
    except (dataset_cache.DamagedEntryError, UserError) as error:
        return {"state": "damaged", "text": f"{dataset} is damaged: {error}"}
    return {"state": "verified", "text": f"{dataset}: checksums match: {path}"}


def output_of(*command: str) -> str:
    """Return what a program prints.

    Raises:
        RuntimeError: it failed.
        subprocess.TimeoutExpired: it did not end.
    """
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PROGRAM_SECONDS)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {lines[-1]}")
    return done.stdout or done.stderr  # srun writes its lists there


if __name__ == "__main__":
    sys.exit(main())
