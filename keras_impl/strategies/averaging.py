"""`--strategy averaging`: each rank updates its own weights, which are averaged at the end of every interval."""

from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf

from common.run_folder.checkpoints import PartialEpoch
from keras_impl import distributed
from keras_impl.exchange_meter import ExchangeMeter
from keras_impl.strategies.strategy import Strategy
from keras_impl.weights import weight_maps


class Averaging(Strategy):
    """Gradients are averaged before an update in warm-up; later, weights after it."""

    def wrap(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        """Take model and optimizer, and remember what is averaged."""
        super().wrap(model, optimizer)
        self._weights = [weight.variable for weight in weight_maps(model, self.spec).values()]
        self._averaged = list(self._weights)
        if self.task.config.strategy.average_state:  # but not its count
            self._averaged += [one for one in optimizer.variables if one.dtype in ("float32", "float64")]

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        with self.meter.undone():
            for step in self.task.averaging.rehearsed:
                self.optimizer.iterations.assign(step)  # undone with all that is changed of the optimizer
                yield

    def before_update(self, gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the average of all ranks' gradients in the warm-up, and after it this rank's own.

        Every rank takes the same branches of the graph, as all count the same updates.
        """
        config = self.task.config
        if not config.strategy.warmup_allreduce:
            return gradients
        averages: Sequence[tf.Tensor] = tf.cond(
            self.optimizer.iterations.value < config.strategy.warmup_allreduce,
            lambda: distributed.average_gradients(
                [one * self.share.weight for one in gradients], config=config.device, meter=self.meter
            ),
            lambda: list(gradients),
        )
        return averages

    def after_update(self) -> None:
        """Average the weights at the end of an interval."""
        tf.cond(
            self.task.averaging.averages_after(tf.convert_to_tensor(self.optimizer.iterations.value)),
            lambda: self._average(self._averaged, name="weights", meter=self.meter),
            lambda: None,
        )

    def end_epoch(self) -> PartialEpoch:
        """Keep this rank's own weights, where they differ, and load their average.

        In the warm-up only BatchNorm's statistics differ, and their average stays, as with all-reduce.
        """
        step = self.task.steps_after(self.epoch)
        own = self.own_state(step)
        if own.weights:
            self._average(self._weights, name="copy")
        elif self.task.averaging.is_warm_up(step):
            return super().end_epoch()
        return own

    def _average(self, variables: Sequence[keras.Variable], *, name: str, meter: ExchangeMeter | None = None) -> None:
        distributed.average_in_place(
            variables, name=name, config=self.task.config.device, weight=self.share.weight, meter=meter
        )
