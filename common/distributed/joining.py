"""How a process joins the other ranks of its run: by Horovod, or by MPI alone where a strategy does not use Horovod.

mpi4py is imported when it is needed, which must be after TensorFlow: initialized first, Open MPI brings its own hwloc,
and a process that then imports TensorFlow dies in `MPI_Finalize`.
"""

import os
import platform
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, NoReturn

from common.config import Config
from common.distributed.addresses import check_host_name
from common.distributed.communicator import Communicator
from common.distributed.horovod_module import NoHorovod
from common.distributed.launchers import (
    GPU_ORDER,
    check_operations,
    controller_variables,
    launcher_local_rank,
    place_on_host,
    under_launcher,
    uses_gloo,
)
from common.errors import EXIT_CODE_USER_ERROR, UserError

MOST_TRIES = 5  # of ranks that come and go to meet
PATIENCE_SECONDS = 10.0  # between the first rank and the last of a host, until they have imported a framework


def join_ranks(hvd: Any, settings: Config | UserError | None) -> Communicator:
    """Join the other processes of a run in the way of its strategy, which alone decides; return the communicator.

    Args:
        hvd: the framework's Horovod, which is not started where the strategy does not use it.
        settings: an error waits until all ranks can receive it; None: no run, Horovod.
    """
    config = settings if isinstance(settings, Config) else Config()
    strategy = config.strategy
    if not under_launcher(os.environ):
        return alone(replicas=strategy.replicas or 1)
    if not strategy.traits.uses_horovod:
        return replace(join_mpi(servers=strategy.servers or 0), replicas=strategy.replicas or 1)
    if isinstance(hvd, NoHorovod):
        _end_before_joining(hvd.error)
    with no_other_way(settings):
        return join(hvd, config)


def alone(*, replicas: int = 1) -> Communicator:
    """Return the only process of a run, which needs neither Horovod nor MPI."""
    for name, value in GPU_ORDER.items():
        os.environ.setdefault(name, value)
    return Communicator(
        rank=0,
        size=1,
        local_rank=0,
        local_size=1,
        controller="none",
        allgather=lambda value: [value],
        replicas=replicas,
    )


def join(hvd: Any, config: Config) -> Communicator:
    """Start Horovod and return the communicator.

    Where several ranks hold one copy of the model, Horovod has to know the process sets before it starts. If the copies
    would not be whole, there are none, and whoever knows the settings has to complain.
    """
    if config.record.horovod_timeline:  # which may be started later
        os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
    parts = config.parts.count
    nccl = bool(hvd.nccl_built()) and not config.device.exchanges_in_host_memory
    os.environ.update(controller_variables(os.environ, nccl=nccl, parts=parts))
    if uses_gloo(os.environ):
        try:
            check_operations(os.environ)
            check_host_name()
        except UserError as error:
            _end_before_joining(error)
    sets = _process_sets(hvd, parts) if parts > 1 else {}
    _start(hvd, [*sets.values()])

    def allgather(value: Any) -> list[Any]:
        # Named, because Horovod's default name contains the type of the value, which may differ between ranks.
        return hvd.allgather_object(value, name="objects") if hvd.size() > 1 else [value]

    local_rank, local_size = place_on_host(os.environ) or (hvd.local_rank(), hvd.local_size())
    comm = Communicator(
        rank=hvd.rank(),
        size=hvd.size(),
        local_rank=local_rank,
        local_size=local_size,
        controller="none" if hvd.size() == 1 else "mpi" if hvd.mpi_enabled() else "gloo",
        allgather=allgather,
    )
    if parts == 1 or comm.size % parts:
        return comm
    sys.excepthook = _end_all_ranks  # neighbors wait in MPI, which a rank that ends by itself does, too
    sets[tuple(range(comm.size))] = hvd.global_process_set
    first = comm.rank - comm.rank % parts
    return replace(
        comm,
        parts=parts,
        copy_group=sets.get(tuple(range(first, first + parts))),
        part_group=sets.get(tuple(range(comm.rank % parts, comm.size, parts))),
        links=_mpi().COMM_WORLD,
    )


def _process_sets(hvd: Any, parts: int) -> dict[tuple[int, ...], Any]:
    """Return the process sets of copies of the model and of ranks with the same part, by their ranks, from MPI."""
    size = _mpi().COMM_WORLD.size
    if size % parts:
        return {}
    copies = [range(first, first + parts) for first in range(0, size, parts)]
    of_parts = [range(part, size, parts) for part in range(parts)]
    return {tuple(ranks): hvd.ProcessSet([*ranks]) for ranks in copies + of_parts if 1 < len(ranks) < size}


def _start(hvd: Any, process_sets: list[Any]) -> None:
    """Start Horovod; where ranks come and go, again with those that are left when one has ended before all had met."""
    for _ in range(MOST_TRIES):
        try:
            hvd.init(process_sets=process_sets)
            return
        except ValueError:  # Horovod does not say what failed
            if "HOROVOD_ELASTIC" not in os.environ:
                raise
            hvd.shutdown()
    _end(
        f"this rank could not join the others. Received: {MOST_TRIES} tries that failed. Remove its host from the list "
        "of hosts, or start the run again"
    )


def _end_before_joining(error: UserError) -> NoReturn:
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


@contextmanager
def no_other_way(settings: Config | UserError | None, *, patience_seconds: float = 30.0) -> Iterator[None]:
    """End this process if it cannot read the settings, and the others, which can, join without Horovod.

    A rank that does not know its strategy waits in Horovod, the others in MPI, each for ever.
    """
    message = f"{settings} (this rank alone, because the others do not join)"
    watch = threading.Timer(patience_seconds, _end, [message])  # then the launcher ends the others
    watch.daemon = True
    if isinstance(settings, UserError):
        watch.start()
    yield
    watch.cancel()


def join_mpi(*, servers: int = 0) -> Communicator:
    """Return the communicator of the processes that MPI started.

    Args:
        servers: how many of the last processes are servers. The communicator counts workers only; if none would be
            left, all are workers, and whoever knows the settings has to complain.

    Raises:
        UserError: mpi4py is missing.
    """
    os.environ.update(controller_variables(os.environ, nccl=True))  # without what only Horovod reads
    mpi = _mpi()
    world = mpi.COMM_WORLD
    workers = world.size - servers if servers < world.size else world.size
    hosts = world.allgather(platform.node())
    ours = world.Split(color=int(world.rank >= workers), key=world.rank)
    on_host = ours.Split_type(mpi.COMM_TYPE_SHARED, key=world.rank)
    sys.excepthook = _end_all_ranks
    return Communicator(
        rank=world.rank,
        size=workers,
        local_rank=on_host.rank,
        local_size=on_host.size,
        controller="mpi" if world.size > 1 else "none",
        allgather=ours.allgather,
        world=world,
        server_hosts=tuple(hosts[workers:]),
    )


def _mpi() -> Any:
    """Return mpi4py's MPI, which starts MPI.

    Raises:
        UserError: it is missing.
    """
    try:
        from mpi4py import MPI
    except ImportError:
        raise UserError(
            "this strategy needs mpi4py, which is missing. Received: an environment without it. "
            "Install the extra horovod"
        ) from None
    return MPI


def _end_all_ranks(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report a bug and end this process: else it waits at its end for ranks that wait for it."""
    sys.__excepthook__(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)  # then the launcher ends the others
