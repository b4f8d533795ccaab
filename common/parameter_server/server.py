"""A server: a process that holds a shard of the weights and of the optimizer's state, and no data."""

from collections.abc import Callable
from typing import Any

import numpy as np

from common.parameter_server.messages import (
    ANSWER,
    CALL,
    HAS_GRADIENT,
    PUSH,
    WANTS_WEIGHTS,
    WEIGHTS,
    Frame,
    Opening,
    arrived,
    poll,
)
from common.parameter_server.rules import UpdateRule
from common.parameter_server.work import RecordedWork, Work, WorkCounter

FETCH_ONLY = -1  # in place of a staleness


def serve(world: Any, *, workers: int) -> int:
    """Serve until every worker has said goodbye; return the highest of their exit codes.

    Args:
        world: mpi4py's communicator, in which the workers are first.
    """
    server = Server(world, workers=workers)
    while server.has_workers:
        server.answer_next()
    return server.exit_code


class Server:
    """Takes one message after the other.

    Attributes:
        exit_code: the highest that a worker has said goodbye with.
    """

    def __init__(self, world: Any, *, workers: int) -> None:
        self.exit_code = 0
        self._world = world
        self._workers = workers
        self._gone = 0
        self._at_meeting: set[int] = set()
        self._is_open = False
        self._calls: dict[str, Callable[..., None]] = {
            "open": self._open,
            "ask": self._ask,
            "meet": self._meet,
            "state": self._send_state,
            "goodbye": self._say_goodbye,
        }

    @property
    def weights(self) -> np.ndarray:
        """The shard, once worker 0 has opened: (weights of the shard,)."""
        return self._rule.weights

    @property
    def has_workers(self) -> bool:
        """Whether a worker has not said goodbye."""
        return self._gone < self._workers

    def answer_next(self) -> None:
        """Wait for a message and answer it."""
        poll(self._has_answered)

    def _has_answered(self) -> bool:
        """Answer a message if one has arrived, and return whether one had."""
        # Other workers may be faster than worker 0, which opens.
        caller = None if self._is_open or self._gone else 0
        if (source := arrived(self._world, tag=CALL, source=caller)) is not None:
            name, *arguments = self._world.recv(source=source, tag=CALL)
            self._calls[name](source, *arguments)
        elif (source := self._source_of_push()) is not None:
            self._take_push(source)
        return source is not None

    def _source_of_push(self) -> int | None:
        """Return whose frame to take: any that has arrived, or the next of the run that is replayed; None: wait."""
        if not self._is_open or self._recorded_sources == []:
            return None
        return arrived(self._world, tag=PUSH, source=self._recorded_sources[-1] if self._recorded_sources else None)

    def _open(self, source: int, opening: Opening) -> None:
        self._opening, self._is_open = opening, True
        self._recorded_sources = None if opening.sources is None else list(reversed(opening.sources))
        self._rule = UpdateRule(opening.optimizer, opening.weights.copy(), slots=opening.slots, updates=opening.updates)
        self._batches = opening.batches
        size, dtype = opening.weights.size, opening.weights.dtype
        self._frames = [Frame(size, dtype) for _ in range(self._workers if opening.is_synchronous else 1)]
        self._arrived: set[int] = set()
        self._reply = Frame(size, dtype)
        self._work: Work = (
            WorkCounter(workers=self._workers, lead=opening.lead)
            if opening.workers_of_items is None
            else RecordedWork(opening.workers_of_items)
        )
        self._log: list[tuple[int, int]] = []  # source and staleness of each frame since the last meeting

    def _take_push(self, source: int) -> None:
        frame = self._frames[source if self._opening.is_synchronous else 0]
        self._world.Recv(frame.buffer, source=source, tag=PUSH)
        if self._recorded_sources:
            self._recorded_sources.pop()
        if self._opening.is_synchronous:
            self._average(source)
        else:
            self._update(source, frame)

    def _average(self, source: int) -> None:
        """Do one update once a gradient of each worker has arrived, averaged in the order of ranks."""
        self._arrived.add(source)
        if len(self._arrived) == self._workers:
            self._arrived.clear()
            gradient = self._frames[0].vector.copy()
            for frame in self._frames[1:]:
                gradient += frame.vector
            self._step(gradient / self._workers, batches=self._workers)
            for worker in range(self._workers):
                self._send_weights(worker)

    def _update(self, source: int, frame: Frame) -> None:
        version, flags, batches = map(int, frame.header)
        staleness = FETCH_ONLY
        if flags & HAS_GRADIENT:
            staleness = self._rule.updates - version
            self._step(frame.vector, batches=batches)
        self._log.append((source, staleness))
        if flags & WANTS_WEIGHTS:
            self._send_weights(source)

    def _step(self, gradient: np.ndarray, *, batches: int) -> None:
        """Do one update, made of so many batches of workers; learning rates are those of global batches."""
        rates = self._opening.learning_rates
        self._rule.update(gradient, learning_rate=float(rates[min(self._batches // self._workers, len(rates) - 1)]))
        self._batches += batches

    def _send_weights(self, worker: int) -> None:
        self._reply.header[0] = self._rule.updates
        self._reply.vector[:] = self.weights
        self._world.Send(self._reply.buffer, dest=worker, tag=WEIGHTS)

    def _ask(self, source: int, first: int, stop: int) -> None:
        self._work.ask(source, first=first, stop=stop)
        self._grant()

    def _grant(self) -> None:
        for worker, item in self._work.grants():
            self._world.send(item, dest=worker, tag=ANSWER)

    def _meet(self, source: int) -> None:
        """Send all workers the same weights, once none of them has more to push; and worker 0 what was done."""
        self._work.leave(source)
        self._grant()
        self._at_meeting.add(source)
        if len(self._at_meeting) == self._workers:
            self._at_meeting.clear()
            for worker in range(self._workers):
                self._send_weights(worker)
            self._world.send((self._log, self._work.workers_of_items), dest=0, tag=ANSWER)
            self._log = []
            self._work.meet()

    def _send_state(self, source: int) -> None:
        slots: dict[str, np.ndarray] = self._rule.slots
        self._world.send((slots, self._rule.updates), dest=source, tag=ANSWER)

    def _say_goodbye(self, source: int, code: int) -> None:
        self._gone += 1
        self.exit_code = max(self.exit_code, code)
