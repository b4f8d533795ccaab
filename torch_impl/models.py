"""The models in PyTorch, from the numbers of `common.model.specs`. Images are (batch, channels, height, width)."""

from collections.abc import Callable
from functools import partial

import torch
from torch import fx, nn

from common.config import ModelConfig
from common.model.layers import Dropout
from common.model.partition import part_name, single_layers
from common.model.specs import LayerRow, ModelSpec
from torch_impl.exchange import GroupExchange
from torch_impl.layers import native_layer
from torch_impl.vision import torchvision_models


def build_model(spec: ModelSpec, config: ModelConfig, *, exchange: GroupExchange | None = None) -> nn.Module:
    """Return the model with PyTorch's own first weights; `torch_impl.weights.load_weights` puts ours in their place.

    Args:
        exchange: of the ranks that hold the model together, where `spec` is one rank's part of it.
    """
    layer_of = partial(native_layer, config=config, exchange=exchange)
    model = _of_torchvision(spec, layer_of) if spec.torchvision else _of_rows(spec, layer_of)
    return model.to(getattr(torch, config.dtype))


def layer_parts(model: nn.Module, spec: ModelSpec) -> list[tuple[str, nn.Module]]:
    """Return (name, part) of the layers of a model, which keep their weights and dropout rates."""

    def layer_of(row: LayerRow) -> nn.Module:
        is_kept = row.weights or isinstance(row.layer, Dropout)  # others of torchvision may overwrite their inputs
        return model.get_submodule(row.layer.name) if is_kept else native_layer(row, ModelConfig())

    return [(part_name(part), _of_rows(part, layer_of)) for part in single_layers(spec)]


def _of_rows(spec: ModelSpec, layer_of: Callable[[LayerRow], nn.Module]) -> fx.GraphModule:
    """Return a module with the layers under their names; `forward` is the code that calls one after the other."""
    model = fx.GraphModule({}, fx.Graph())

    def call(row: LayerRow, *inputs: fx.Node) -> fx.Node:
        model.add_submodule(row.layer.name, layer_of(row))
        return model.graph.call_module(row.layer.name, inputs)

    model.graph.output(spec.walk(model.graph.placeholder("images"), call))
    model.recompile()
    return model


def _of_torchvision(spec: ModelSpec, layer_of: Callable[[LayerRow], nn.Module]) -> nn.Module:
    """Return a model of torchvision, its first layer made anew where images do not have 3 channels."""
    model: nn.Module = getattr(torchvision_models(), spec.torchvision)(num_classes=spec.outputs)
    first = spec.rows[0]
    if first.input_shape[0] != 3:
        model.set_submodule(first.layer.name, layer_of(first))
    return model
