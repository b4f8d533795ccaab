"""What models that several ranks hold together have in common (`--strategy layers` and `split`)."""

from torch_impl import distributed
from torch_impl.strategies.strategy import Strategy


class ModelParallel(Strategy):
    """Ranks that hold the same part, of other copies of the model, average their gradients."""

    def before_update(self) -> None:
        """Average the gradients over the copies of the model."""
        group = self.comm.part_group
        if group is not None:
            distributed.average_gradients(self.gradients(), config=self.config.device, group=group, meter=self.meter)
