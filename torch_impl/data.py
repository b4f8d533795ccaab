"""Batches of `common.data.batches` as tensors on the device."""

from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from torch import Tensor

from common.config import DeviceConfig
from common.data.batches import Batch, prefetch
from common.distributed.communicator import Communicator
from common.task.rank_batches import MOST_UPDATES, RankBatches
from common.task.task import Task

Batches = Iterator[tuple[Tensor, Tensor]]
Stacks = Iterator[tuple[list[Tensor], list[Tensor]]]  # of batches, in lists: views of a larger tensor take time


def layout_of(config: DeviceConfig) -> torch.memory_format:
    """Return how images lie in memory."""
    return torch.channels_last if config.channels_last else torch.contiguous_format


class ShardedData(RankBatches):
    """This rank's part of the samples."""

    def __init__(self, task: Task, *, comm: Communicator, device: torch.device) -> None:
        super().__init__(task, comm=comm)
        self.device = device
        config = task.config.device
        self._layout = layout_of(config)
        self._pins = config.pinned_memory and device.type == "cuda"

    def training(self, epoch: int, *, first_step: int = 0, most: int = MOST_UPDATES) -> Stacks:
        """Yield stacks of one batch: images [(batch, channels, height, width)], labels [(batch,)] int64.

        Args:
            epoch: its number, from 1; it decides on the order of the samples.
            first_step: the batches of the steps before it are skipped.
            most: batches that are gathered at once.
        """
        tensors = self._of_stacks(self.training_arrays(epoch, first_step=first_step, most=most))
        # On a CPU all cores compute already: a thread that makes batches ahead would only compete for them.
        return _alone(self._on_device(prefetch(tensors) if self.device.type == "cuda" else tensors))

    def drawn(self, epoch: int, items: Iterable[int]) -> Stacks:
        """Yield the batches of items that this rank draws of an epoch, as `training` does, each when it is needed."""
        return _alone(self._on_device(self._of_stacks(self.drawn_arrays(epoch, items))))

    def evaluation(self, part: Literal["validation", "test"]) -> Batches:
        """Yield this rank's batches of an evaluation, each sample once over all ranks, or on each if replicated.

        Images are (batch, channels, height, width), labels (batch,) int64.
        """
        return self._on_device(map(self._tensors, self.evaluation_arrays(part)))

    def _of_stacks(self, stacks: Iterator[Batch]) -> Batches:
        for images, labels in stacks:
            yield from map(self._tensors, zip(images, labels, strict=True))

    def _tensors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        images, labels = batch
        # The channels are last in memory, which PyTorch calls channels_last: then no copy is made. `contiguous()` would
        # not do: it leaves images of one channel as they are, and with them all that follows. The layout comes first:
        # in another, pinned images would be copied to other memory on their way to the GPU.
        in_layout = torch.from_numpy(images).permute(0, 3, 1, 2).to(memory_format=self._layout)
        tensors = in_layout, torch.from_numpy(labels)
        return (tensors[0].pin_memory(), tensors[1].pin_memory()) if self._pins else tensors

    def _on_device(self, tensors: Iterable[tuple[Tensor, Tensor]]) -> Batches:
        for images, labels in tensors:
            yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)


def _alone(batches: Batches) -> Stacks:
    """Yield each batch in a stack of its own: the loop over updates is Python's, which gains nothing by larger ones."""
    for images, labels in batches:
        yield [images], [labels]
