"""When `--strategy averaging` averages the weights, and what differs between ranks in the meantime."""

from dataclasses import dataclass
from typing import Any

from common.config import StrategyConfig


@dataclass(frozen=True)
class AveragingPlan:
    """The updates of a run, counted from 1; with one rank, and with every other strategy, no weights are averaged."""

    config: StrategyConfig
    size: int
    steps_per_epoch: int

    def averages_after(self, step: Any) -> Any:
        """Return whether weights are averaged after an update: an int, or a tensor of one."""
        return self._is_local(step) & (step % self.interval == 0)

    def weights_differ_after(self, step: int) -> bool:
        """Return whether the ranks hold different weights after an update."""
        return bool(self._is_local(step) & (step % self.interval != 0))

    def is_warm_up(self, step: int) -> bool:
        """Return whether an update is made from the average of all ranks' gradients, before weights are averaged."""
        return self.size > 1 and step <= self.config.warmup_allreduce

    def optimizers_differ_after(self, step: int) -> bool:
        """Return whether the ranks hold different states of the optimizer after an update."""
        if self.config.adasum:  # combines updates, each of which was made from a rank's own gradients
            return self.size > 1
        return self.weights_differ_after(step) or (not self.config.average_state and bool(self._is_local(step)))

    @property
    def rehearsed(self) -> tuple[int, int]:
        """Two updates, counted from 0, that exchange all that any update does: the first one, and one that averages."""
        first_average = (self.config.warmup_allreduce // self.interval + 1) * self.interval
        return 0, first_average - 1

    def _is_local(self, step: Any) -> Any:
        """Return whether each rank makes an update from its own gradients."""
        return self.config.strategy == "averaging" and self.size > 1 and step > self.config.warmup_allreduce

    @property
    def interval(self) -> int:
        """Updates from one averaging to the next."""
        return self.config.average_every if isinstance(self.config.average_every, int) else self.steps_per_epoch
