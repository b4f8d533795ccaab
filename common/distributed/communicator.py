"""The ranks of a run and what they must agree on, built on one collective that each framework provides."""

import pickle
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from common.distributed.core_sharing import CoreShare, core_share
from common.errors import UserError, as_user_error
from common.model.weights import Weights, tensor_hashes

PIECE_BYTES = 2**26  # in one collective


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

    def gather_states(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order, which may be large; in pieces, as `broadcast`."""
        message, step = memoryview(pickle.dumps(value)), max(1, PIECE_BYTES // self.size)
        of_ranks = self.allgather((len(message), bytes(message[:step])))
        parts = [[first] for _, first in of_ranks]
        for start in range(step, max(length for length, _ in of_ranks), step):
            for own, part in zip(parts, self.allgather(bytes(message[start : start + step])), strict=True):
                own.append(part)
        return [pickle.loads(b"".join(own)) for own in parts]

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
        """Raise the error of one rank, in what it was doing, as the same UserError on all ranks, so that none hangs."""
        error: UserError | None = None
        try:
            yield
        except (UserError, OSError, MemoryError) as caught:
            error = as_user_error(caught, doing=doing)
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
