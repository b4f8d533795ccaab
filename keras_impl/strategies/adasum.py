"""`--adasum`: each rank makes an update, and what these are combined to gives all the same weights again."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from keras_impl import distributed
from keras_impl.strategies.allreduce import AllReduce
from keras_impl.strategies.strategy import Strategy


class Adasum(AllReduce):
    """Combines updates in place of gradients; each rank has an optimizer state of its own."""

    def wrap(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        """Take the optimizer as it is: it learns from this rank's gradients."""
        Strategy.wrap(self, model, optimizer)

    def _apply(self, gradients: Sequence[tf.Tensor]) -> None:
        weights = self.model.trainable_variables
        before = [tf.convert_to_tensor(weight.value) for weight in weights]
        super()._apply(gradients)
        updates = [weight.value - old for weight, old in zip(weights, before, strict=True)]
        combined = distributed.combine_updates(updates, meter=self.meter)
        for weight, old, update in zip(weights, before, combined, strict=True):
            weight.assign(old + update)
