"""What every rank of an elastic run keeps in memory, from which the ranks that are there go on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from common.run_folder.checkpoints import Checkpoint
from common.task.shares import Share

# Sums of each place in a rank's batch: one after the other, in the order of ranks, they are those of the global batch.
SUMS_OF_PLACES = ("losses_of_places", "correct_of_places")


@dataclass(frozen=True, kw_only=True)
class Commit:
    """The state of a run after an update, the same on all ranks.

    Attributes:
        folder: of the run.
        first_copies: of the model, that the run was first started with: one on each rank.
        checkpoint: in memory, with the part of each rank; None: nothing has been trained yet.
        made_at: in seconds since 1970.
    """

    folder: Path
    first_copies: int
    checkpoint: Checkpoint | None
    made_at: float

    @property
    def step(self) -> int:
        """Updates of the run that are done; -1 before the ranks were ready to train."""
        return self.checkpoint.step if self.checkpoint else -1


def shared_anew(checkpoint: Checkpoint, *, before: Sequence[Share], after: Sequence[Share]) -> Checkpoint:
    """Return the checkpoint with the progress of an epoch cut for other ranks.

    Each rank gets the sums of the places of the global batch that it takes from now on. What only its number decides
    (dropout's generators, BatchNorm's running statistics) it has from the rank that had its number before, new ones
    from the first.

    Args:
        before: of the ranks that made the checkpoint.
        after: of the ranks that go on.
    """
    if not checkpoint.ranks:
        return checkpoint
    assert sum(share.samples for share in before) == sum(share.samples for share in after), (before, after)
    sums = {
        name: np.concatenate([rank.state[name] for rank in checkpoint.ranks])
        for name in SUMS_OF_PLACES
        if all(name in rank.state for rank in checkpoint.ranks)
    }
    ranks = []
    for rank, share in enumerate(after):
        # A new rank draws masks of its own, as its epoch's seed says.
        own = checkpoint.ranks[rank] if rank < len(before) else replace(checkpoint.ranks[0], state={})
        first, samples = share.first_sample, share.samples
        places = {name: values[first : first + samples] for name, values in sums.items()}
        ranks.append(replace(own, state={**own.state, **places}))
    return replace(checkpoint, ranks=ranks)
