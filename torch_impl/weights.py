"""Between PyTorch's tensors and the weights file, which has their names and layout."""

import torch
from torch import nn

from common.model.specs import ModelSpec
from common.model.weights import Weights


def load_weights(model: nn.Module, weights: Weights, *, spec: ModelSpec) -> None:
    """Put arrays of the weights file into the model."""
    tensors = {weight.name: torch.from_numpy(weights[weight.name].copy()) for weight in spec.weights}
    # strict=False for BatchNorm's count of batches, which is no weight: nothing reads it when the decay is given.
    model.load_state_dict(tensors, strict=False)


def get_weights(model: nn.Module, *, spec: ModelSpec) -> Weights:
    """Return the arrays of the model under the names of the weights file; copies, on the host."""
    state = model.state_dict()
    return {weight.name: state[weight.name].detach().cpu().contiguous().numpy().copy() for weight in spec.weights}
