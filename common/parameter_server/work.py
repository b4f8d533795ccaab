"""Where asynchronous workers get their work from, at server 0: a shared counter, or the record of another run.

An item is one worker's batch of a global batch: item i of a run is part i % workers of update i // workers. A segment
is a range of items, after which all workers meet.
"""

from collections import deque
from collections.abc import Iterator, Sequence


class WorkCounter:
    """Hands out items in their order, and withholds one while its worker would be too far ahead of the slowest.

    Args:
        lead: steps that a worker may be ahead of the slowest; None: any number.

    Attributes:
        workers_of_items: the worker of each item handed out since `meet`, in the order of items.
    """

    def __init__(self, *, workers: int, lead: int | None) -> None:
        self._workers = workers
        self._lead = lead
        self.meet()

    def meet(self) -> None:
        """Start a segment."""
        self.workers_of_items: list[int] = []
        self._waiting: list[int] = []
        self._finished = dict.fromkeys(range(self._workers), -1)  # steps; -1: it has not asked yet

    def ask(self, worker: int, *, first: int, stop: int) -> None:
        """Let a worker, which has finished its last item, wait for the next one of the segment `first` to `stop`."""
        self._first, self._stop = first, stop
        self._finished[worker] += 1
        self._waiting.append(worker)

    def leave(self, worker: int) -> None:
        """Wait no longer for a worker, which draws no more items of this segment."""
        self._finished.pop(worker, None)

    def grants(self) -> Iterator[tuple[int, int | None]]:
        """Yield each waiting worker that may continue, the slowest first, and its item: None if nothing is left."""
        for worker in sorted(self._waiting, key=lambda worker: self._finished[worker]):
            item = self._first + len(self.workers_of_items)
            is_left = item < self._stop
            if is_left and self._is_too_far(worker):
                continue
            self._waiting.remove(worker)
            if is_left:
                self.workers_of_items.append(worker)
            yield worker, item if is_left else None

    def _is_too_far(self, worker: int) -> bool:
        """Return whether the step that a worker would start is more than `lead` ahead of the slowest worker's."""
        if self._lead is None:
            return False
        slowest = max(0, min(self._finished.values()))
        return self._finished[worker] > slowest + self._lead


class RecordedWork:
    """Hands each worker the items that it had in another run.

    Args:
        recorded: the worker of each item of that run.
    """

    def __init__(self, recorded: Sequence[int]) -> None:
        self._recorded = recorded
        self.meet()

    def meet(self) -> None:
        """Start a segment."""
        self.workers_of_items: list[int] = []
        self._items: dict[int, deque[int]] = {}
        self._waiting: list[int] = []

    def ask(self, worker: int, *, first: int, stop: int) -> None:
        """Let a worker wait for its next item, which it gets at once."""
        if not self.workers_of_items:
            self.workers_of_items = list(self._recorded[first:stop])
            for item, owner in enumerate(self.workers_of_items, start=first):
                self._items.setdefault(owner, deque()).append(item)
        self._waiting.append(worker)

    def leave(self, worker: int) -> None:
        """Do nothing: no worker waits for another."""

    def grants(self) -> Iterator[tuple[int, int | None]]:
        """Yield the workers that have asked."""
        while self._waiting:
            worker = self._waiting.pop(0)
            items = self._items.get(worker)
            yield worker, items.popleft() if items else None


Work = WorkCounter | RecordedWork
