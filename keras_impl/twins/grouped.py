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
