"""The sample order and its sharding over ranks: pure functions of seed, epoch, step, rank and batch sizes.

The rules, which both trainers share:

1. The seed determines the validation split, which is cut from the training samples before sharding.
2. Each epoch has one order of all training samples, which depends on (seed, epoch) only, not on the ranks.
3. Global batch `step` is the next `sum(batch_sizes)` samples of that order, which the ranks cut in their order: rank r
   takes the next `batch_sizes[r]`. So 4 ranks of 64 and 1 process of 256 see the same 256 samples in the same step, in
   the same order; and so do 2 ranks of 171 and 85.
4. The incomplete last global batch is dropped: every rank runs the same number of steps with full batches, so that
   no rank waits in a collective for one that has already finished.
5. Each sample is evaluated on exactly one rank; the ranks share them in proportion to their batch sizes.

`batch_sizes` holds the samples of each rank in one step, throughout.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from common.errors import UserError

# Separate streams for separate purposes: epoch 0's order must not repeat the order that cut the validation split.
_VALIDATION_STREAM = 0
_EPOCH_STREAM = 1


def stable_permutation(sample_count: int, *, seed: int, stream: tuple[int, ...]) -> np.ndarray:
    """Return a random permutation of `range(sample_count)` that is the same with every NumPy version.

    NumPy may change `Generator.permutation` between versions; it guarantees the raw output of a bit generator and of
    `SeedSequence`. Sorting raw 64-bit draws needs only these two.

    Args:
        stream: distinguishes the uses of one seed.

    Returns:
        (sample_count,) int64.
    """
    seed_sequence = np.random.SeedSequence(entropy=seed, spawn_key=stream)
    draws = np.random.PCG64(seed_sequence).random_raw(sample_count)
    return np.argsort(draws, kind="stable").astype(np.int64, copy=False)


def split_validation(sample_count: int, *, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut the validation split from the training samples.

    Args:
        sample_count: number of training samples before the cut.
        share: of validation samples, 0 <= share < 1; the count is rounded to the nearest integer.

    Returns:
        Training indices and validation indices, each sorted, int64; each sample is in exactly one of them.

    Raises:
        UserError: the share is not in [0, 1), or leaves no training or no validation sample.
    """
    if not 0 <= share < 1:
        raise UserError(
            f"the share of validation samples must be at least 0 and less than 1. Received: {share}. "
            "Give 0 for none, or for example 0.1"
        )
    validation_count = int(share * sample_count + 0.5)
    if share > 0 and not 0 < validation_count < sample_count:
        raise UserError(
            f"this share leaves {validation_count} validation and {sample_count - validation_count} training samples. "
            f"Received: {share} of {sample_count} samples. Give one that leaves samples for both"
        )
    order = stable_permutation(sample_count, seed=seed, stream=(_VALIDATION_STREAM,))
    return np.sort(order[validation_count:]), np.sort(order[:validation_count])


def epoch_order(sample_count: int, *, seed: int, epoch: int) -> np.ndarray:
    """Return the order in which an epoch uses its samples: a permutation, (sample_count,) int64.

    It depends on (sample_count, seed, epoch) only, so it is the same in both frameworks and for every number of ranks.
    """
    return stable_permutation(sample_count, seed=seed, stream=(_EPOCH_STREAM, epoch))


def share_out(total: int, *, parts: Sequence[float]) -> tuple[int, ...]:
    """Divide a number of samples in proportion to `parts` by largest remainder, with at least one sample in each part.

    Every part has its whole samples; of what is left, each one goes where most is missing. A part of less than one
    sample takes the rest of it from those that have most beyond theirs. Equal cases are decided for the first.

    Args:
        total: at least the number of parts.
        parts: above 0.
    """
    whole = sum(map(Fraction, parts))
    exact = [total * Fraction(part) / whole for part in parts]
    counts = [max(1, math.floor(one)) for one in exact]
    while left := total - sum(counts):
        change = 1 if left > 0 else -1
        possible = [rank for rank, count in enumerate(counts) if count + change >= 1]
        counts[max(possible, key=lambda rank: change * (exact[rank] - counts[rank]))] += change
    return tuple(counts)


def rank_slice(step: int, *, rank: int, batch_sizes: Sequence[int]) -> slice:
    """Return the part of the epoch's order that `rank` uses in `step` (counted from 0).

    Global batch `step` is `order[step * sum(batch_sizes) : (step + 1) * sum(batch_sizes)]`; rank r takes its next
    `batch_sizes[r]` samples after those of the ranks before it.
    """
    start = step * sum(batch_sizes) + sum(batch_sizes[:rank])
    return slice(start, start + batch_sizes[rank])


def evaluation_range(sample_count: int, *, rank: int, batch_sizes: Sequence[int]) -> range:
    """Return the contiguous range of samples that `rank` evaluates, in proportion to its batch size.

    It is at most one sample longer or shorter than the exact proportion; with few samples some ranges are empty.
    """
    whole, before, after = sum(batch_sizes), sum(batch_sizes[:rank]), sum(batch_sizes[: rank + 1])
    return range(sample_count * before // whole, sample_count * after // whole)
