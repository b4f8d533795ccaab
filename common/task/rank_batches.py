"""The batches of one rank, of training and evaluation, which each framework's `ShardedData` makes of arrays."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from common.data.batches import Batch, evaluation_batches, training_stacks
from common.distributed.communicator import Communicator
from common.task.task import Task

# What is gathered at once, for a framework that makes several updates in one call.
MOST_UPDATES = 16
MOST_BYTES = 16 * 10**6


Stack = tuple[Any, Any]  # images (updates, batch, ...), labels (updates, batch), as the framework takes them


class RankBatches(ABC):
    """This rank's part of the samples.

    Attributes:
        samples: of this rank in each update.
    """

    def __init__(self, task: Task, *, comm: Communicator) -> None:
        self.task = task
        self.comm = comm
        self.samples = task.samples_of_ranks[comm.data_rank]

    @abstractmethod
    def training(self, epoch: int, *, first_step: int = 0, most: int = MOST_UPDATES) -> Iterator[Stack]:
        """Yield this rank's batches of an epoch in stacks.

        Args:
            epoch: its number, from 1; it decides on the order of the samples.
            first_step: the batches of the steps before it are skipped.
            most: batches that are gathered at once.
        """

    @abstractmethod
    def drawn(self, epoch: int, items: Iterable[int]) -> Iterator[Stack]:
        """Yield the batches of items that this rank draws of an epoch, each in a stack of its own when it is needed."""

    @abstractmethod
    def evaluation(self, part: Literal["validation", "test"]) -> Iterator[Any]:
        """Yield this rank's batches of an evaluation, each sample once over all ranks, or on each if replicated."""

    def training_arrays(self, epoch: int, *, first_step: int = 0, most: int = MOST_UPDATES) -> Iterator[Batch]:
        """Yield this rank's batches of an epoch, in stacks as `common.data.batches.training_stacks` makes them.

        Args:
            epoch: its number, from 1; it decides on the order of the samples.
            first_step: the batches of the steps before it are skipped.
            most: batches in a stack, if they are not large.
        """
        task, ranks = self.task, len(self.task.samples_of_ranks)
        bytes_of_batch = self.samples * math.prod(task.dataset.image_shape) * task.table.itemsize
        updates = max(1, min(most, MOST_BYTES // bytes_of_batch))
        items = range(first_step * ranks + self.comm.data_rank, task.steps_of_epoch(epoch) * ranks, ranks)
        return self._stacks(epoch, (items[start : start + updates] for start in range(0, len(items), updates)))

    def drawn_arrays(self, epoch: int, items: Iterable[int]) -> Iterator[Batch]:
        """Yield the batches of items that this rank draws of an epoch, each in a stack of its own when it is needed."""
        return self._stacks(epoch, ([item] for item in items))

    def _stacks(self, epoch: int, stacks: Iterable[Sequence[int]]) -> Iterator[Batch]:
        task = self.task
        return training_stacks(
            task.dataset.train,
            task.order(epoch),
            batch_sizes=task.samples_of_ranks,
            table=task.table,
            stacks=stacks,
        )

    def evaluation_arrays(self, part: Literal["validation", "test"]) -> Iterator[Batch]:
        """Yield this rank's batches of an evaluation, each sample once over all ranks, or on each if replicated."""
        config = self.task.config.training
        split, indices = self.task.evaluation_samples(part)
        is_replicated = part == "validation" and config.validation == "replicated"
        return evaluation_batches(
            split,
            indices,
            batch_size=config.eval_batch_size,
            rank=0 if is_replicated else self.comm.data_rank,
            batch_sizes=(1,) if is_replicated else self.task.samples_of_ranks,
            table=self.task.table,
        )
