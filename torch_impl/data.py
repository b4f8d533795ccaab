"""Batches of `common.data.batches` as tensors on the device."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from common.data.batches import evaluation_batches, prefetch, training_batches
from common.data.loading import Split
from common.distributed.communicator import Communicator
from common.training.run_setup import RunSetup


def training_data(
    setup: RunSetup, *, epoch: int, comm: Communicator, device: torch.device, first_step: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of one epoch of this rank: images (batch, channels, height, width), labels (batch,) int64.

    Those of the steps before `first_step` are left out.
    """
    batches = training_batches(
        setup.dataset.train,
        setup.training_indices,
        seed=setup.config.training.seed,
        epoch=epoch,
        batch_size=setup.config.training.batch_size,
        rank=comm.rank,
        size=comm.size,
        table=setup.table,
        steps=setup.steps_of_epoch(epoch),
        first_step=first_step,
    )
    # On a CPU all cores compute already: a thread that makes batches ahead would only take turns with them.
    return _on_device(prefetch(batches) if device.type == "cuda" else batches, device)


def evaluation_data(
    setup: RunSetup, split: Split, indices: np.ndarray, *, rank: int, size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this rank's part of some samples, each sample once over all ranks."""
    batches = evaluation_batches(
        split,
        indices,
        batch_size=setup.config.training.eval_batch_size,
        rank=rank,
        size=size,
        table=setup.table,
    )
    return _on_device(batches, device)


def _on_device(
    batches: Iterable[tuple[np.ndarray, np.ndarray]], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    for images, labels in batches:
        # The channels lie last in memory, which PyTorch calls channels_last: no copy is made.
        tensor = torch.from_numpy(images).permute(0, 3, 1, 2)
        yield tensor.to(device, non_blocking=True), torch.from_numpy(labels).to(device, non_blocking=True)
