"""The gradient with which PyTorch's backward pass starts."""

from types import SimpleNamespace

import pytest
import torch

from torch_impl.loop import Trainer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight", [1.0, 0.5, 1 / 3, 1.2, 1 / 7])
@pytest.mark.parametrize("parts", [1, 3, 4, 6])
def test_it_is_that_of_the_weighted_mean_to_the_last_bit(dtype: torch.dtype, weight: float, parts: int) -> None:
    trainer = SimpleNamespace(_gradient=None, _loss_weight=weight)
    for size in (1, 7, 48, 63, 64, 64):  # a batch of another size, and one of the same
        losses = torch.rand(size, dtype=dtype, requires_grad=True)
        loss = losses.mean() * weight / parts
        loss.backward()
        found = Trainer._loss_gradient(trainer, losses, parts=parts)  # type: ignore[arg-type]
        assert found.dtype == dtype and not found.requires_grad
        assert losses.grad is not None and torch.equal(found, losses.grad)
