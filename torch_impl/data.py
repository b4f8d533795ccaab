"""Batches of `common.data.batches` as tensors on the device."""

from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from common.data.batches import Batch, evaluation_batches, prefetch, training_batches
from common.distributed.communicator import Communicator
from common.training.run_setup import RunSetup

Batches = Iterator[tuple[Tensor, Tensor]]


class ShardedData:
    """This rank's part of the samples.

    Attributes:
        batch_size: images of this rank in each update.
    """

    def __init__(self, setup: RunSetup, *, comm: Communicator, device: torch.device) -> None:
        self.setup = setup
        self.comm = comm
        self.device = device
        self.batch_size = setup.batch_sizes[comm.data_rank]
        config = setup.config.device
        self._layout = torch.channels_last if config.channels_last else torch.contiguous_format
        self._pins = config.pinned_memory and device.type == "cuda"

    def training(self, epoch: int, *, first_step: int = 0) -> Batches:
        """Yield this rank's batches of an epoch: images (batch, channels, height, width), labels (batch,) int64.

        Args:
            epoch: its number, from 1; it decides on the order of the samples.
            first_step: the batches of the steps before it are skipped.
        """
        tensors = map(self._tensors, self._training(epoch, first_step=first_step))
        # On a CPU all cores compute already: a thread that makes batches ahead would only compete for them.
        return self._on_device(prefetch(tensors) if self.device.type == "cuda" else tensors)

    def drawn(self, epoch: int, items: Iterable[int]) -> Batches:
        """Yield the batches of items that this rank draws of an epoch, as `training` does, each when it is needed."""
        return self._on_device(map(self._tensors, self._training(epoch, items=items)))

    def _training(self, epoch: int, *, first_step: int = 0, items: Iterable[int] | None = None) -> Iterator[Batch]:
        config = self.setup.config.training
        return training_batches(
            self.setup.dataset.train,
            self.setup.training_indices,
            seed=config.seed,
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
        batches = evaluation_batches(
            split,
            indices,
            batch_size=config.eval_batch_size,
            rank=0 if is_replicated else self.comm.data_rank,
            batch_sizes=(1,) if is_replicated else self.setup.batch_sizes,
            table=self.setup.table,
        )
        return self._on_device(map(self._tensors, batches))

    def _tensors(self, batch: tuple[np.ndarray, np.ndarray]) -> tuple[Tensor, Tensor]:
        images, labels = batch
        # The channels are last in memory, which PyTorch calls channels_last: no copy is made.
        tensors = torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels)
        return (tensors[0].pin_memory(), tensors[1].pin_memory()) if self._pins else tensors

    def _on_device(self, tensors: Iterable[tuple[Tensor, Tensor]]) -> Batches:
        for images, labels in tensors:
            # `contiguous()` would not do: it leaves images of one channel as they are, and with them all that follows.
            moved = images.to(self.device, memory_format=self._layout, non_blocking=True)
            yield moved, labels.to(self.device, non_blocking=True)
