"""The processes of a run and what they must agree on. Built on one collective, which each framework hands in."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.errors import UserError, from_os_error, out_of_memory
from common.model.weights import Weights, tensor_hashes


@dataclass(frozen=True, kw_only=True)
class Communicator:
    """This process among all processes of the run.

    `allgather` returns the objects of all ranks in the order of ranks; every rank must call it.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    controller: str  # mpi, gloo or none
    allgather: Callable[[Any], list[Any]]

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over ranks, added in the order of ranks so that it is always the same."""
        return np.sum(self.allgather(values), axis=0)

    def maximum(self, values: np.ndarray) -> np.ndarray:
        """Return the maximum over ranks (of times: the slowest rank's)."""
        return np.max(self.allgather(values), axis=0)

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        return self.allgather(value if self.rank == 0 else None)[0]

    @contextmanager
    def propagate_errors(self, doing: str) -> Iterator[None]:
        """What one rank cannot do, none does: an error of one becomes the same UserError on all, and none hangs.

        Args:
            doing: what is tried, for the message of a full disk, a missing permission and the like.
        """
        error: UserError | None = None
        try:
            yield
        except UserError as caught:
            error = caught
        except OSError as caught:
            error = from_os_error(caught, doing=doing)
        except MemoryError:
            error = out_of_memory()
        messages = self.allgather(str(error) if error else None)
        for rank, message in enumerate(messages):
            if message is not None:
                alone = sum(other is not None for other in messages) < self.size
                raise UserError(f"{message} (rank {rank})" if alone and rank else message) from error

    def check_same_weights(self, weights: Weights, *, when: str) -> None:
        """Raise UserError on all ranks if their weights are not the same, bit for bit; names the first that differs."""
        hashes = np.stack(self.allgather(tensor_hashes(weights)))
        differs = (hashes != hashes[0]).any(axis=0)
        if differs.any():
            name = sorted(weights)[int(differs.argmax())]
            others = [rank for rank in range(self.size) if (hashes[rank] != hashes[0]).any()]
            raise UserError(
                f"the ranks do not hold the same weights {when}: {int(differs.sum())} of {len(weights)} tensors "
                f"differ, the first is {name}. Received: rank {others[0]} differs from rank 0. "
                "Gradients or weights were not averaged: do not use this run, and report it"
            )


LAUNCHER_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "HOROVOD_RANK")


def under_launcher(variables: Mapping[str, str]) -> bool:
    """Return whether a process with these environment variables was started by horovodrun, mpirun or srun."""
    return any(name in variables for name in LAUNCHER_VARIABLES)


# Among the flags of `mpirun` that horovodrun gives it, and nobody else gives together: --tag-output, -bind-to none,
# -mca btl ^openib (horovod/runner/mpi_run.py).
_HOROVODRUN_OVER_MPI = {
    "OMPI_MCA_orte_tag_output": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_btl": "^openib",
}


def launcher_of(variables: Mapping[str, str]) -> str:
    """Return what started a process with these environment variables: horovodrun, mpirun, srun or none.

    srun is told by its way of joining MPI's processes (`--mpi=pmix`, `pmi2`): without, every one of its ranks is alone.
    """
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in variables or _HOROVODRUN_OVER_MPI.items() <= dict(variables).items():
        return "horovodrun"
    if "OMPI_COMM_WORLD_SIZE" in variables:  # also where Slurm's steps start Open MPI's daemons
        return "mpirun"
    if "SLURM_STEP_ID" in variables and ("PMIX_RANK" in variables or "PMI_RANK" in variables):
        return "srun"
    return "mpirun" if under_launcher(variables) else "none"


# MPI spins while it waits; on a CPU it would take the cores from the ranks that still compute.
YIELDING = {"OMPI_MCA_mpi_yield_when_idle": "1"}
# Where gradients travel through the memory of the host. Horovod's own values, 1 ms and 128 MB, suit GPUs: on 2 ranks of
# one host these took the exchange of 87 kB from 1.1 to 0.4 ms, and of 85 MB (20 tensors) from 60 to 15 ms. Parts of a
# few MB stay in the processor's cache, and tensors larger than that need not be copied together.
CPU_EXCHANGE = {
    "HOROVOD_CYCLE_TIME": "0.2",  # milliseconds
    "HOROVOD_FUSION_THRESHOLD": str(4 * 2**20),  # bytes
}


# CUDA numbers GPUs as nvidia-smi and NVML do only if it is told, before it is started.
GPU_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def controller_variables(variables: Mapping[str, str], *, nccl: bool) -> dict[str, str]:
    """Return what to add to the environment before Horovod is started; both MPI and Horovod read it only then.

    Args:
        variables: the environment; what it sets already stays, but for the controller of a process without launcher.
        nccl: whether Horovod was built with NCCL, which moves gradients from GPU to GPU.
    """
    if not under_launcher(variables):
        # One process needs no MPI, which would ask for its daemon.
        return {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    # Gloo, which sleeps while it waits, is slower with short cycles and does not mind the size of parts.
    chosen = YIELDING if nccl or variables.get("HOROVOD_CONTROLLER") == "gloo" else YIELDING | CPU_EXCHANGE
    return {name: value for name, value in chosen.items() if name not in variables}


def join(hvd: Any, *, timeline: bool) -> Communicator:
    """Start Horovod and return this process among all of the run.

    Args:
        hvd: the framework's Horovod module, such as `horovod.torch`.
        timeline: whether a timeline may be started later, which Horovod allows only if it is told before.
    """
    if timeline:
        os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
    os.environ.update(controller_variables(os.environ, nccl=bool(hvd.nccl_built())))
    for name, value in GPU_ORDER.items():
        os.environ.setdefault(name, value)
    hvd.init()

    def allgather(value: Any) -> list[Any]:
        # Named, for Horovod's own name holds the type of the value, which may differ between ranks.
        return hvd.allgather_object(value, name="objects") if hvd.size() > 1 else [value]

    return Communicator(
        rank=hvd.rank(),
        size=hvd.size(),
        local_rank=hvd.local_rank(),
        local_size=hvd.local_size(),
        controller="none" if hvd.size() == 1 else "mpi" if hvd.mpi_enabled() else "gloo",
        allgather=allgather,
    )


def threads_per_rank(wanted: int | None, *, cores: int, local_size: int) -> int:
    """Return the compute threads of a rank: as asked, else cores of the host / ranks on the host, at least 1."""
    return wanted or max(1, math.floor(cores / local_size))
