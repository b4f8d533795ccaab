"""Messages between the stages of a pipeline, by mpi4py: activations go forward, gradients go back."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.distributed.communicator import Communicator
from common.measurement.exchange_meter import ExchangeMeter
from common.pipeline.schedule import Operation

_FORWARD, _BACKWARD = 0, 1  # tags; messages of one sort arrive in the order in which they were sent


@dataclass(frozen=True)
class Span:
    """When this stage computed a pass: seconds of the clock that all processes of a host share."""

    operation: Operation
    start: float
    end: float


class Links:
    """The messages of one stage.

    Attributes:
        meter: counts the bytes of updates, and the seconds that this stage waited for messages in them.
        spans: of the last update.
    """

    def __init__(self, comm: Communicator, *, dtype: str) -> None:
        self.is_first = comm.part == 0
        self.is_last = comm.part == comm.parts - 1
        self.meter = ExchangeMeter()
        self.spans: Sequence[Span] = ()
        self._world = comm.links
        self._rank = comm.rank
        self._dtype = np.dtype(dtype)
        self._sent: list[tuple[Any, np.ndarray]] = []  # an array must not change before its message has left
        self._spans: list[Span] = []
        self._since = 0.0
        self._in_update = False

    def start(self) -> None:
        """Start an update; messages outside of one are not counted."""
        self._in_update = True
        self._spans = []
        self._since = time.perf_counter()

    def receive_activations(self, shape: Sequence[int]) -> np.ndarray:
        """Return what the stage before computed of the next microbatch, (samples, ...)."""
        return self._receive(shape, source=self._rank - 1, tag=_FORWARD)

    def receive_gradient(self, shape: Sequence[int]) -> np.ndarray:
        """Return the gradient of this stage's outputs for the next microbatch, (samples, ...)."""
        return self._receive(shape, source=self._rank + 1, tag=_BACKWARD)

    def computed(self, operation: Operation, array: np.ndarray | None = None) -> None:
        """Note that a pass has ended, and send its result to the neighbor that goes on with it.

        Args:
            array: activations after a forward pass, the gradient of the inputs after a backward pass; None: no stage
                goes on.
        """
        self._spans.append(Span(operation, self._since, time.perf_counter()))
        if array is not None:
            self.send(array, forward=operation.is_forward)
        self._since = time.perf_counter()

    def send(self, array: np.ndarray, *, forward: bool) -> None:
        """Send an array to the next stage, or back; it is copied, and this stage goes on at once."""
        array = np.array(array, order="C")
        neighbor, tag = (self._rank + 1, _FORWARD) if forward else (self._rank - 1, _BACKWARD)
        self._sent.append((self._world.Isend(array, dest=neighbor, tag=tag), array))
        self.meter.send(array.nbytes * self._in_update)

    def finish(self) -> None:
        """Wait until all messages have left, and end the update if this is one."""
        for request, _ in self._sent:
            request.Wait()
        self._sent.clear()
        if self._in_update:
            self.spans, self._in_update = self._spans, False

    def _receive(self, shape: Sequence[int], *, source: int, tag: int) -> np.ndarray:
        array = np.empty(shape, self._dtype)
        meter = self.meter if self._in_update else ExchangeMeter()
        with meter.timed():
            self._world.Recv(array, source=source, tag=tag)
        meter.received_bytes += array.nbytes
        self._since = time.perf_counter()
        return array
