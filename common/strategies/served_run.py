"""One run on parameter servers, as its workers see it: opening, exchanges, segments of drawn work, the schedule."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from common.distributed.communicator import Communicator
from common.errors import UserError, user_errors
from common.measurement.exchange_meter import ExchangeMeter
from common.model.weights import Weights
from common.parameter_server.client import Client
from common.parameter_server.messages import Opening
from common.parameter_server.rules import slot_names
from common.parameter_server.schedule import Schedule, load_schedule
from common.run_folder.sharing import SharingRecord
from common.strategies.sharing import server_record
from common.task.task import Task


class ServedRun:
    """Every worker calls every method, except where worker 0 is named.

    Args:
        first_step: updates of global batches, each of one item per worker, that were done before the run was resumed.
        folder: of the run, on rank 0; None on the others.
        load: gives the model the weights that all workers have after a meeting, (weights,).

    Attributes:
        client: exchanges gradients and weights, once the run is open.
        draws: whether workers draw their work, as they do not wait for each other.

    Raises:
        UserError: the schedule to be replayed, or to be continued, is missing or does not fit; on all ranks.
    """

    client: Client

    def __init__(
        self,
        task: Task,
        *,
        comm: Communicator,
        first_step: int,
        folder: Path | None,
        load: Callable[[np.ndarray], None],
    ) -> None:
        self.draws = task.config.strategy.staleness != 0
        self._task = task
        self._strategy = task.config.strategy
        self._comm = comm
        self._first_step = first_step
        self._folder = folder
        self._load = load
        self._first_item = first_step * comm.size
        self._schedule = Schedule(comm.servers)
        with comm.propagate_errors("reading the schedule"):
            if folder and self.draws and self._first_item:
                self._schedule = load_schedule(folder).until(self._first_item)
            self._recorded = self._read_recorded(task.total_steps * comm.size)

    def _read_recorded(self, items: int) -> Schedule | None:
        replay = self._strategy.replay
        if replay is None:
            return None
        recorded = load_schedule(Path(replay))
        workers = 1 + max(recorded.workers, default=0)
        if recorded.servers != self._comm.servers or workers > self._comm.size or len(recorded.workers) != items:
            raise UserError(
                f"the run to be replayed had {recorded.servers} servers, {workers} workers and {len(recorded.workers)} "
                f"batches. Received: {self._comm.servers} servers, {self._comm.size} workers and {items} batches. "
                "Give all settings of that run"
            )
        return recorded

    def open(self, weights: np.ndarray, optimizer: Weights, *, shapes: dict[str, tuple[int, ...]]) -> None:
        """Give the servers worker 0's weights and optimizer state, and all workers the weights.

        Args:
            weights: (weights,).
            optimizer: "<parameter>.<slot>" -> array.
            shapes: of the parameters that `weights` is made of, in their order.
        """
        self._shapes = shapes
        self.client = Client(self._strategy, comm=self._comm, size=weights.size, dtype=weights.dtype)
        if self._comm.rank == 0:
            staleness, recorded = self._strategy.staleness, self._recorded
            learning_rates = self._task.scaled_learning_rates()
            sources_of_servers = recorded.sources_after(self._first_item) if recorded else [None] * self._comm.servers
            openings = [
                Opening(
                    optimizer=self._task.config.optimizer,
                    is_synchronous=not self.draws,
                    lead=staleness if isinstance(staleness, int) else None,
                    learning_rates=learning_rates,
                    weights=weights[start:stop],
                    slots={slot: vector[start:stop] for slot, vector in self._flat(optimizer).items()},
                    updates=self._schedule.updates if self.draws else self._first_step,
                    batches=self._first_item,
                    sources=sources,
                    workers_of_items=recorded.workers if recorded else None,
                )
                for (start, stop), sources in zip(self.client.bounds, sources_of_servers, strict=True)
            ]
            self.client.call_each("open", openings)
        self._meet()
        self.client.meter = ExchangeMeter()  # which does not count what gives all workers the first weights

    def items(self, first: int, stop: int) -> Iterator[int]:
        """Yield the items that this worker draws of a segment; then meet the other workers.

        Where another run is replayed, its workers may have met more often.
        """
        cuts = [items for items, *_ in self._recorded.meetings if first < items < stop] if self._recorded else []
        for end in (*cuts, stop):
            yield from self.client.items(first, end)
            self._meet()
            first = end

    def _meet(self) -> None:
        self._load(self.client.meet())
        if self._comm.rank == 0:
            logs, workers = zip(*self.client.answers(), strict=True)
            if self.draws and workers[0]:
                self._schedule.add_meeting(logs, workers[0])
                if self._folder:
                    with user_errors("writing the schedule"):
                        self._schedule.save(self._folder)

    def optimizer_state(self) -> Weights:
        """Return "<parameter>.<slot>" -> array, and "step", the number of updates; worker 0 calls this."""
        self.client.call("state")
        shards, updates = zip(*self.client.answers(), strict=True)
        arrays: Weights = {"step": np.array(updates[:1], np.int64)}
        ends = np.cumsum([math.prod(shape) for shape in self._shapes.values()])
        for slot in shards[0]:
            parts = np.split(np.concatenate([shard[slot] for shard in shards]), ends[:-1])
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True):
                arrays[f"{name}.{slot}"] = part.reshape(shape)
        return arrays

    def _flat(self, optimizer: Weights) -> dict[str, np.ndarray]:
        """Return slot -> (weights,) of those slots that the optimizer has."""
        first = next(iter(self._shapes))
        slots = [slot for slot in slot_names(self._task.config.optimizer) if f"{first}.{slot}" in optimizer]
        return {slot: np.concatenate([optimizer[f"{name}.{slot}"].ravel() for name in self._shapes]) for slot in slots}

    def sharing(self) -> SharingRecord:
        """Return what this worker exchanged in its updates; on rank 0 also how stale gradients were."""
        rank, servers = self._comm.rank, self._comm.servers
        schedule = self._schedule if self.draws and rank == 0 else None
        return server_record(self._task, self.client.meter, rank=rank, servers=servers, schedule=schedule)
