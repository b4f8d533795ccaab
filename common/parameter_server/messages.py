"""What workers and servers send each other.

Calls are pickled tuples, vectors are frames: a header of whole numbers and a vector in one buffer. Both sides sleep
between two looks at what has arrived, longer the longer nothing does: Open MPI would spin, and take a core from a
process that computes.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from common.config import OptimizerConfig

CALL, PUSH, WEIGHTS, ANSWER = 1, 2, 3, 4  # tags; the first two are from workers, the others from servers
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 20e-6, 200e-6
HAS_GRADIENT, WANTS_WEIGHTS = 1, 2  # flags
HEADER_BYTES = 24  # three of int64


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What worker 0 tells a server at the start.

    Attributes:
        is_synchronous: one update averages a gradient of each worker; else each gradient is an update.
        lead: steps that a worker may be ahead of the slowest; None: any number.
        learning_rates: (global batches,) float64; the last one holds for all after it.
        weights: (weights of the shard,).
        slots: the optimizer's state; name -> (weights of the shard,).
        updates: done before.
        batches: of workers, which these updates were made of.
        sources: the worker of each message in the order in which they are to be taken; None: as they arrive.
        workers_of_items: of all items of the run that is replayed; None: items are drawn.
    """

    optimizer: OptimizerConfig
    is_synchronous: bool
    lead: int | None
    learning_rates: np.ndarray
    weights: np.ndarray
    slots: dict[str, np.ndarray]
    updates: int
    batches: int
    sources: Sequence[int] | None = None
    workers_of_items: Sequence[int] | None = None


class Frame:
    """A buffer for one message.

    Attributes:
        header: (3,) int64: the number of updates that the weights had, flags, and batches that the gradient sums.
        vector: (size,) of `dtype`.
    """

    def __init__(self, size: int, dtype: DTypeLike) -> None:
        self.buffer = np.zeros(HEADER_BYTES + size * np.dtype(dtype).itemsize, np.uint8)
        self.header = self.buffer[:HEADER_BYTES].view(np.int64)
        self.vector = self.buffer[HEADER_BYTES:].view(dtype)

    @property
    def message(self) -> np.ndarray:
        """What is sent: the header alone where there is no gradient."""
        return self.buffer if self.header[1] & HAS_GRADIENT else self.buffer[:HEADER_BYTES]


def shard_bounds(size: int, *, servers: int) -> list[tuple[int, int]]:
    """Return start and end of each server's shard: sizes differ by one weight at most, wherever tensors end."""
    cuts = [size * number // servers for number in range(servers + 1)]
    return list(itertools.pairwise(cuts))


def arrived(world: Any, *, tag: int, source: int | None = None) -> int | None:
    """Return from whom a message with this tag has arrived; None: from nobody.

    Args:
        source: the only one to look for.
    """
    from mpi4py import MPI

    status = MPI.Status()
    is_here = world.Iprobe(source=MPI.ANY_SOURCE if source is None else source, tag=tag, status=status)
    return status.source if is_here else None


def receive_object(world: Any, *, source: int, tag: int) -> Any:
    """Return the object of the next such message."""
    poll(lambda: arrived(world, tag=tag, source=source) is not None)
    return world.recv(source=source, tag=tag)


def wait_for(requests: Sequence[Any]) -> None:
    """Return when all of these messages have been sent or received."""
    poll(lambda: all(request.Test() for request in requests))


def poll(look: Callable[[], bool]) -> None:
    """Look until there is something; the pause doubles while there is nothing."""
    pause = SHORTEST_PAUSE_SECONDS
    while not look():
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
