"""Between PyTorch's tensors and the weights file, which has their names and layout."""

import torch
from torch import nn

from common.model.specs import ModelSpec
from common.model.weights import Weights

SLOTS = ("momentum_buffer", "exp_avg", "exp_avg_sq", "square_avg")


def load_weights(model: nn.Module, weights: Weights, *, spec: ModelSpec) -> None:
    """Put arrays of the weights file into the model."""
    tensors = {weight.name: torch.from_numpy(weights[weight.name].copy()) for weight in spec.weights}
    # strict=False for BatchNorm's count of batches, which is no weight: nothing reads it when the decay is given.
    model.load_state_dict(tensors, strict=False)


def get_weights(model: nn.Module, *, spec: ModelSpec) -> Weights:
    """Return the arrays of the model under the names of the weights file; copies, on the host."""
    state = model.state_dict()
    return {weight.name: state[weight.name].detach().cpu().contiguous().numpy().copy() for weight in spec.weights}


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, arrays: Weights, *, model: nn.Module, spec: ModelSpec
) -> None:
    """Put what `get_optimizer_state` returned into the optimizer."""
    for name, parameter in _trained(model, spec):
        slots = {
            slot: torch.from_numpy(arrays[f"{name}.{slot}"].copy()).to(parameter.device)
            for slot in SLOTS
            if f"{name}.{slot}" in arrays
        }
        if slots and "step" in arrays:
            slots["step"] = torch.tensor(float(arrays["step"][0]))
        if slots:
            optimizer.state[parameter] = slots


def get_optimizer_state(optimizer: torch.optim.Optimizer, *, model: nn.Module, spec: ModelSpec) -> Weights:
    """Return the optimizer's state as "<parameter>.<slot>" -> array, and "step", the number of updates done."""
    arrays: Weights = {}
    for name, parameter in _trained(model, spec):
        state = optimizer.state.get(parameter, {})
        for slot in SLOTS:
            if state.get(slot) is not None:
                arrays[f"{name}.{slot}"] = state[slot].detach().cpu().contiguous().numpy().copy()
        if "step" in state:
            arrays["step"] = state["step"].cpu().numpy().astype("int64").reshape(1)
    return arrays


def _trained(model: nn.Module, spec: ModelSpec) -> list[tuple[str, nn.Parameter]]:
    return [(weight.name, model.get_parameter(weight.name)) for weight in spec.weights if weight.trainable]
