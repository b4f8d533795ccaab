"""The models in PyTorch, from the numbers of `common.model.specs`. Images are (batch, channels, height, width)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.config import ModelConfig
from common.model import specs as model_specs
from common.model.specs import ModelSpec
from torch_impl.exchange import GroupExchange
from torch_impl.layers import convolution, dense, max_pooling, numbers
from torch_impl.parts import PartOfModel
from torch_impl.vision import torchvision_models


def build_model(spec: ModelSpec, config: ModelConfig, *, exchange: GroupExchange | None = None) -> nn.Module:
    """Return the model with PyTorch's own first weights; `torch_impl.weights.load_weights` puts ours in their place.

    Args:
        exchange: of the ranks that hold the model together, where `spec` is one rank's part of it.
    """
    if spec.is_part:
        model: nn.Module = PartOfModel(spec, exchange=exchange)
    else:
        model = _MODELS[spec.name.partition(":")[0]](spec)
    if not config.dropout:
        for module in model.modules():
            if isinstance(module, nn.Dropout | nn.Dropout2d):
                module.p = 0.0
    return model.to(getattr(torch, config.dtype))


class Mlp(nn.Module):
    """784 - 192 sigmoid - 10 for MNIST (the thesis)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.fc1 = dense(spec, "fc1")
        self.fc2 = dense(spec, "fc2")

    def forward(self, images: Tensor) -> Tensor:
        """Return the linear outputs, (batch, outputs)."""
        hidden = torch.sigmoid(self.fc1(images.flatten(1)))
        return self.fc2(hidden)


class Cnn(nn.Module):
    """Two 5 x 5 convolutions and two dense layers, with dropout (the notebook)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.conv1 = convolution(spec, "conv1")
        self.pool1 = max_pooling(spec, "pool1")
        self.conv2 = convolution(spec, "conv2")
        self.dropout2 = nn.Dropout2d(numbers(spec, "dropout2", model_specs.Dropout).rate)
        self.pool2 = max_pooling(spec, "pool2")
        self.fc1 = dense(spec, "fc1")
        self.dropout3 = nn.Dropout(numbers(spec, "dropout3", model_specs.Dropout).rate)
        self.fc2 = dense(spec, "fc2")

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
        self.conv1 = convolution(spec, "conv1")
        self.conv2 = convolution(spec, "conv2")
        self.pool1 = max_pooling(spec, "pool1")
        self.fc1 = dense(spec, "fc1")
        self.fc2 = dense(spec, "fc2")

    def forward(self, images: Tensor) -> Tensor:
        """Return the linear outputs, (batch, outputs)."""
        hidden = F.relu(self.conv1(images))
        hidden = self.pool1(F.relu(self.conv2(hidden)))
        return self.fc2(F.relu(self.fc1(hidden.flatten(1))))


class Dense500(nn.Module):
    """500 inputs - 256 - outputs (the article)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.fc1 = dense(spec, "fc1")
        self.fc2 = dense(spec, "fc2")

    def forward(self, images: Tensor) -> Tensor:
        """Return the linear outputs, (batch, outputs)."""
        return self.fc2(F.relu(self.fc1(images.flatten(1))))


def resnet34(spec: ModelSpec) -> nn.Module:
    """Return torchvision's ResNet-34, its first convolution made anew where images do not have 3 channels."""
    model = torchvision_models().resnet34(num_classes=spec.outputs)
    if spec.input_shape[0] != 3:
        model.conv1 = convolution(spec, "conv1")
    return model


class Deep(nn.Module):
    """Equal dense layers."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self._names = [row.layer.name for row in spec.rows if row.weights]
        for name in self._names:
            self.add_module(name, dense(spec, name))

    def forward(self, images: Tensor) -> Tensor:
        """Return the linear outputs, (batch, outputs)."""
        hidden = images.flatten(1)
        for name in self._names[:-1]:
            hidden = F.relu(self.get_submodule(name)(hidden))
        outputs: Tensor = self.get_submodule(self._names[-1])(hidden)
        return outputs


_MODELS: dict[str, Callable[[ModelSpec], nn.Module]] = {
    "mlp": Mlp,
    "cnn": Cnn,
    "simplecnn": SimpleCnn,
    "resnet34": resnet34,
    "dense500": Dense500,
    "deep": Deep,
}
