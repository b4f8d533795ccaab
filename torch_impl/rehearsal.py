"""What a rehearsal changes, undone.

The first update and the first batch of an evaluation do work that is done once: threads start, kernels are chosen,
Horovod agrees on tensors. They are rehearsed in start-up (`Trainer.rehearse`, `Trainer.rehearse_evaluation`), so that
no time of training or evaluation contains it, in neither framework.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from common.model.kept_arrays import KeptArrays
from torch_impl.state import TrainingState


@contextmanager
def undone(state: TrainingState) -> Iterator[None]:
    """Undo what the block changes of weights, BatchNorm statistics, optimizer state, loss scale and generators.

    A state that the optimizer has not yet is absent afterwards, as it was. What a strategy counts is its own to undo.
    """
    slots = {parameter: dict(values) for parameter, values in state.optimizer.state.items()}
    of_optimizer = [value for values in slots.values() for value in values.values() if isinstance(value, Tensor)]
    tensors = [*state.model.state_dict().values(), *of_optimizer]
    before = KeptArrays(tensor.cpu().numpy() for tensor in tensors)
    loss_scale = state.scaler.state_dict()
    if loss_scale:  # so small that no overflow leaves the update out
        state.scaler.load_state_dict({**loss_scale, "scale": 1.0})
    gpus = sorted({tensor.device.index for tensor in tensors if tensor.is_cuda})
    with torch.random.fork_rng(devices=gpus):
        yield
    state.optimizer.zero_grad()
    for tensor, array in zip(tensors, before.take(), strict=True):
        tensor.copy_(torch.from_numpy(array))
    state.optimizer.state.clear()
    state.optimizer.state.update(slots)
    state.scaler.load_state_dict(loss_scale)
