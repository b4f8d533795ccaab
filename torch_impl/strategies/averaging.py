"""`--strategy averaging`: each rank updates its own weights, which are averaged at the end of every interval."""

from collections.abc import Iterator

import torch

from common.measurement.exchange_meter import ExchangeMeter
from common.run_folder.checkpoints import PartialEpoch
from torch_impl import distributed
from torch_impl.strategies.strategy import Strategy
from torch_impl.weights import SLOTS


class Averaging(Strategy):
    """Gradients are averaged before an update in warm-up; later, weights after it."""

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        with self.meter.undone():
            for step in self.task.averaging.rehearsed:
                self._first_step = step
                yield

    def before_update(self) -> None:
        """Average the gradients, in warm-up."""
        if self.steps_done < self.config.strategy.warmup_allreduce:
            self._average(self.gradients(), name="gradients", meter=self.meter)

    def after_update(self) -> None:
        """Average the weights, at the end of an interval."""
        if self.task.averaging.averages_after(self.steps_done + 1):
            averaged = self._all_weights()
            if self.config.strategy.average_state:
                states = [self.optimizer.state.get(weight, {}) for weight in self.model.parameters()]
                averaged += [state[slot] for state in states for slot in SLOTS if state.get(slot) is not None]
            self._average(averaged, name="weights", meter=self.meter)

    def end_epoch(self) -> PartialEpoch:
        """Keep this rank's own weights, where they differ, and load their average.

        In the warm-up only BatchNorm's statistics differ, and their average stays, as with all-reduce.
        """
        step = self.task.steps_after(self.epoch)
        own = self.own_state(step)
        if own.weights:
            self._average(self._all_weights(), name="copy")
        elif self.task.averaging.is_warm_up(step):
            return super().end_epoch()
        return own

    def _average(self, values: list[torch.Tensor], *, name: str, meter: ExchangeMeter | None = None) -> None:
        weight = self.share.weight
        distributed.average_in_place(values, name=name, config=self.config.device, weight=weight, meter=meter)

    def _all_weights(self) -> list[torch.Tensor]:
        """Return all weights and BatchNorm statistics, without BatchNorm's count of batches."""
        return [tensor for tensor in self.model.state_dict().values() if tensor.is_floating_point()]
