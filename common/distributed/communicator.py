"""The ranks of a run and what they must agree on, built on one collective that each framework provides."""

import os
import pickle
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from common.distributed.core_sharing import CoreShare, core_share, launcher_local_rank
from common.distributed.host_name import check_host_name
from common.errors import EXIT_CODE_USER_ERROR, UserError, from_os_error, out_of_memory
from common.model.weights import Weights, tensor_hashes

PIECE_BYTES = 2**26  # of a broadcast


@dataclass(frozen=True, kw_only=True)
class Communicator:
    """This rank among all ranks of the run.

    `allgather` returns the objects of all ranks in the order of ranks; every rank must call it.

    Ranks are those that hold data, the workers; a server (`--strategy server`) is none of them. Where a model is in
    parts, `parts` neighbors hold a copy of it together and compute the same batches.

    Attributes:
        replicas: devices of this rank, each of which takes the place of a rank (`--native mirrored`).
        parts: ranks that hold one copy of the model.
        copy_group: Horovod's process set of the ranks of this rank's copy; None: it is alone.
        part_group: Horovod's process set of the ranks that hold the same part; None: it is alone.
        links: mpi4py's communicator of all ranks, for messages beside Horovod; None: they send none.
        world: mpi4py's communicator of all processes, workers first, then servers; None: Horovod, or one process.
        server_hosts: the host of each server.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    controller: str  # mpi, gloo or none
    allgather: Callable[[Any], list[Any]]
    replicas: int = 1
    parts: int = 1
    copy_group: Any = None
    part_group: Any = None
    links: Any = None
    world: Any = None
    server_hosts: tuple[str, ...] = ()

    @property
    def servers(self) -> int:
        """Number of servers."""
        return len(self.server_hosts)

    @property
    def is_server(self) -> bool:
        """Whether this process holds parameters instead of data; its `rank` is that among all processes."""
        return self.rank >= self.size

    @property
    def part(self) -> int:
        """Number of the part of the model that this rank holds, from 0."""
        return self.rank % self.parts

    @property
    def data_rank(self) -> int:
        """Number of the copy of the model that this rank belongs to, from 0: of the batches that it takes."""
        return self.rank // self.parts

    @property
    def copies(self) -> int:
        """Number of copies of the model."""
        return self.size // self.parts

    @property
    def own_part(self) -> tuple[int, ...]:
        """The number of the part, where a model is in parts: what seeds of ranks with other layers differ in."""
        return (self.part,) if self.parts > 1 else ()

    @property
    def has_outputs(self) -> bool:
        """Whether the losses of this rank count: of the ranks of a copy the last one's do."""
        return self.part == self.parts - 1

    @cached_property
    def cores(self) -> CoreShare:
        """This rank's share of the cores of its host."""
        return core_share(local_size=self.local_size)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over ranks, added in the order of ranks so that it is reproducible."""
        return np.sum(self.allgather(values), axis=0)

    def maximum(self, values: np.ndarray) -> np.ndarray:
        """Return the maximum over ranks; of times, the slowest rank's."""
        return np.max(self.allgather(values), axis=0)

    def broadcast(self, value: Any, *, root: int = 0) -> Any:
        """Return the value of a rank, by default of the first, on every rank.

        In pieces: Horovod counts the bytes of a collective in 32 bits.
        """
        if self.size == 1:
            return value
        message = memoryview(pickle.dumps(value) if self.rank == root else b"")
        length, *pieces = self.allgather((len(message), bytes(message[:PIECE_BYTES])))[root]
        for start in range(PIECE_BYTES, length, PIECE_BYTES):
            pieces.append(self.allgather(bytes(message[start : start + PIECE_BYTES]))[root])
        return value if self.rank == root else pickle.loads(b"".join(pieces))

    @contextmanager
    def propagate_errors(self, doing: str) -> Iterator[None]:
        """Raise the error of one rank as the same UserError on all ranks, so that none hangs.

        Args:
            doing: the operation, for the message of an OSError such as a full disk.
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

    def check_same_weights(self, weights: Weights, *, when: str, cut: Collection[str] = ()) -> None:
        """Raise UserError on all ranks unless their weights are equal bit for bit; it names the first that differs.

        Args:
            weights: of this rank's part of the model.
            cut: names of those of which each part holds a piece, which are compared between ranks of one part only.
        """
        of_ranks = self.allgather((sorted(weights), tensor_hashes(weights)))
        firsts: dict[tuple[str, int | None], tuple[int, Any]] = {}  # -> the first rank that holds it, and its hash
        differing: dict[str, tuple[int, int]] = {}  # name -> a rank that differs, and from which
        for rank, (names, hashes) in enumerate(of_ranks):
            for name, own in zip(names, hashes, strict=True):
                first, expected = firsts.setdefault((name, rank % self.parts if name in cut else None), (rank, own))
                if own != expected:
                    differing.setdefault(name, (rank, first))
        if differing:
            rank, first = min(differing.values())
            raise UserError(
                f"the ranks do not have the same weights {when}: {len(differing)} of "
                f"{len({name for name, _ in firsts})} tensors differ, the first is {min(differing)}. Received: rank "
                f"{rank} differs from rank {first}. Gradients or weights were not averaged: do not use this run, and "
                "report it"
            )


LAUNCHER_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "HOROVOD_RANK")
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "HOROVOD_RANK")


def under_launcher(variables: Mapping[str, str]) -> bool:
    """Return whether a process with these environment variables was started by horovodrun, mpirun or srun."""
    return any(name in variables for name in LAUNCHER_VARIABLES)


def launcher_rank(variables: Mapping[str, str]) -> int:
    """Return the rank of a process with these environment variables, before it has joined the others."""
    return next((int(variables[name]) for name in _RANK_VARIABLES if name in variables), 0)


def launcher_of(variables: Mapping[str, str]) -> str:
    """Return what started a process with these environment variables: horovodrun, mpirun, srun or none.

    srun is recognized by `--mpi=pmix` or `pmi2`: without them each of its ranks runs alone.
    """
    # The second is a patch of ours, see launch/horovod/.
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in variables or variables.get("HOROVOD_STARTED_BY") == "horovodrun":
        return "horovodrun"
    if "OMPI_COMM_WORLD_SIZE" in variables:  # also if Slurm's steps start Open MPI's daemons
        return "mpirun"
    if "SLURM_STEP_ID" in variables and ("PMIX_RANK" in variables or "PMI_RANK" in variables):
        return "srun"
    return "mpirun" if under_launcher(variables) else "none"


# MPI spins while it waits, which on a CPU takes cores from ranks that still compute.
YIELDING = {"OMPI_MCA_mpi_yield_when_idle": "1"}
# For gradients in host memory. Horovod's defaults, 1 ms and 128 MB, suit GPUs: with 2 ranks on one host these values
# reduced the all-reduce of 87 kB from 1.1 to 0.4 ms, and of 85 MB (20 tensors) from 60 to 15 ms. Buffers of a few MB
# stay in the processor's cache, and larger tensors are not copied into a fusion buffer.
CPU_EXCHANGE = {
    "HOROVOD_CYCLE_TIME": "0.2",  # milliseconds
    "HOROVOD_FUSION_THRESHOLD": str(4 * 2**20),  # bytes
}
# Horovod's thread sleeps as long as it holds no tensor, at most so many milliseconds (a patch, see
# launch/horovod/). Looking every 0.2 ms it took time from the training beside it, and a tensor
# waited for its next look.
WAKING = {"HOROVOD_TWINS_IDLE_MS": "20"}
# Where several ranks hold one copy of the model, a process set waits in each of its exchanges for all other ranks.
LOOKING = {"HOROVOD_TWINS_IDLE_MS": "0"}
# Gloo gives up an exchange after 30 s: before a watcher can say which rank is stopped, and each says that another has
# ended. A rank that ends is noticed at once, whatever the limit is. Elastic ranks have a limit of their own.
PATIENT = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "3600"}
# Started by srun on several nodes, Open MPI 4.1 now and then died in MPI_Init: a rank that was ready sent its first
# message to one that still waited for the addresses of all and could not receive yet. With these it does not wait there
# but asks for each address when it is needed.
SRUN = {"OMPI_MCA_pmix_base_async_modex": "1", "OMPI_MCA_pmix_base_collect_data": "0"}


# With this variable, set before CUDA starts, CUDA numbers GPUs like nvidia-smi and NVML.
GPU_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def controller_variables(variables: Mapping[str, str], *, nccl: bool) -> dict[str, str]:
    """Return the variables to add before Horovod starts, which is when MPI and Horovod read them.

    Args:
        variables: the environment, whose values are kept.
        nccl: whether gradients go from GPU to GPU, by NCCL.
    """
    chosen = YIELDING
    if not nccl:
        chosen = chosen | WAKING
        # Gloo sleeps while it waits: short cycles slow it down, and the size of buffers does not matter.
        if variables.get("HOROVOD_CONTROLLER") != "gloo":
            chosen = chosen | CPU_EXCHANGE
    if variables.get("HOROVOD_CONTROLLER") == "gloo" and "HOROVOD_ELASTIC" not in variables:
        chosen = chosen | PATIENT
    if launcher_of(variables) == "srun":
        chosen = chosen | SRUN
    return {name: value for name, value in chosen.items() if name not in variables}


# The names that this host has for Horovod in an elastic run, one for each rank that it can take: Horovod gives up a
# host as a whole when one of its ranks ends.
HOST_ALIASES = "HOROVOD_TWINS_HOST_ALIASES"


def place_on_host(variables: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the place of this rank among those of its host and their number; None: Horovod knows them.

    Args:
        variables: the environment.
    """
    aliases, own = variables.get(HOST_ALIASES, "").split(","), variables.get("HOROVOD_HOSTNAME")
    return (aliases.index(own), len(aliases)) if own and own in aliases else None


MOST_TRIES = 5  # of ranks that come and go to meet
PATIENCE_SECONDS = 10.0  # between the first rank and the last of a host, until they have imported a framework


def _init(hvd: Any, *, process_sets: Callable[[], list[Any]]) -> None:
    """Start Horovod; where ranks come and go, again with those that are left when one has ended before all had met."""
    if uses_gloo(os.environ):
        try:
            check_controller(os.environ)
            check_host_name()
        except UserError as error:
            end_before_joining(error)
    for _ in range(MOST_TRIES):
        try:
            hvd.init(process_sets=process_sets())
            return
        except ValueError:  # Horovod does not say what failed
            if "HOROVOD_ELASTIC" not in os.environ:
                raise
            hvd.shutdown()
    _end(
        f"this rank could not join the others. Received: {MOST_TRIES} tries that failed. Remove its host from the list "
        "of hosts, or start the run again"
    )


def end_before_joining(error: UserError) -> NoReturn:
    """End all ranks, none of which can join the others, with one line for each host."""
    place, _ = place_on_host(os.environ) or (launcher_local_rank(os.environ), 0)
    if place > 0:  # the launcher would end the rank that prints the line after this one
        time.sleep(PATIENCE_SECONDS)
    _end("" if place > 0 else str(error))


def _end(message: str) -> NoReturn:
    """End this rank before it has joined the others; not by an exception: the record is that of the others."""
    if message:
        print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(EXIT_CODE_USER_ERROR)


def check_controller(variables: Mapping[str, str]) -> None:
    """Raise UserError unless tensors go the way of the ranks' messages: Horovod 0.28.1 has no other."""
    ways = [variables.get(name, "mpi").lower() for name in ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS")]
    if ways[0] != ways[1]:
        raise UserError(
            f"HOROVOD_CONTROLLER and HOROVOD_CPU_OPERATIONS differ. Received: {ways[0]} and {ways[1]}. Start the ranks "
            "with `horovodrun --gloo`, which sets both, or set neither"
        )


def uses_gloo(variables: Mapping[str, str]) -> bool:
    """Return whether Horovod will start Gloo in a process with these environment variables."""
    return any(variables.get(name, "").lower() == "gloo" for name in ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"))


def alone(*, replicas: int = 1) -> Communicator:
    """Return the only process of a run, which needs neither Horovod nor MPI."""
    os.environ.update({name: value for name, value in GPU_ORDER.items() if name not in os.environ})
    return Communicator(
        rank=0,
        size=1,
        local_rank=0,
        local_size=1,
        controller="none",
        allgather=lambda value: [value],
        replicas=replicas,
    )


def join(
    hvd: Any,
    *,
    timeline: bool,
    in_host_memory: bool = False,
    process_sets: Callable[[], list[Any]] = list,
) -> Communicator:
    """Start Horovod and return the communicator.

    Args:
        timeline: whether a timeline may be started later; Horovod has to know before it starts.
        in_host_memory: whether gradients are there when they are exchanged, also where Horovod was built with NCCL.
        process_sets: returns those that Horovod shall know; called when the environment of MPI is set.
    """
    if timeline:
        os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
    os.environ.update(controller_variables(os.environ, nccl=bool(hvd.nccl_built()) and not in_host_memory))
    for name, value in GPU_ORDER.items():
        os.environ.setdefault(name, value)
    _init(hvd, process_sets=process_sets)

    def allgather(value: Any) -> list[Any]:
        # Named, because Horovod's default name contains the type of the value, which may differ between ranks.
        return hvd.allgather_object(value, name="objects") if hvd.size() > 1 else [value]

    local_rank, local_size = place_on_host(os.environ) or (hvd.local_rank(), hvd.local_size())
    return Communicator(
        rank=hvd.rank(),
        size=hvd.size(),
        local_rank=local_rank,
        local_size=local_size,
        controller="none" if hvd.size() == 1 else "mpi" if hvd.mpi_enabled() else "gloo",
        allgather=allgather,
    )
