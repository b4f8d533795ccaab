"""`--adasum`: what the ranks' updates are combined to gives all of them the same weights again."""

from collections.abc import Sequence

import tensorflow as tf

from keras_impl import distributed
from keras_impl.strategies.strategy import Strategy


class Adasum(Strategy):
    """Each rank updates its own weights from its own gradients, and Adasum combines the updates."""

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Update the weights, then combine what the ranks have added to them, in a graph."""
        weights = self.model.trainable_variables
        before = [tf.convert_to_tensor(weight.value) for weight in weights]
        super().apply(gradients)
        updates = [weight.value - old for weight, old in zip(weights, before, strict=True)]
        combined = distributed.combine_updates(updates, meter=self.meter)
        for weight, old, update in zip(weights, before, combined, strict=True):
            weight.assign(old + update)
