"""The batches of one rank, of training and evaluation, which each framework's `ShardedData` hands to its trainer."""

from collections.abc import Iterable, Iterator
from typing import Literal

from common.data.batches import Batch, evaluation_batches, training_batches
from common.distributed.communicator import Communicator
from common.training.run_setup import RunSetup


class RankBatches:
    """This rank's part of the samples, as arrays.

    Attributes:
        batch_size: images of this rank in each update.
    """

    def __init__(self, setup: RunSetup, *, comm: Communicator) -> None:
        self.setup = setup
        self.comm = comm
        self.batch_size = setup.batch_sizes[comm.data_rank]

    def training_arrays(
        self, epoch: int, *, first_step: int = 0, items: Iterable[int] | None = None
    ) -> Iterator[Batch]:
        """Yield this rank's batches of an epoch, in the form of `common.data.batches.training_batches`.

        Args:
            epoch: its number, from 1; it decides on the order of the samples.
            first_step: the batches of the steps before it are skipped.
            items: what this rank has drawn of the epoch, instead of its part of every step.
        """
        return training_batches(
            self.setup.dataset.train,
            self.setup.training_indices,
            seed=self.setup.config.training.seed,
            epoch=epoch,
            rank=self.comm.data_rank,
            batch_sizes=self.setup.batch_sizes,
            table=self.setup.table,
            steps=self.setup.steps_of_epoch(epoch),
            first_step=first_step,
            items=items,
        )

    def evaluation_arrays(self, part: Literal["validation", "test"]) -> Iterator[Batch]:
        """Yield this rank's batches of an evaluation, each sample once over all ranks, or on each if replicated."""
        config = self.setup.config.training
        split, indices = self.setup.evaluation_samples(part)
        is_replicated = part == "validation" and config.validation == "replicated"
        return evaluation_batches(
            split,
            indices,
            batch_size=config.eval_batch_size,
            rank=0 if is_replicated else self.comm.data_rank,
            batch_sizes=(1,) if is_replicated else self.setup.batch_sizes,
            table=self.setup.table,
        )
