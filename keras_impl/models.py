"""The models in tf.keras, from the numbers of `common.model.specs`. Images are (batch, height, width, channels)."""

from typing import Any

import keras
from keras import layers

from common.config import Config, ModelConfig
from common.model.layers import SlidingWindow
from common.model.partition import part_name, single_layers
from common.model.specs import LayerRow, ModelSpec
from keras_impl.exchange import GroupExchange
from keras_impl.layers import native_layer


def set_precision_and_layout(config: Config) -> None:
    """Set the dtype of the models and optimizers built from now on, and where layers have their channels."""
    keras.config.set_image_data_format("channels_last" if config.device.channels_last else "channels_first")
    keras.config.set_floatx(config.model.dtype)
    if config.device.mixed_precision != "none":
        keras.mixed_precision.set_global_policy(f"mixed_{config.device.mixed_precision}")


def build_model(spec: ModelSpec, config: ModelConfig, *, exchange: GroupExchange | None = None) -> keras.Model:
    """Return the model with Keras' own first weights (`keras_impl.weights.load_weights` puts ours in their place).

    Images and weights have one layout, also where layers compute with channels first: the first layer moves the
    channels, `Flatten` or, in a stage of a pipeline, a last layer moves them back.

    Args:
        exchange: of the ranks that hold the model together, where `spec` is one rank's part of it.
    """

    def call(row: LayerRow, *inputs: Any) -> Any:
        layer = native_layer(row, config, exchange=exchange)
        return layer(_padded(row, *inputs) if len(inputs) == 1 else inputs)

    channels, *sides = spec.input_shape
    images = keras.Input((*sides, channels), name="images")
    is_channels_first = keras.config.image_data_format() == "channels_first"
    inputs = layers.Permute((3, 1, 2), name="channels_first")(images) if is_channels_first and sides else images
    outputs = spec.walk(inputs, call)
    if is_channels_first and len(outputs.shape) == 4:
        outputs = layers.Permute((2, 3, 1), name="channels_last")(outputs)
    # The losses work on the type of the weights, whatever type the layers compute in (mixed precision).
    outputs = layers.Activation("linear", dtype=config.dtype, name="outputs")(outputs)
    return keras.Model(images, outputs, name=spec.name.replace(":", "-"))


def layer_parts(model: keras.Model, spec: ModelSpec) -> list[tuple[str, keras.Model]]:
    """Return (name, part) of the layers of a model, which keep their weights and dropout rates."""
    parts, inputs = [], model.input
    for part in single_layers(spec):
        outputs = model.get_layer(part.rows[-1].layer.name).output
        parts.append((part_name(part), keras.Model(inputs, outputs)))
        inputs = outputs
    return parts


def _padded(row: LayerRow, inputs: Any) -> Any:
    """Pad by the spec, the same on all sides: "same" would pad one side only at stride 2.

    Zeros serve the max pooling too: it comes after a ReLU, so no zero can win over a larger value.
    """
    layer = row.layer
    if not isinstance(layer, SlidingWindow) or not layer.padding:
        return inputs
    return layers.ZeroPadding2D(layer.padding, name=f"{layer.name}.padding")(inputs)
