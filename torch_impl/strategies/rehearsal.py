"""What a rehearsal (`RankStrategy.rehearse`) changes, undone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from common.model.kept_arrays import KeptArrays


@contextmanager
def undone(strategy: Any) -> Iterator[None]:
    """Undo what the block changes of weights, BatchNorm statistics, optimizer state, loss scale and generators.

    A state that the optimizer has not yet is absent afterwards, as it was. What a strategy counts is its own to undo.

    Args:
        strategy: a `Strategy`, which imports this.
    """
    optimizer, scaler = strategy.optimizer, strategy.scaler
    slots = {parameter: dict(values) for parameter, values in optimizer.state.items()}
    of_optimizer = [value for values in slots.values() for value in values.values() if isinstance(value, Tensor)]
    tensors = [*strategy.model.state_dict().values(), *of_optimizer, *strategy.kept().values()]
    before = KeptArrays(tensor.cpu().numpy() for tensor in tensors)
    loss_scale = scaler.state_dict()
    if loss_scale:  # so small that no overflow leaves the update out
        scaler.load_state_dict({**loss_scale, "scale": 1.0})
    gpus = sorted({tensor.device.index for tensor in tensors if tensor.is_cuda})
    with torch.random.fork_rng(devices=gpus):
        yield
    strategy.clear_gradients()
    for tensor, array in zip(tensors, before.take(), strict=True):
        tensor.copy_(torch.from_numpy(array))
    optimizer.state.clear()
    optimizer.state.update(slots)
    scaler.load_state_dict(loss_scale)
