"""The models in PyTorch, from the numbers of `common.model.specs`. Images are (batch, channels, height, width)."""

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.config import ModelConfig
from common.model import specs as model_specs
from common.model.specs import ModelSpec
from torch_impl.vision import torchvision_models

LayerType = TypeVar("LayerType", bound=model_specs.Layer)


def build_model(spec: ModelSpec, config: ModelConfig) -> nn.Module:
    """Return the model with PyTorch's own first weights; `torch_impl.weights.load_weights` puts ours in their place."""
    model = {"mlp": Mlp, "cnn": Cnn, "simplecnn": SimpleCnn, "resnet34": resnet34, "dense500": Dense500}[spec.name](
        spec
    )
    if not config.dropout:
        for module in model.modules():
            if isinstance(module, nn.Dropout | nn.Dropout2d):
                module.p = 0.0
    return model.to(getattr(torch, config.dtype))


class Mlp(nn.Module):
    """784 - 192 sigmoid - 10 for MNIST (the thesis)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.fc1 = _dense(spec, "fc1")
        self.fc2 = _dense(spec, "fc2")

    def forward(self, images: Tensor) -> Tensor:
        """Return the linear outputs, (batch, outputs)."""
        hidden = torch.sigmoid(self.fc1(images.flatten(1)))
        return self.fc2(hidden)


class Cnn(nn.Module):
    """Two 5 x 5 convolutions and two dense layers, with dropout (the notebook)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.conv1 = _convolution(spec, "conv1")
        self.pool1 = _max_pooling(spec, "pool1")
        self.conv2 = _convolution(spec, "conv2")
        self.dropout2 = nn.Dropout2d(_layer(spec, "dropout2", model_specs.Dropout).rate)
        self.pool2 = _max_pooling(spec, "pool2")
        self.fc1 = _dense(spec, "fc1")
        self.dropout3 = nn.Dropout(_layer(spec, "dropout3", model_specs.Dropout).rate)
        self.fc2 = _dense(spec, "fc2")

    def forward(self, images: Tensor) -> Tensor:
        """Return the linear outputs, (batch, outputs)."""
        hidden = F.relu(self.pool1(self.conv1(images)))
        hidden = F.relu(self.pool2(self.dropout2(self.conv2(hidden))))
        hidden = self.dropout3(F.relu(self.fc1(hidden.flatten(1))))
        return self.fc2(hidden)


class SimpleCnn(nn.Module):
    """Two 3 x 3 convolutions and two dense layers (PyDTNN)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.conv1 = _convolution(spec, "conv1")
        self.conv2 = _convolution(spec, "conv2")
        self.pool1 = _max_pooling(spec, "pool1")
        self.fc1 = _dense(spec, "fc1")
        self.fc2 = _dense(spec, "fc2")

    def forward(self, images: Tensor) -> Tensor:
        """Return the linear outputs, (batch, outputs)."""
        hidden = F.relu(self.conv1(images))
        hidden = self.pool1(F.relu(self.conv2(hidden)))
        return self.fc2(F.relu(self.fc1(hidden.flatten(1))))


class Dense500(nn.Module):
    """500 inputs - 256 - outputs (the article)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.fc1 = _dense(spec, "fc1")
        self.fc2 = _dense(spec, "fc2")

    def forward(self, images: Tensor) -> Tensor:
        """Return the linear outputs, (batch, outputs)."""
        return self.fc2(F.relu(self.fc1(images.flatten(1))))


def resnet34(spec: ModelSpec) -> nn.Module:
    """Return torchvision's ResNet-34, its first convolution made anew where images do not have 3 channels."""
    model = torchvision_models().resnet34(num_classes=spec.outputs)
    if spec.input_shape[0] != 3:
        model.conv1 = _convolution(spec, "conv1")
    return model


def _layer(spec: ModelSpec, name: str, kind: type[LayerType]) -> LayerType:
    layer = spec[name]
    assert isinstance(layer, kind)
    return layer


def _input_size(spec: ModelSpec, name: str) -> int:
    return next(row.input_shape[0] for row in spec.rows if row.layer.name == name)


def _convolution(spec: ModelSpec, name: str) -> nn.Conv2d:
    layer = _layer(spec, name, model_specs.Convolution)
    return nn.Conv2d(
        _input_size(spec, name),
        layer.filters,
        layer.kernel,
        stride=layer.stride,
        padding=layer.padding,
        bias=layer.bias,
    )


def _max_pooling(spec: ModelSpec, name: str) -> nn.MaxPool2d:
    layer = _layer(spec, name, model_specs.MaxPooling)
    return nn.MaxPool2d(layer.kernel, stride=layer.stride, padding=layer.padding)


def _dense(spec: ModelSpec, name: str) -> nn.Linear:
    return nn.Linear(_input_size(spec, name), _layer(spec, name, model_specs.Dense).units)
