"""Strategies that count their updates and what is exchanged for them."""

from collections.abc import Iterator

from common.distributed.communicator import Communicator
from common.task.task import Task
from keras_impl.exchange_meter import ExchangeMeter
from keras_impl.strategies.strategy import Strategy


class Metered(Strategy):
    """Has a meter.

    Args:
        times: whether exchanges are timed, as of `ExchangeMeter`.
    """

    def __init__(self, task: Task, *, comm: Communicator, device: str, times: bool = True) -> None:
        super().__init__(task, comm=comm, device=device)
        self.meter = ExchangeMeter(times=times)

    def rehearsals(self) -> Iterator[None]:
        """Yield for each update to be rehearsed, then undo what these changed of this strategy."""
        with self.meter.undone():
            yield

    def after_update(self) -> None:
        """Count the update."""
        self.meter.count_update()
