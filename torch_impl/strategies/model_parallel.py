"""What models that several ranks hold together have in common (`--strategy layers` and `split`)."""

from torch_impl import distributed
from torch_impl.strategies.strategy import Strategy


class ModelParallel(Strategy):
    """Ranks that hold the same part, of other copies of the model, average their gradients."""

    def before_update(self) -> None:
        """Average the gradients over the copies of the model."""
        if self.comm.part_group is None:
            return
        gradients = self.gradients()
        averages = distributed.average_gradients(
            gradients, config=self.config, group=self.comm.part_group, meter=self.meter
        )
        for gradient, average in zip(gradients, averages, strict=True):
            gradient.copy_(average)
