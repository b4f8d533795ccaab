"""`--strategy allreduce`: gradients are averaged before every update."""

import keras

from keras_impl import distributed
from keras_impl.strategies.strategy import Strategy


class AllReduce(Strategy):
    """All ranks hold the same weights at all times."""

    def wrap(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        """Take the model, and the optimizer with gradients averaged before each update."""
        config = self.task.measured_config.device
        super().wrap(model, distributed.wrap_optimizer(optimizer, config=config, meter=self.meter))
