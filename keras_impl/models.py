"""The models in tf.keras, from the numbers of `common.model.specs`. Images are (batch, height, width, channels)."""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from common.config import Config, ModelConfig
from common.model import specs as model_specs
from common.model.specs import ModelSpec
from keras_impl.exchange import GroupExchange
from keras_impl.layers import batch_norm, convolution, dense, max_pooling, numbers, padded
from keras_impl.parts import part_of_model


def set_precision_and_layout(config: Config) -> None:
    """Set the dtype of the models and optimizers built from now on, and where layers have their channels."""
    keras.config.set_image_data_format("channels_last" if config.device.channels_last else "channels_first")
    keras.config.set_floatx(config.model.dtype)
    if config.device.mixed_precision != "none":
        keras.mixed_precision.set_global_policy(f"mixed_{config.device.mixed_precision}")


def build_model(spec: ModelSpec, config: ModelConfig, *, exchange: GroupExchange | None = None) -> keras.Model:
    """Return the model with Keras' own first weights (`keras_impl.weights.load_weights` puts ours in their place).

    Images and weights have one layout, also where layers compute with channels first: the first layer moves the
    channels, `Flatten` moves them back.

    Args:
        exchange: of the ranks that hold the model together, where `spec` is one rank's part of it.
    """
    channels, *sides = spec.input_shape
    images = keras.Input((*sides, channels), name="images")
    inputs = images
    if keras.config.image_data_format() == "channels_first":
        inputs = layers.Permute((3, 1, 2), name="channels_first")(images)
    if spec.is_part:
        outputs = part_of_model(spec, inputs, exchange=exchange)
    else:
        outputs = _MODELS[spec.name.partition(":")[0]](spec, inputs)
    # The losses work on the type of the weights, whatever type the layers compute in (mixed precision).
    outputs = layers.Activation("linear", dtype=config.dtype, name="outputs")(outputs)
    model = keras.Model(images, outputs, name=spec.name.replace(":", "-"))
    if not config.dropout:
        for layer in model.layers:
            if isinstance(layer, layers.Dropout | layers.SpatialDropout2D):
                layer.rate = 0.0
    return model


def mlp(spec: ModelSpec, images: Any) -> Any:
    """784 - 192 sigmoid - 10 for MNIST (the thesis)."""
    hidden = layers.Flatten(name="flatten")(images)
    hidden = layers.Activation("sigmoid", name="sigmoid1")(dense(spec, "fc1")(hidden))
    return dense(spec, "fc2")(hidden)


def cnn(spec: ModelSpec, images: Any) -> Any:
    """Two 5 x 5 convolutions and two dense layers, with dropout (the notebook)."""
    hidden = max_pooling(spec, "pool1")(convolution(spec, "conv1")(images))
    hidden = layers.ReLU(name="relu1")(hidden)
    hidden = convolution(spec, "conv2")(hidden)
    hidden = layers.SpatialDropout2D(numbers(spec, "dropout2", model_specs.Dropout).rate, name="dropout2")(hidden)
    hidden = layers.ReLU(name="relu2")(max_pooling(spec, "pool2")(hidden))
    hidden = layers.Flatten(name="flatten")(hidden)
    hidden = layers.ReLU(name="relu3")(dense(spec, "fc1")(hidden))
    hidden = layers.Dropout(numbers(spec, "dropout3", model_specs.Dropout).rate, name="dropout3")(hidden)
    return dense(spec, "fc2")(hidden)


def simplecnn(spec: ModelSpec, images: Any) -> Any:
    """Two 3 x 3 convolutions and two dense layers (PyDTNN)."""
    hidden = layers.ReLU(name="relu1")(convolution(spec, "conv1")(images))
    hidden = layers.ReLU(name="relu2")(convolution(spec, "conv2")(hidden))
    hidden = layers.Flatten(name="flatten")(max_pooling(spec, "pool1")(hidden))
    hidden = layers.ReLU(name="relu3")(dense(spec, "fc1")(hidden))
    return dense(spec, "fc2")(hidden)


def dense500(spec: ModelSpec, images: Any) -> Any:
    """500 inputs - 256 - outputs (the article)."""
    hidden = layers.Flatten(name="flatten")(images)
    hidden = layers.ReLU(name="relu1")(dense(spec, "fc1")(hidden))
    return dense(spec, "fc2")(hidden)


def resnet34(spec: ModelSpec, images: Any) -> Any:
    """ResNet-34 with the layers, pads and names of torchvision's."""
    hidden = convolution(spec, "conv1")(padded(spec, "conv1", images))
    hidden = layers.ReLU(name="relu")(batch_norm(spec, "bn1")(hidden))
    hidden = max_pooling(spec, "maxpool")(padded(spec, "maxpool", hidden))
    for stage, blocks in enumerate(model_specs.RESNET34_BLOCKS, start=1):
        for block in range(blocks):
            hidden = _basic_block(spec, f"layer{stage}.{block}", hidden)
    return dense(spec, "fc")(layers.GlobalAveragePooling2D(name="avgpool")(hidden))


def _basic_block(spec: ModelSpec, name: str, inputs: Any) -> Any:
    hidden = convolution(spec, f"{name}.conv1")(padded(spec, f"{name}.conv1", inputs))
    hidden = layers.ReLU(name=f"{name}.relu1")(batch_norm(spec, f"{name}.bn1")(hidden))
    hidden = convolution(spec, f"{name}.conv2")(padded(spec, f"{name}.conv2", hidden))
    hidden = batch_norm(spec, f"{name}.bn2")(hidden)
    shortcut = inputs
    if spec.has_layer(f"{name}.downsample.0"):
        shortcut = convolution(spec, f"{name}.downsample.0")(inputs)
        shortcut = batch_norm(spec, f"{name}.downsample.1")(shortcut)
    return layers.ReLU(name=f"{name}.relu2")(layers.Add(name=f"{name}.add")([hidden, shortcut]))


def deep(spec: ModelSpec, images: Any) -> Any:
    """Equal dense layers."""
    hidden = layers.Flatten(name="flatten")(images)
    *inner, last = [row.layer.name for row in spec.rows if row.weights]
    for number, name in enumerate(inner, start=1):
        hidden = layers.ReLU(name=f"relu{number}")(dense(spec, name)(hidden))
    return dense(spec, last)(hidden)


_MODELS: dict[str, Callable[[ModelSpec, Any], Any]] = {
    "mlp": mlp,
    "cnn": cnn,
    "simplecnn": simplecnn,
    "resnet34": resnet34,
    "dense500": dense500,
    "deep": deep,
}
