"""A Keras model in float64, without dropout, and with grouped convolutions that are not slow."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from common.errors import UserError
from common.twins.contract import Pair, check_output, users_code
from keras_impl.twins.kernels import path_of

_original = keras.src.backend.nn.conv


class Built:
    """A Keras model in float64, dropout switched off.

    Raises:
        UserError: it is none, or cannot be used.
    """

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.model = pair.build("keras", keras.Model, kind_name="a keras.Model")
        self.rates = self._switch_off_dropout()  # id of a layer -> what it would drop
        for layer in self.model._flatten_layers():
            if not isinstance(layer, keras.layers.InputLayer) and layer.compute_dtype not in ("float64", None):
                raise UserError(
                    f"models are compared in float64. Received: Keras layer {path_of(layer)} that computes in "
                    f"{layer.compute_dtype} (policy {layer.dtype_policy.name}). Leave out its dtype or the policy"
                )
        check_output(self.forward(0, training=False), "keras", tensor_kind=tf.Tensor)

    def batch(self, number: int) -> Any:
        """Return samples as the model takes them: channels first if it says so."""
        samples = self.pair.batch(number)
        shape = getattr(self.model, "input_shape", None)
        channels = self.pair.input[-1]
        if isinstance(shape, tuple) and samples.ndim == 4 and shape[1:] != self.pair.input and shape[1] == channels:
            samples = samples.transpose(0, 3, 1, 2)
        return tf.constant(samples)

    def forward(self, number: int, *, training: bool) -> Any:
        """Return the output of a batch."""
        with users_code("keras_model()'s call", self.pair.place):
            return self.model(self.batch(number), training=training)

    def _switch_off_dropout(self) -> dict[int, float]:
        rates, inner = dict[int, float](), set[int]()
        for layer in self.model._flatten_layers():
            if id(layer) in inner:
                continue
            inner.add(id(getattr(layer, "_dropout_layer", None)))
            for name in ("rate", "drop_path_rate", "drop_prob", "_dropout", "dropout", "recurrent_dropout"):
                rate = getattr(layer, name, None)
                drops = name not in ("rate", "drop_prob") or "drop" in type(layer).__name__.lower()
                if isinstance(rate, float) and drops and rate > 0:
                    rates[id(layer)] = rate
                    setattr(layer, name, 0.0)
        return rates


def use_fast_grouped_convolutions() -> None:
    """Let Keras compute convolutions with groups without XLA, which compiles them again at every call: 1 s each."""
    keras.src.backend.nn.conv = _conv


def _conv(
    inputs: Any,
    kernel: Any,
    strides: int | Sequence[int] = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: int | Sequence[int] = 1,
) -> Any:
    """Take the arguments of `keras.src.backend.tensorflow.nn.conv`, and return its result."""
    groups, (channels_each, outputs) = inputs.shape[-1] // kernel.shape[-2], kernel.shape[-2:]
    fits = len(inputs.shape) == 4 and keras.src.backend.standardize_data_format(data_format) == "channels_last"
    if not fits or groups == 1 or padding.upper() not in ("SAME", "VALID"):
        return _original(inputs, kernel, strides, padding, data_format, dilation_rate)
    stride, dilation = (tuple(n) if isinstance(n, Sequence) else (n, n) for n in (strides, dilation_rate))
    is_square = stride[0] == stride[1] and 1 in (stride[0], max(dilation))
    kernel = tf.convert_to_tensor(kernel)
    if channels_each == 1 and outputs == groups and is_square:
        turned = tf.transpose(kernel, (0, 1, 3, 2))
        return tf.nn.depthwise_conv2d(inputs, turned, (1, *stride, 1), padding.upper(), dilations=dilation)
    parts = zip(tf.split(inputs, groups, -1), tf.split(kernel, groups, -1), strict=True)
    return tf.concat([tf.nn.convolution(x, k, stride, padding.upper(), dilations=dilation) for x, k in parts], -1)
