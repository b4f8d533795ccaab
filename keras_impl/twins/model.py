"""A Keras model in float64, without dropout."""

from typing import Any

import keras
import tensorflow as tf

from common.errors import UserError
from common.twins.contract import Pair, check_output, users_code
from keras_impl.twins.kernels import path_of


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
