"""Grouped convolutions without XLA, which Keras on a CPU compiles again at every call: 1 s each."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

_original = keras.src.backend.nn.conv


def use_fast_grouped_convolutions() -> None:
    """Let Keras compute convolutions with groups as TensorFlow does, in this process."""
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
    channels, channels_each, outputs = inputs.shape[-1], kernel.shape[-2], kernel.shape[-1]
    stride, dilation = (tuple(one) if isinstance(one, Sequence) else (one, one) for one in (strides, dilation_rate))
    fits = len(inputs.shape) == 4 and keras.src.backend.standardize_data_format(data_format) == "channels_last"
    if not fits or channels == channels_each or padding.upper() not in ("SAME", "VALID"):
        return _original(inputs, kernel, strides, padding, data_format, dilation_rate)
    if (
        channels_each == 1
        and outputs == channels
        and len(set(stride)) == 1
        and (max(stride) == 1 or max(dilation) == 1)
    ):
        turned = tf.transpose(tf.convert_to_tensor(kernel), (0, 1, 3, 2))
        return tf.nn.depthwise_conv2d(inputs, turned, (1, *stride, 1), padding.upper(), dilations=dilation)
    groups = channels // channels_each
    parts = zip(tf.split(inputs, groups, -1), tf.split(tf.convert_to_tensor(kernel), groups, -1), strict=True)
    return tf.concat([tf.nn.convolution(x, k, stride, padding.upper(), dilations=dilation) for x, k in parts], -1)
