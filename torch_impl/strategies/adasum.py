"""`--adasum`: what the ranks' updates are combined to gives all of them the same weights again."""

from torch_impl import distributed
from torch_impl.strategies.strategy import Strategy


class Adasum(Strategy):
    """Each rank updates its own weights from its own gradients, and Adasum combines the updates."""

    def before_update(self) -> None:
        """Keep the weights."""
        self._before = [weight.detach().clone() for weight in self.model.parameters()]

    def after_update(self) -> None:
        """Combine what the ranks have added to the weights."""
        weights = [weight.detach() for weight in self.model.parameters()]
        updates = [weight - before for weight, before in zip(weights, self._before, strict=True)]
        combined = distributed.combine_updates(updates, meter=self.meter)
        for weight, before, update in zip(weights, self._before, combined, strict=True):
            weight.copy_(before + update)
