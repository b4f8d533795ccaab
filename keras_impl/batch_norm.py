"""Batch normalization with PyTorch's running statistics, as a Keras 3 layer.

Both frameworks normalize a training batch by its mean and its biased variance (divided by n), and an inference batch by
the running statistics. They differ in what they remember: Keras averages the biased variance, PyTorch the unbiased one
(divided by n - 1). Their defaults differ too: decay 0.99 and epsilon 1e-3 in Keras, 0.9 and 1e-5 in PyTorch.

Source: https://pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html
"""

import math
from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="horovod_twins")
class BatchNormalization(keras.layers.BatchNormalization):
    """`torch.nn.BatchNorm1d/2d/3d` in Keras' layout.

    In training, with mean and variance over all axes but `axis`, n values per channel and decay `momentum`:

        y = (x - mean) / sqrt(variance + epsilon) * gamma + beta
        moving_mean     <- momentum moving_mean     + (1 - momentum) mean
        moving_variance <- momentum moving_variance + (1 - momentum) variance n / (n - 1)

    A layer that is not trainable runs in inference mode, as in Keras; so does a `frozen` one, whose gamma and beta
    learn on. Statistics are those of the local batch.

    PyTorch's `momentum` is 1 minus this one. Inputs are `(batch, ..., channels)` for the default axis, of any rank from
    2 and floating dtype; outputs have their shape, in the layer's compute dtype.

    Raises:
        ValueError: for `renorm` or `synchronized`, for a mask, and for a training batch known to hold one value per
            channel (PyTorch refuses it as well). Where the batch size is unknown in advance, it gives NaN statistics.
    """

    def __init__(self, axis: int = -1, momentum: float = 0.9, epsilon: float = 1e-5, **kwargs: Any) -> None:
        for name in ("renorm", "synchronized"):
            if kwargs.get(name):
                raise ValueError(f"`{name}` has no counterpart in PyTorch's layer. Received: {name}={kwargs[name]}")
        super().__init__(axis=axis, momentum=momentum, epsilon=epsilon, **kwargs)
        self.frozen = False

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Return the normalized batch; in training, update the running statistics. A mask is not supported."""
        if mask is not None:
            raise ValueError("PyTorch's batch normalization takes no mask. Received a mask for the layer's input.")
        if not (training and self.trainable) or self.frozen:
            return super().call(inputs, training=False)

        # float16 would overflow in the sums; float64 stays what it is.
        x = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        mean, variance = ops.moments(x, axes=self._reduction_axes)
        self._remember(self.moving_mean, mean)
        self._remember(self.moving_variance, variance * _bessel_correction(x, axes=self._reduction_axes))
        y = ops.batch_normalization(
            x,
            mean,
            variance,
            axis=self.axis,
            offset=None if self.beta is None else ops.cast(self.beta, x.dtype),
            scale=None if self.gamma is None else ops.cast(self.gamma, x.dtype),
            epsilon=self.epsilon,
        )
        return ops.cast(y, self.compute_dtype)

    def _remember(self, running: Any, batch_value: Any) -> None:
        batch_value = ops.cast(batch_value, running.dtype)
        running.assign(self.momentum * running + (1.0 - self.momentum) * batch_value)


def freeze_batch_norm(model: keras.Model) -> bool:
    """Let all layers of this kind run in inference mode from now on; return whether any of them did not before."""
    layers = [layer for layer in model.layers if isinstance(layer, BatchNormalization) and not layer.frozen]
    for layer in layers:
        layer.frozen = True
    return bool(layers)


def _bessel_correction(x: Any, *, axes: list[int]) -> Any:
    """n / (n - 1) for the n values per channel: a float where the shape is known, else a scalar tensor of x's dtype."""
    sizes = [ops.shape(x)[axis] for axis in axes]
    if all(isinstance(size, int) for size in sizes):
        n = math.prod(sizes)
        if n == 1:
            raise ValueError(f"Training needs more than one value per channel. Received: input shape {tuple(x.shape)}")
        return n / (n - 1)
    n = ops.cast(ops.prod(ops.stack(sizes)), x.dtype)
    return n / (n - 1.0)
