"""The part of a model that one rank holds, layer by layer from its spec (`--strategy layers`, `split`)."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.model import specs as model_specs
from common.model.partition import part_name, single_layers
from common.model.specs import Layer, ModelSpec
from torch_impl.exchange import GroupExchange
from torch_impl.layers import batch_norm, convolution, dense, max_pooling


def layer_parts(model: nn.Module, spec: ModelSpec) -> list[tuple[str, nn.Module]]:
    """Return (name, part) of the layers of a model, with its weights."""
    modules = dict(model.named_modules())
    parts: list[tuple[str, nn.Module]] = []
    for layers in single_layers(spec):
        part = PartOfModel(layers, exchange=None)
        part.share(modules)
        parts.append((part_name(layers), part))
    return parts


class PartOfModel(nn.Module):
    """Some of the layers of a model, or a piece of each, under the names of the weights file.

    Args:
        exchange: of the ranks that hold the pieces of a layer; None: no layer is split.
    """

    def __init__(self, spec: ModelSpec, *, exchange: GroupExchange | None) -> None:
        super().__init__()
        self.spec = spec
        self.exchange = exchange
        self._of_layers: dict[str, nn.Module] = {}  # PyTorch knows them by the containers below
        for row in spec.rows:
            module = _module(spec, row.layer)
            if module is not None:
                self._of_layers[row.layer.name] = module
                _put(self, row.layer.name, module)
        layers = [row.layer for row in spec.rows]
        later = {layer.source for layer in layers} | {
            one.shortcut for one in layers if isinstance(one, model_specs.Add)
        }
        self._used_later = later - {""}

    def share(self, modules: Mapping[str, nn.Module]) -> None:
        """Compute with the layers of another model in place of its own."""
        self._of_layers = {name: modules[name] for name in self._of_layers}

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the last layer: (batch, channels, height, width) or (batch, units)."""
        kept: dict[str, Tensor] = {}
        hidden = inputs
        for row in self.spec.rows:
            layer = row.layer
            # What is not known by its name came from the stage before.
            source = kept.get(layer.source, inputs) if layer.source else hidden
            if isinstance(layer, model_specs.Add):
                hidden = source + kept.get(layer.shortcut, inputs)
            else:
                hidden = self._compute(layer, source)
            if layer.name in self._used_later:
                kept[layer.name] = hidden
        return hidden

    def _compute(self, layer: Layer, inputs: Tensor) -> Tensor:
        if isinstance(layer, model_specs.Dense | model_specs.Convolution) and layer.split != "none":
            return self._compute_split(layer, inputs)
        if isinstance(layer, model_specs.GatherParts):
            assert self.exchange
            return self.exchange.gather(inputs, name=layer.name)
        if isinstance(layer, model_specs.Activation):
            return F.relu(inputs) if layer.function == "relu" else torch.sigmoid(inputs)
        if isinstance(layer, model_specs.Flatten):
            return inputs.flatten(1)
        if isinstance(layer, model_specs.GlobalMean):
            return inputs.mean(dim=(2, 3))
        outputs: Tensor = self._of_layers[layer.name](inputs)
        return outputs

    def _compute_split(self, layer: model_specs.Dense | model_specs.Convolution, inputs: Tensor) -> Tensor:
        """Return this rank's piece of a layer's outputs, or all of them as the sum over the ranks."""
        assert self.exchange
        module = self._of_layers[layer.name]
        if layer.split == "outputs":
            piece: Tensor = module(self.exchange.copy(inputs, name=layer.name))
            return piece
        assert isinstance(module, nn.Linear)
        total = self.exchange.sum(F.linear(inputs, module.weight), name=layer.name)
        return total if module.bias is None else total + module.bias


def _module(spec: ModelSpec, layer: Layer) -> nn.Module | None:
    """Return the layer; None where it is a function without weights or numbers."""
    if isinstance(layer, model_specs.Dropout):
        return nn.Dropout2d(layer.rate) if layer.whole_channels else nn.Dropout(layer.rate)
    if isinstance(layer, model_specs.Convolution):
        return convolution(spec, layer.name)
    if isinstance(layer, model_specs.MaxPooling):
        return max_pooling(spec, layer.name)
    if isinstance(layer, model_specs.BatchNorm):
        return batch_norm(spec, layer.name)
    return dense(spec, layer.name) if isinstance(layer, model_specs.Dense) else None


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    """Register a layer under a name with dots, which are those of modules inside modules."""
    *containers, last = name.split(".")
    for container in containers:
        if not hasattr(model, container):
            model.add_module(container, nn.Module())
        model = getattr(model, container)
    model.add_module(last, module)
