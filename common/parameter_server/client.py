"""A worker's side: gradients are sent to the servers, weights and work come back."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from common.config import StrategyConfig
from common.distributed.communicator import Communicator
from common.measurement.exchange_meter import ExchangeMeter
from common.parameter_server.messages import (
    ANSWER,
    CALL,
    HAS_GRADIENT,
    PUSH,
    WANTS_WEIGHTS,
    WEIGHTS,
    Frame,
    receive_object,
    shard_bounds,
    wait_for,
)


class Client:
    """Exchanges one flat vector with the servers, each of which holds a part of it.

    Args:
        size: number of weights.
        dtype: theirs.

    Attributes:
        weights: (size,) as they were fetched last.
        meter: counts gradients and weights.
    """

    def __init__(self, strategy: StrategyConfig, *, comm: Communicator, size: int, dtype: DTypeLike) -> None:
        self.weights = np.zeros(size, dtype)
        self.meter = ExchangeMeter()
        self.bounds = shard_bounds(size, servers=comm.servers)
        self._strategy = strategy
        self._world = comm.world
        self._servers = range(comm.size, comm.size + comm.servers)
        self._pushes = [Frame(stop - start, dtype) for start, stop in self.bounds]
        self._replies = [Frame(stop - start, dtype) for start, stop in self.bounds]
        self._accrued = np.zeros(size, dtype)
        self._start_segment()

    def call(self, name: str) -> None:
        """Call every server."""
        for server in self._servers:
            self._world.send((name,), dest=server, tag=CALL)

    def call_each(self, name: str, arguments: Sequence[Any]) -> None:
        """Call every server with an argument of its own."""
        for server, argument in zip(self._servers, arguments, strict=True):
            self._world.send((name, argument), dest=server, tag=CALL)

    def answers(self) -> list[Any]:
        """Return the answer of every server."""
        return [receive_object(self._world, source=server, tag=ANSWER) for server in self._servers]

    def exchange(self, gradient: np.ndarray) -> np.ndarray:
        """Hand over the gradient of one batch; return the weights to compute the next one with.

        With `--push-every` the sum of several is pushed. Both counts begin anew with each segment.

        Args:
            gradient: (size,).

        Returns:
            (size,), which the next exchange overwrites.
        """
        with self.meter.timed():
            self._batches += 1
            self.meter.updates += 1
            if self._strategy.push_every > 1:
                self._accrued += gradient
                gradient = self._accrued
            self._unpushed += 1
            flags = HAS_GRADIENT * (self._unpushed == self._strategy.push_every)
            flags |= WANTS_WEIGHTS * (self._batches % self._strategy.fetch_every == 0)
            self._send(flags, gradient)
        return self.weights

    def items(self, first: int, stop: int) -> Iterator[int]:
        """Yield the items that this worker draws of a segment, each once the one before is done."""
        while True:
            with self.meter.timed():
                self._world.send(("ask", first, stop), dest=self._servers[0], tag=CALL)
                item = receive_object(self._world, source=self._servers[0], tag=ANSWER)
            if item is None:
                return
            yield item

    def meet(self) -> np.ndarray:
        """Wait until no worker has more to push in this segment; return the weights, the same for all workers."""
        with self.meter.timed():
            if self._batches and (self._strategy.push_every > 1 or self._strategy.fetch_every > 1):
                # Also where nothing is left: servers answer a frame after all that were sent before it.
                self._send(WANTS_WEIGHTS | HAS_GRADIENT * (self._unpushed > 0), self._accrued)
            requests = self._receive()
            self.call("meet")
            wait_for(requests)
            self._take_replies()  # which are not counted: they are for the evaluation
            self._start_segment()
        return self.weights

    def _start_segment(self) -> None:
        self._batches = self._unpushed = 0
        self._accrued[:] = 0

    def _send(self, flags: int, gradient: np.ndarray) -> None:
        """Send a frame to each server, and receive the weights if they are wanted."""
        if not flags:
            return
        requests = self._receive() if flags & WANTS_WEIGHTS else []
        for server, (start, stop), frame in zip(self._servers, self.bounds, self._pushes, strict=True):
            frame.header[1:] = flags, self._unpushed
            if flags & HAS_GRADIENT:
                frame.vector[:] = gradient[start:stop]
            requests.append(self._world.Isend(frame.message, dest=server, tag=PUSH))
            self.meter.send(frame.message.nbytes)
        wait_for(requests)
        if flags & HAS_GRADIENT:
            self._accrued[:], self._unpushed = 0, 0
        if flags & WANTS_WEIGHTS:
            self.meter.received_bytes += sum(frame.buffer.nbytes for frame in self._replies)
            self._take_replies()

    def _receive(self) -> list[Any]:
        return [
            self._world.Irecv(frame.buffer, source=server, tag=WEIGHTS)
            for server, frame in zip(self._servers, self._replies, strict=True)
        ]

    def _take_replies(self) -> None:
        for (start, stop), frame, push in zip(self.bounds, self._replies, self._pushes, strict=True):
            self.weights[start:stop] = frame.vector
            push.header[0] = frame.header[0]  # the version that the next gradient belongs to


def say_goodbye(comm: Communicator, *, code: int) -> None:
    """Tell the servers, if there are any, that this worker ends with an exit code."""
    for server in range(comm.size, comm.size + comm.servers):
        comm.world.send(("goodbye", code), dest=server, tag=CALL)
