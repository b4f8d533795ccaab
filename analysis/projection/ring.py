"""The ring all-reduce in numbers, after Patarasuk and Yuan (2009).

p ranks average their gradients in 2 (p - 1) passes, which move 2 (p - 1) / p times the bytes of all gradients through
each rank.
"""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def ring_passes(ranks: Numbers) -> Numbers:
    """Return the passes of an all-reduce, each of which waits for one latency."""
    return 2 * (ranks - 1)


def ring_share(ranks: Numbers) -> Numbers:
    """Return the bytes that a rank sends in an all-reduce / the bytes of all gradients."""
    return 2 * (ranks - 1) / ranks
