"""Seeds of dropout masks: the same numbers in both frameworks, whatever ran before."""

from collections.abc import Sequence

import numpy as np


def dropout_seeds(
    seed: int, *, epoch: int, rank: int, layer: int | None = None, part: Sequence[int] = ()
) -> np.ndarray:
    """Return (2,) uint32.

    Args:
        seed: of the run.
        epoch: its number, from 1.
        rank: of the data: ranks that hold a copy of the model together have one.
        layer: its number in the model; None: one generator draws the masks of all layers.
        part: number of the part of the model, where it is in parts.
    """
    entropy = [seed, epoch, rank, *([] if layer is None else [layer]), *part]
    return np.random.SeedSequence(entropy).generate_state(2, np.uint32)
