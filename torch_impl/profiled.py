"""Steps taken apart to see where their time goes (`--profile`); they compute what those of `loop.py` compute."""

import torch
from torch import Tensor, nn

from common.config import Config
from common.distributed.communicator import Communicator
from common.measurement.step_profile import Profiler
from common.measurement.timing import Phases
from torch_impl.distributed import average_gradients, wait_for_all_ranks
from torch_impl.loop import Trainer


class ProfiledTrainer(Trainer):
    """Takes a plain optimizer and averages the gradients itself, all at once, after the last of them."""

    profiler: Profiler  # `train_epoch` draws its batches through it

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        config: Config,
        device: torch.device,
        phases: Phases,
        comm: Communicator,
    ) -> None:
        super().__init__(model, optimizer, config=config, device=device, phases=phases)
        self.profiler = Profiler(synchronize=self._synchronize)
        self._exchanges = comm.size > 1

    def _step(self, images: Tensor, labels: Tensor, learning_rate: float) -> tuple[Tensor, Tensor]:
        lap = self.profiler.lap
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.zero_grad()
        outputs, losses = self._forward(images, labels)
        loss = losses.mean()
        lap("forward")
        loss.backward()
        lap("backward")
        if self._exchanges:
            wait_for_all_ranks()
            lap("waiting")
            average_gradients(self.model, config=self.config.device)
            lap("allreduce")
        self.optimizer.step()
        lap("optimizer")
        return outputs.detach(), losses.detach()
