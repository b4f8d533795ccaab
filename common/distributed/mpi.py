"""Ranks that start by MPI alone: strategies that do not use Horovod, and those with servers.

mpi4py is imported when it is needed, which must be after TensorFlow: initialized first, Open MPI brings its own hwloc,
and a process that then imports TensorFlow dies in `MPI_Finalize`.
"""

import os
import platform
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any

from common.config import Config, StrategyConfig
from common.distributed.communicator import (
    GPU_ORDER,
    LOOKING,
    Communicator,
    alone,
    controller_variables,
    end_before_joining,
    join,
    under_launcher,
)
from common.distributed.horovod_module import NoHorovod
from common.errors import EXIT_CODE_USER_ERROR, UserError


def join_ranks(hvd: Any, settings: Config | UserError | None) -> Communicator:
    """Join the other processes of a run in the way of its strategy, which alone decides; return the communicator.

    Args:
        hvd: the framework's Horovod, which is not started where the strategy does not use it.
        settings: an error waits until all ranks can receive it; None: no run, Horovod.
    """
    strategy = settings.strategy if isinstance(settings, Config) else StrategyConfig()
    if not under_launcher(os.environ):
        return alone(replicas=strategy.replicas or 1)
    if not strategy.traits.uses_horovod:
        return replace(join_mpi(servers=strategy.servers or 0), replicas=strategy.replicas or 1)
    if isinstance(hvd, NoHorovod):
        end_before_joining(hvd.error)
    timeline = isinstance(settings, Config) and settings.record.horovod_timeline
    in_host_memory = isinstance(settings, Config) and settings.device.exchanges_in_host_memory
    if isinstance(settings, Config) and settings.parts.count > 1:
        return _join_copies(hvd, parts=settings.parts.count, timeline=timeline, in_host_memory=in_host_memory)
    with no_other_way(settings):
        return join(hvd, timeline=timeline, in_host_memory=in_host_memory)


def _join_copies(hvd: Any, *, parts: int, timeline: bool, in_host_memory: bool) -> Communicator:
    """Return the communicator of ranks of which `parts` neighbors hold a copy of the model together.

    Horovod has to know the process sets before it starts, and their number follows from that of the ranks: MPI starts
    first. If the copies would not be whole, there are none, and whoever knows the settings has to complain.
    """
    sets: dict[tuple[int, ...], Any] = {}

    def process_sets() -> list[Any]:
        size = _mpi().COMM_WORLD.size
        if size % parts == 0:
            copies = [tuple(range(first, first + parts)) for first in range(0, size, parts)]
            for ranks in (*copies, *(tuple(range(part, size, parts)) for part in range(parts))):
                if 1 < len(ranks) < size:
                    sets[ranks] = hvd.ProcessSet(list(ranks))
        return list(sets.values())

    for name, value in LOOKING.items():
        os.environ.setdefault(name, value)
    comm = join(hvd, timeline=timeline, in_host_memory=in_host_memory, process_sets=process_sets)
    if comm.size % parts:
        return comm
    of_copy = tuple(range(comm.rank - comm.rank % parts, comm.rank - comm.rank % parts + parts))
    of_part = tuple(range(comm.rank % parts, comm.size, parts))
    everyone = {tuple(range(comm.size)): hvd.global_process_set}
    return replace(
        comm,
        parts=parts,
        copy_group=(sets | everyone).get(of_copy),
        part_group=(sets | everyone).get(of_part),
        links=_mpi().COMM_WORLD,
    )


@contextmanager
def no_other_way(settings: Config | UserError | None, *, patience_seconds: float = 30.0) -> Iterator[None]:
    """End this process if it cannot read the settings, and the others, which can, join without Horovod.

    A rank that does not know its strategy waits in Horovod, the others in MPI, each for ever.
    """

    def end() -> None:
        print(f"error: {settings} (this rank alone, because the others do not join)", file=sys.stderr, flush=True)
        os._exit(EXIT_CODE_USER_ERROR)  # then the launcher ends the others

    watch = threading.Timer(patience_seconds, end)
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
    for name, value in GPU_ORDER.items():
        os.environ.setdefault(name, value)
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


def check_tasks(variables: Mapping[str, str]) -> None:
    """Raise UserError if this is one of several tasks of srun that know nothing of each other; end all but the first.

    Args:
        variables: the environment.
    """
    tasks = variables.get("SLURM_STEP_NUM_TASKS", "1")
    if under_launcher(variables) or tasks == "1":
        return
    if variables.get("SLURM_PROCID", "0") != "0":
        sys.exit(EXIT_CODE_USER_ERROR)  # one line is enough
    raise UserError(
        f"each of these tasks would be a separate run. Received: {tasks} tasks of srun without PMI. Give srun "
        "--mpi=pmix (`srun --mpi=list` lists the choices), or start the ranks with `python -m launch submit`"
    )


def check_controller(config: StrategyConfig, variables: Mapping[str, str]) -> None:
    """Raise UserError if a strategy needs MPI and the launcher uses Gloo.

    Args:
        variables: the environment.
    """
    if not config.needs_mpi or not under_launcher(variables):
        return
    if variables.get("HOROVOD_CONTROLLER") == "gloo" or "HOROVOD_GLOO_RENDEZVOUS_ADDR" in variables:
        raise UserError(
            f"{config.traits.chosen_by} exchanges messages over MPI. Received: ranks started with Gloo. "
            "Start them with horovodrun --mpi, mpirun or srun"
        )
