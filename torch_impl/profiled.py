"""Steps in separate parts, to see where their time goes (`--profile`, `--profile-layers`).

They compute what those of `loop.py` compute.
"""

from typing import Any

from torch import Tensor

from common.measurement.step_profile import Profiler
from torch_impl.data import ShardedData
from torch_impl.distributed import average_gradients, wait_for_all_ranks
from torch_impl.loop import Trainer
from torch_impl.models import layer_parts
from torch_impl.state import TrainingState


class ProfiledTrainer(Trainer):
    """Has a plain optimizer and averages the gradients itself, all at once, after the last of them."""

    profiler: Profiler  # `train_segment` takes its batches through it

    def __init__(self, state: TrainingState, data: ShardedData, **named: Any) -> None:
        super().__init__(state, data, **named)
        self.profiler = Profiler(synchronize=self._synchronize)
        by_layer = state.config.record.profile_layers
        self._parts = layer_parts(state.model, state.spec) if by_layer else [("", state.model)]
        self._loss_name = "loss" if by_layer else ""

    def rehearse(self, epoch: int) -> None:
        """Train on the first batch of an epoch and undo it, as `Trainer.rehearse`; the profile does not count it."""
        with self.profiler.undone():
            super().rehearse(epoch)

    def _step(self, images: Tensor, labels: Tensor, learning_rate: float) -> tuple[Tensor, Tensor]:
        lap = self.profiler.lap
        for group in self.state.optimizer.param_groups:
            group["lr"] = learning_rate
        self.state.optimizer.zero_grad()
        outputs, losses = self._forward_and_backward(images, labels)
        if self.data.comm.size > 1:
            wait_for_all_ranks()
            lap("waiting")
            gradients = [weight.grad for weight in self.state.model.parameters() if weight.grad is not None]
            averages = average_gradients(gradients, config=self.state.config)
            for gradient, average in zip(gradients, averages, strict=True):
                gradient.copy_(average)
            lap("allreduce")
        self.state.optimizer.step()
        lap("optimizer")
        return outputs, losses

    def _forward_and_backward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Add the gradients of a batch, part by part; return outputs and losses."""
        lap = self.profiler.lap
        lap("forward")  # what came before the first layer
        passes: list[tuple[str, Tensor, Tensor]] = []
        hidden = images
        for name, part in self._parts:
            inputs = hidden.detach().requires_grad_(bool(passes))
            hidden = part(inputs)
            passes.append((name, inputs, hidden))
            lap("forward", layer=name)
        outputs = hidden.detach().requires_grad_()
        losses = self._losses(outputs, labels)
        lap("forward", layer=self._loss_name)
        losses.backward(self._loss_gradient(losses))
        gradient = outputs.grad
        lap("backward", layer=self._loss_name)
        for name, inputs, hidden in reversed(passes):
            hidden.backward(gradient)
            gradient = inputs.grad
            lap("backward", layer=name)
        return outputs.detach(), losses.detach()
