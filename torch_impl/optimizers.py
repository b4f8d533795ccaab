"""The optimizers and losses in PyTorch: torch.optim's own, with every default that matters given from the settings."""

import inspect
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.config import Config, DeviceConfig, ModelConfig, OptimizerConfig
from common.config.device import INITIAL_LOSS_SCALE, LOSS_SCALE_GROWTH_STEPS
from common.model.weights import Weights


def build_optimizer(model: nn.Module, settings: Config, *, learning_rates: np.ndarray) -> torch.optim.Optimizer:
    """Return the update rule over all weights of the model.

    Args:
        learning_rates: (updates,) of which the first is set here and the others by the loop, update by update; empty
            with `--epochs 0`.
    """
    config, learning_rate = settings.optimizer, float(learning_rates[0]) if len(learning_rates) else 0.0
    parameters, decay = model.parameters(), config.weight_decay
    if config.optimizer == "sgd":
        return _eager(torch.optim.SGD)(
            parameters, lr=learning_rate, momentum=config.momentum, nesterov=config.nesterov, weight_decay=decay
        )
    if config.optimizer == "rmsprop":
        return _eager(torch.optim.RMSprop)(
            parameters, lr=learning_rate, alpha=config.alpha, eps=config.epsilon, weight_decay=decay
        )
    rule = _eager(torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW)
    betas = (config.beta1, config.beta2)
    return rule(parameters, lr=learning_rate, betas=betas, eps=config.epsilon, weight_decay=decay)


@cache
def _eager(rule: type[torch.optim.Optimizer]) -> Any:
    """Return the rule without its marks for `torch.compile`, which compiles no optimizer here.

    A marked method imports the compiler when it is called first: 150 MB and more than a third of the start of a rank.
    The optimizer cannot be pickled; checkpoints hold its `state_dict`.
    """
    marked = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    methods = {name: inspect.unwrap(getattr(rule, name)) for name in marked}
    return type(rule.__name__, (rule,), methods | {"step": torch.no_grad()(inspect.unwrap(rule.step))})


class LossScale(torch.amp.GradScaler):
    """The loss scale of mixed precision in float16; with any other it does nothing."""

    def __init__(self, config: DeviceConfig, *, device: torch.device) -> None:
        super().__init__(
            device.type,
            init_scale=INITIAL_LOSS_SCALE,
            growth_interval=LOSS_SCALE_GROWTH_STEPS,
            enabled=config.mixed_precision == "float16",
        )

    def load(self, arrays: Weights) -> None:
        """Load what `arrays` returned, if it is there."""
        if self.is_enabled() and "loss_scale" in arrays:
            scale, growth = float(arrays["loss_scale"][0]), int(arrays["loss_scale_growth_step"][0])
            self.load_state_dict({**self.state_dict(), "scale": scale, "_growth_tracker": growth})

    def arrays(self) -> Weights:
        """Return "loss_scale" and "loss_scale_growth_step"."""
        if not self.is_enabled():
            return {}
        return {
            "loss_scale": np.array([self.get_scale()], dtype=np.float32),
            "loss_scale_growth_step": np.array([self.state_dict()["_growth_tracker"]], dtype=np.int64),
        }


def loss_per_sample(outputs: Tensor, labels: Tensor, *, config: OptimizerConfig, model_config: ModelConfig) -> Tensor:
    """Return (batch,) losses, of the dtype of the outputs, or float32 if that is less precise.

    Args:
        outputs: (batch, outputs), linear.
        labels: (batch,) int64.
        model_config: names the activation that mse sees.
    """
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    if config.loss == "cross_entropy":
        return F.cross_entropy(outputs, labels, reduction="none")
    if model_config.output_activation == "sigmoid":
        outputs = torch.sigmoid(outputs)
    elif model_config.output_activation == "softmax":
        outputs = torch.softmax(outputs, dim=1)
    target = F.one_hot(labels, outputs.shape[1]).to(outputs.dtype)
    return ((outputs - target) ** 2).mean(dim=1)
