"""The models in tf.keras, from the numbers of `common.model.specs`. Images are (batch, height, width, channels)."""

from typing import Any, TypeVar

import keras
from keras import layers

from common.config import Config, ModelConfig
from common.model import specs as model_specs
from common.model.specs import ModelSpec
from keras_impl.batch_norm import BatchNormalization

LayerType = TypeVar("LayerType", bound=model_specs.Layer)


def set_precision_and_layout(config: Config) -> None:
    """Set the dtype of the models and optimizers built from now on, and where layers have their channels."""
    keras.config.set_image_data_format("channels_last" if config.device.channels_last else "channels_first")
    keras.config.set_floatx(config.model.dtype)
    if config.device.mixed_precision != "none":
        keras.mixed_precision.set_global_policy(f"mixed_{config.device.mixed_precision}")


def build_model(spec: ModelSpec, config: ModelConfig) -> keras.Model:
    """Return the model with Keras' own first weights (`keras_impl.weights.load_weights` puts ours in their place).

    Images and weights have one layout, also where layers compute with channels first: the first layer moves the
    channels, `Flatten` moves them back.
    """
    channels, height, width = spec.input_shape
    images = keras.Input((height, width, channels), name="images")
    inputs = images
    if keras.config.image_data_format() == "channels_first":
        inputs = layers.Permute((3, 1, 2), name="channels_first")(images)
    build = {"mlp": mlp, "cnn": cnn, "simplecnn": simplecnn, "resnet34": resnet34, "dense500": dense500}[spec.name]
    outputs = build(spec, inputs)
    # The losses work on the type of the weights, whatever type the layers compute in (mixed precision).
    outputs = layers.Activation("linear", dtype=config.dtype, name="outputs")(outputs)
    model = keras.Model(images, outputs, name=spec.name)
    if not config.dropout:
        for layer in model.layers:
            if isinstance(layer, layers.Dropout | layers.SpatialDropout2D):
                layer.rate = 0.0
    return model


def mlp(spec: ModelSpec, images: Any) -> Any:
    """784 - 192 sigmoid - 10 for MNIST (the thesis)."""
    hidden = layers.Flatten(name="flatten")(images)
    hidden = layers.Activation("sigmoid", name="sigmoid1")(_dense(spec, "fc1")(hidden))
    return _dense(spec, "fc2")(hidden)


def cnn(spec: ModelSpec, images: Any) -> Any:
    """Two 5 x 5 convolutions and two dense layers, with dropout (the notebook)."""
    hidden = _max_pooling(spec, "pool1")(_convolution(spec, "conv1")(images))
    hidden = layers.ReLU(name="relu1")(hidden)
    hidden = _convolution(spec, "conv2")(hidden)
    hidden = layers.SpatialDropout2D(_layer(spec, "dropout2", model_specs.Dropout).rate, name="dropout2")(hidden)
    hidden = layers.ReLU(name="relu2")(_max_pooling(spec, "pool2")(hidden))
    hidden = layers.Flatten(name="flatten")(hidden)
    hidden = layers.ReLU(name="relu3")(_dense(spec, "fc1")(hidden))
    hidden = layers.Dropout(_layer(spec, "dropout3", model_specs.Dropout).rate, name="dropout3")(hidden)
    return _dense(spec, "fc2")(hidden)


def simplecnn(spec: ModelSpec, images: Any) -> Any:
    """Two 3 x 3 convolutions and two dense layers (PyDTNN)."""
    hidden = layers.ReLU(name="relu1")(_convolution(spec, "conv1")(images))
    hidden = layers.ReLU(name="relu2")(_convolution(spec, "conv2")(hidden))
    hidden = layers.Flatten(name="flatten")(_max_pooling(spec, "pool1")(hidden))
    hidden = layers.ReLU(name="relu3")(_dense(spec, "fc1")(hidden))
    return _dense(spec, "fc2")(hidden)


def dense500(spec: ModelSpec, images: Any) -> Any:
    """500 inputs - 256 - outputs (the article)."""
    hidden = layers.Flatten(name="flatten")(images)
    hidden = layers.ReLU(name="relu1")(_dense(spec, "fc1")(hidden))
    return _dense(spec, "fc2")(hidden)


def resnet34(spec: ModelSpec, images: Any) -> Any:
    """ResNet-34 with the layers, pads and names of torchvision's."""
    hidden = _convolution(spec, "conv1")(_padded(spec, "conv1", images))
    hidden = layers.ReLU(name="relu")(_batch_norm(spec, "bn1")(hidden))
    hidden = _max_pooling(spec, "maxpool")(_padded(spec, "maxpool", hidden))
    for stage, blocks in enumerate(model_specs.RESNET34_BLOCKS, start=1):
        for block in range(blocks):
            hidden = _basic_block(spec, f"layer{stage}.{block}", hidden)
    return _dense(spec, "fc")(layers.GlobalAveragePooling2D(name="avgpool")(hidden))


def _basic_block(spec: ModelSpec, name: str, inputs: Any) -> Any:
    hidden = _convolution(spec, f"{name}.conv1")(_padded(spec, f"{name}.conv1", inputs))
    hidden = layers.ReLU(name=f"{name}.relu1")(_batch_norm(spec, f"{name}.bn1")(hidden))
    hidden = _convolution(spec, f"{name}.conv2")(_padded(spec, f"{name}.conv2", hidden))
    hidden = _batch_norm(spec, f"{name}.bn2")(hidden)
    shortcut = inputs
    if spec.has_layer(f"{name}.downsample.0"):
        shortcut = _convolution(spec, f"{name}.downsample.0")(inputs)
        shortcut = _batch_norm(spec, f"{name}.downsample.1")(shortcut)
    return layers.ReLU(name=f"{name}.relu2")(layers.Add(name=f"{name}.add")([hidden, shortcut]))


def _layer(spec: ModelSpec, name: str, kind: type[LayerType]) -> LayerType:
    layer = spec[name]
    assert isinstance(layer, kind)
    return layer


def _convolution(spec: ModelSpec, name: str) -> layers.Conv2D:
    layer = _layer(spec, name, model_specs.Convolution)
    return layers.Conv2D(
        layer.filters, layer.kernel, strides=layer.stride, padding="valid", use_bias=layer.bias, name=name
    )


def _max_pooling(spec: ModelSpec, name: str) -> layers.MaxPooling2D:
    layer = _layer(spec, name, model_specs.MaxPooling)
    return layers.MaxPooling2D(layer.kernel, strides=layer.stride, padding="valid", name=name)


def _padded(spec: ModelSpec, name: str, inputs: Any) -> Any:
    """Pad by the spec, the same on all sides: "same" would pad one side only at stride 2.

    Zeros serve the max pooling too: it comes after a ReLU, so no zero can win over a larger value.
    """
    layer = spec[name]
    assert isinstance(layer, model_specs.Convolution | model_specs.MaxPooling)
    return layers.ZeroPadding2D(layer.padding, name=f"{name}.padding")(inputs)


def _batch_norm(spec: ModelSpec, name: str) -> BatchNormalization:
    layer = _layer(spec, name, model_specs.BatchNorm)
    axis = 1 if keras.config.image_data_format() == "channels_first" else -1
    return BatchNormalization(axis=axis, momentum=layer.decay, epsilon=layer.epsilon, name=name)


def _dense(spec: ModelSpec, name: str) -> layers.Dense:
    return layers.Dense(_layer(spec, name, model_specs.Dense).units, name=name)
