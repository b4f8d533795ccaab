"""Batches of `common.data.batches` for the trainer: arrays, which its graph asks for one by one (`loop.py`).

They do not go through tf.data, whose threads hand each batch from one to the next: with one thread per rank, `cnn` took
4.12 ms an update with it and 3.79 without.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

from common.data.batches import Batch, evaluation_batches, prefetch, training_batches
from common.distributed.communicator import Communicator
from common.run_folder.records import NotRecorded
from common.training.run_setup import RunSetup

NOT_PINNED = NotRecorded("not applicable: TensorFlow copies batches to the GPU in its own way")

Batches = Iterator[Batch]


class ShardedData:
    """This rank's part of the samples.

    Args:
        device: of this rank; TensorFlow moves the batches there itself.

    Attributes:
        batch_size: images of this rank in each update.
    """

    def __init__(self, setup: RunSetup, *, comm: Communicator, device: str) -> None:
        self.setup = setup
        self.comm = comm
        self.device = device
        self.batch_size = setup.batch_sizes[comm.data_rank]

    def training(self, epoch: int, *, first_step: int = 0) -> Batches:
        """Yield this rank's batches of an epoch: images (batch, height, width, channels), labels (batch,) int64.

        Args:
            epoch: its number, from 1; it decides on the order of the samples.
            first_step: the batches of the steps before it are skipped.
        """
        batches = self._training(epoch, first_step=first_step)
        # On a CPU all cores compute already: a thread that makes batches ahead would only compete for them.
        return batches if self.device == "cpu" else prefetch(batches)

    def drawn(self, epoch: int, items: Iterable[int]) -> Batches:
        """Yield the batches of items that this rank draws of an epoch, as `training` does, each when it is needed."""
        return self._training(epoch, items=items)

    def _training(self, epoch: int, *, first_step: int = 0, items: Iterable[int] | None = None) -> Batches:
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

    def evaluation(self, part: Literal["validation", "test"]) -> Batches:
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
