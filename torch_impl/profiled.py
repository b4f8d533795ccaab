"""Steps in separate parts, to see where their time goes (`--profile`); they compute what those of `loop.py` compute."""

import numpy as np
from torch import Tensor

from common.measurement.step_profile import Profiler
from common.measurement.timing import Phases
from torch_impl.data import ShardedData
from torch_impl.distributed import average_gradients, wait_for_all_ranks
from torch_impl.loop import Trainer
from torch_impl.state import TrainingState


class ProfiledTrainer(Trainer):
    """Has a plain optimizer and averages the gradients itself, all at once, after the last of them."""

    profiler: Profiler  # `train_segment` takes its batches through it

    def __init__(self, state: TrainingState, data: ShardedData, *, learning_rates: np.ndarray, phases: Phases) -> None:
        super().__init__(state, data, learning_rates=learning_rates, phases=phases)
        self.profiler = Profiler(synchronize=self._synchronize)

    def _step(self, images: Tensor, labels: Tensor, learning_rate: float) -> tuple[Tensor, Tensor]:
        lap = self.profiler.lap
        for group in self.state.optimizer.param_groups:
            group["lr"] = learning_rate
        self.state.optimizer.zero_grad()
        outputs, losses = self._forward(images, labels)
        loss = self._loss(losses)
        lap("forward")
        loss.backward()
        lap("backward")
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
        return outputs.detach(), losses.detach()
