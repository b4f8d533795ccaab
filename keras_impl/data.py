"""Batches of `common.data.batches` for the trainer: arrays, several batches at a time, which one call trains on.

They do not go through tf.data, whose threads hand each batch from one to the next: with one thread per rank, `cnn` took
3.92 ms an update with it and 3.49 without (medians of 21 turns).
"""

from collections.abc import Iterable, Iterator
from typing import Literal

from common.data.batches import Batch, prefetch
from common.distributed.communicator import Communicator
from common.task.rank_batches import MOST_UPDATES, RankBatches
from common.task.task import Task

Batches = Iterator[Batch]


class ShardedData(RankBatches):
    """This rank's part of the samples.

    Args:
        device: of this rank; TensorFlow moves the batches there itself.
    """

    def __init__(self, task: Task, *, comm: Communicator, device: str) -> None:
        super().__init__(task, comm=comm)
        self.device = device

    def training(self, epoch: int, *, first_step: int = 0, most: int = MOST_UPDATES) -> Batches:
        """Yield this rank's batches of an epoch in stacks.

        Args:
            epoch: its number, from 1; it decides on the order of the samples.
            first_step: the batches of the steps before it are skipped.
            most: batches in a stack.

        Yields:
            Images (updates, batch, height, width, channels), labels (updates, batch) int64.
        """
        batches = self.training_arrays(epoch, first_step=first_step, most=most)
        # On a CPU all cores compute already: a thread that makes batches ahead would only compete for them.
        return batches if self.device == "cpu" else prefetch(batches)

    def drawn(self, epoch: int, items: Iterable[int]) -> Batches:
        """Yield the batches of items that this rank draws of an epoch, as `training` does, each when it is needed."""
        return self.drawn_arrays(epoch, items)

    def evaluation(self, part: Literal["validation", "test"]) -> Batches:
        """Yield this rank's batches of an evaluation, each sample once over all ranks, or on each if replicated."""
        return self.evaluation_arrays(part)
