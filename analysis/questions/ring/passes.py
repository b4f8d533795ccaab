"""The ring all-reduce, simulated: who sends which chunk in which pass, and what every rank holds then.

N ranks hold a vector each, cut into N chunks. In each pass every rank sends one chunk to its right neighbor. In the
first N - 1 passes the receiver adds it to its own, after which each rank holds one chunk of the whole sum; in the next
N - 1 it replaces its own by it. Sources: the article, "Parallelization with Horovod"; Patarasuk and Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations", 2009, doi 10.1016/j.jpdc.2008.09.002.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class Send:
    """What one rank sends in one pass: `elements` numbers."""

    rank: int
    to: int
    chunk: int
    elements: int


@dataclass(frozen=True)
class Pass:
    """What the ranks hold after a pass.

    Attributes:
        number: from 1; 0 is the start, in which nothing is sent.
        kind: what receivers do with a chunk.
        vectors: (ranks, elements).
        contributors: (ranks, chunks, ranks) bool, which ranks' numbers are in each chunk that each rank holds.
        sends: what was sent in it.
    """

    number: int
    kind: Literal["start", "add", "replace"]
    vectors: np.ndarray
    contributors: np.ndarray
    sends: tuple[Send, ...] = ()


def chunk_slices(elements: int, ranks: int) -> list[slice]:
    """Return the chunks of a vector: as many as ranks, of equal length, but the first ones one longer if need be."""
    length, longer = divmod(elements, ranks)
    starts = [number * length + min(number, longer) for number in range(ranks + 1)]
    return [slice(first, end) for first, end in itertools.pairwise(starts)]


def ring_all_reduce(vectors: np.ndarray) -> Iterator[Pass]:
    """Yield the start and the state after each of the 2 (ranks - 1) passes.

    Args:
        vectors: (ranks, elements), a row for each rank.
    """
    ranks, elements = vectors.shape
    slices = chunk_slices(elements, ranks)
    vectors = vectors.copy()
    contributors = np.zeros((ranks, ranks, ranks), dtype=bool)
    for rank in range(ranks):
        contributors[rank, :, rank] = True
    yield Pass(0, "start", vectors.copy(), contributors.copy())
    for number in range(1, 2 * ranks - 1):
        # Every rank passes on what it has just received, in the first pass its own chunk: the same rule in both halves.
        sends = tuple(
            Send(rank, (rank + 1) % ranks, chunk, slices[chunk].stop - slices[chunk].start)
            for rank in range(ranks)
            for chunk in [(rank - number + 1) % ranks]
        )
        adds = number < ranks
        sent = vectors.copy(), contributors.copy()  # all send at once: what was there before the pass
        for send in sends:
            numbers, from_whom = sent[0][send.rank, slices[send.chunk]], sent[1][send.rank, send.chunk]
            if adds:
                vectors[send.to, slices[send.chunk]] += numbers
                contributors[send.to, send.chunk] |= from_whom
            else:
                vectors[send.to, slices[send.chunk]] = numbers
                contributors[send.to, send.chunk] = from_whom
        yield Pass(number, "add" if adds else "replace", vectors.copy(), contributors.copy(), sends)


def sums_of_chunks(one: Pass) -> np.ndarray:
    """Return (ranks, chunks), the sum of the numbers of each chunk as each rank holds it."""
    ranks, elements = one.vectors.shape
    starts = [part.start for part in chunk_slices(elements, ranks)]
    return np.add.reduceat(one.vectors, starts, axis=1)


def selected_passes(ranks: int) -> list[int]:
    """Return the passes to show where not all can be: the start, both ends of both halves, one between."""
    return sorted({0, 1, ranks // 2, ranks - 1, ranks, 2 * (ranks - 1)})
