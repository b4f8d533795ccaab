"""What PyTorch changes while it trains, and what a checkpoint holds of it."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common.config import Config
from common.config.device import INITIAL_LOSS_SCALE, LOSS_SCALE_GROWTH_STEPS
from common.model.specs import ModelSpec
from common.model.weights import Weights
from torch_impl.weights import get_weights, load_weights

SLOTS = ("momentum_buffer", "exp_avg", "exp_avg_sq", "square_avg")


class TrainingState:
    """Model, optimizer and loss scale of one rank."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        spec: ModelSpec,
        config: Config,
        is_shared: bool = False,
    ) -> None:
        self.model = model
        self.weights_of = model.module if isinstance(model, DistributedDataParallel) else model  # with our names
        self.optimizer = optimizer
        self.spec = spec
        self.config = config
        self.is_shared = is_shared  # whether all ranks hold it already: a checkpoint reaches each of them
        self.scaler = torch.amp.GradScaler(
            next(model.parameters()).device.type,
            init_scale=INITIAL_LOSS_SCALE,
            growth_interval=LOSS_SCALE_GROWTH_STEPS,
            enabled=config.device.mixed_precision == "float16",
        )
        self.held_elsewhere: Callable[[], Weights] | None = None  # returns the optimizer's state where servers have it

    def restore(self, weights: Weights, optimizer: Weights | None = None) -> None:
        """Load what `export_weights` and `export_optimizer` returned; without the latter the optimizer stays as is."""
        load_weights(self.weights_of, weights, spec=self.spec)
        if not optimizer:
            return
        if self.scaler.is_enabled() and "loss_scale" in optimizer:
            scale, growth = float(optimizer["loss_scale"][0]), int(optimizer["loss_scale_growth_step"][0])
            self.scaler.load_state_dict({**self.scaler.state_dict(), "scale": scale, "_growth_tracker": growth})
        for name, parameter in self.weights_of.named_parameters():
            slots = {
                slot: torch.from_numpy(optimizer[f"{name}.{slot}"].copy()).to(parameter.device)
                for slot in SLOTS
                if f"{name}.{slot}" in optimizer
            }
            if slots and "step" in optimizer:
                slots["step"] = torch.tensor(float(optimizer["step"][0]))
            if slots:
                self.optimizer.state[parameter] = slots

    def export_weights(self) -> Weights:
        """Return the weights and BatchNorm statistics under the names of the weights file; copies, on the host."""
        return get_weights(self.weights_of, spec=self.spec)

    def export_optimizer(self) -> Weights:
        """Return the optimizer's state as "<parameter>.<slot>" -> array, and "step", the number of updates done.

        With mixed precision also "loss_scale" and "loss_scale_growth_step".
        """
        if self.held_elsewhere:
            return self.held_elsewhere()
        arrays: Weights = {}
        if self.scaler.is_enabled():
            arrays["loss_scale"] = np.array([self.scaler.get_scale()], dtype=np.float32)
            arrays["loss_scale_growth_step"] = np.array([self.scaler.state_dict()["_growth_tracker"]], dtype=np.int64)
        for name, parameter in self.weights_of.named_parameters():
            state = self.optimizer.state.get(parameter, {})
            for slot in SLOTS:
                if state.get(slot) is not None:
                    arrays[f"{name}.{slot}"] = state[slot].detach().cpu().contiguous().numpy().copy()
            if "step" in state:
                arrays["step"] = state["step"].cpu().numpy().astype("int64").reshape(1)
        return arrays
