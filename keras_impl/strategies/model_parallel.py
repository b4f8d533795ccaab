"""Models that several ranks hold together: those that hold the same part, of other copies, average their gradients."""

from collections.abc import Sequence

import tensorflow as tf

from keras_impl import distributed
from keras_impl.strategies.strategy import Strategy


class ModelParallel(Strategy):
    """What `Layers` and `Split` have in common."""

    def before_update(self, gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the averages over the copies of the model."""
        group = self.comm.part_group
        if group is None:
            return gradients
        return distributed.average_gradients(gradients, config=self.task.config.device, group=group, meter=self.meter)
