"""The optimizers and losses in PyTorch: torch.optim's own, with every default that matters given from the settings."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.config import ModelConfig, OptimizerConfig
from common.model.weights import Weights

SLOTS = ("momentum_buffer", "exp_avg", "exp_avg_sq", "square_avg")


def build_optimizer(model: nn.Module, config: OptimizerConfig, *, learning_rate: float) -> torch.optim.Optimizer:
    """Return the update rule over all weights of the model."""
    parameters, decay = model.parameters(), config.weight_decay
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, lr=learning_rate, momentum=config.momentum, nesterov=config.nesterov, weight_decay=decay
        )
    if config.optimizer == "rmsprop":
        return torch.optim.RMSprop(
            parameters, lr=learning_rate, alpha=config.alpha, eps=config.epsilon, weight_decay=decay
        )
    rule = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    betas = (config.beta1, config.beta2)
    return rule(parameters, lr=learning_rate, betas=betas, eps=config.epsilon, weight_decay=decay)


def loss_per_sample(outputs: Tensor, labels: Tensor, *, config: OptimizerConfig, model_config: ModelConfig) -> Tensor:
    """Return (batch,) losses, of the dtype of the outputs, or float32 if that is less precise.

    Args:
        outputs: (batch, outputs), linear.
        labels: (batch,) int64.
        config: names the loss.
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


def export_state(model: nn.Module, optimizer: torch.optim.Optimizer, *, scaler: torch.amp.GradScaler) -> Weights:
    """Return the optimizer's state as "<parameter>.<slot>" -> array, and "step", the number of updates done.

    Where precision is mixed, "loss_scale" and "loss_scale_growth_step" too.
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


def import_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, arrays: Weights, *, scaler: torch.amp.GradScaler
) -> None:
    """Put back what `export_state` returned."""
    if scaler.is_enabled() and "loss_scale" in arrays:
        scale, growth = float(arrays["loss_scale"][0]), int(arrays["loss_scale_growth_step"][0])
        scaler.load_state_dict({**scaler.state_dict(), "scale": scale, "_growth_tracker": growth})
    for name, parameter in model.named_parameters():
        state = {
            slot: torch.from_numpy(arrays[f"{name}.{slot}"].copy()).to(parameter.device)
            for slot in SLOTS
            if f"{name}.{slot}" in arrays
        }
        if state and "step" in arrays:
            state["step"] = torch.tensor(float(arrays["step"][0]))
        if state:
            optimizer.state[parameter] = state
