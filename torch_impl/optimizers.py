"""The optimizers and losses in PyTorch: torch.optim's own, with every default that matters given from the settings."""

import inspect
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.config import Config, ModelConfig, OptimizerConfig
from common.config.device import INITIAL_LOSS_SCALE, LOSS_SCALE_GROWTH_STEPS
from common.model.weights import Weights

SLOTS = ("momentum_buffer", "exp_avg", "exp_avg_sq", "square_avg")


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


def build_scaler(config: Config, *, device: torch.device) -> torch.amp.GradScaler:
    """Return the loss scale, which does nothing but with mixed precision in float16."""
    return torch.amp.GradScaler(
        device.type,
        init_scale=INITIAL_LOSS_SCALE,
        growth_interval=LOSS_SCALE_GROWTH_STEPS,
        enabled=config.device.mixed_precision == "float16",
    )


def load_optimizer(
    optimizer: torch.optim.Optimizer, arrays: Weights, *, model: nn.Module, scaler: torch.amp.GradScaler
) -> None:
    """Load what `export_optimizer` returned."""
    if scaler.is_enabled() and "loss_scale" in arrays:
        scale, growth = float(arrays["loss_scale"][0]), int(arrays["loss_scale_growth_step"][0])
        scaler.load_state_dict({**scaler.state_dict(), "scale": scale, "_growth_tracker": growth})
    for name, parameter in model.named_parameters():
        slots = {
            slot: torch.from_numpy(arrays[f"{name}.{slot}"].copy()).to(parameter.device)
            for slot in SLOTS
            if f"{name}.{slot}" in arrays
        }
        if slots and "step" in arrays:
            slots["step"] = torch.tensor(float(arrays["step"][0]))
        if slots:
            optimizer.state[parameter] = slots


def export_optimizer(optimizer: torch.optim.Optimizer, *, model: nn.Module, scaler: torch.amp.GradScaler) -> Weights:
    """Return the state as "<parameter>.<slot>" -> array, and "step", the number of updates done.

    With a loss scale also "loss_scale" and "loss_scale_growth_step".
    """
    arrays: Weights = {}
    if scaler.is_enabled():
        arrays["loss_scale"] = np.array([scaler.get_scale()], dtype=np.float32)
        arrays["loss_scale_growth_step"] = np.array([scaler.state_dict()["_growth_tracker"]], dtype=np.int64)
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        for slot in SLOTS:
            if state.get(slot) is not None:
                arrays[f"{name}.{slot}"] = state[slot].detach().cpu().contiguous().numpy().copy()
        if "step" in state:
            arrays["step"] = state["step"].cpu().numpy().astype("int64").reshape(1)
    return arrays


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
