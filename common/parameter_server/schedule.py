"""The schedule of an asynchronous run: which worker had which item, and in which order servers took their messages.

Rank 0 writes it whenever all workers have met. The computation of a worker depends on its items and on the weights it
fetched alone, so that whoever repeats the schedule gets the same weights bit for bit (`--replay RUN`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from common.errors import UserError
from common.model.weights import Weights, load_weights, save_weights

SCHEDULE_FILE = "schedule.safetensors"


@dataclass
class Schedule:
    """What has happened up to the last meeting.

    Attributes:
        workers: of each item.
        sources: of each server, the workers whose messages it took, in this order.
        staleness: of each server, the updates between fetch and push of each message; -1: it had no gradient.
        meetings: for each meeting the items done before it, and the messages that each server had taken.
    """

    servers: int
    workers: list[int] = field(default_factory=list)
    sources: list[list[int]] = field(default_factory=list)
    staleness: list[list[int]] = field(default_factory=list)
    meetings: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sources = self.sources or [[] for _ in range(self.servers)]
        self.staleness = self.staleness or [[] for _ in range(self.servers)]

    def add_meeting(self, logs: Sequence[Sequence[tuple[int, int]]], workers: Sequence[int]) -> None:
        """Add a segment.

        Args:
            logs: of each server, source and staleness of each message since the meeting before.
            workers: of each item of the segment.
        """
        self.workers += workers
        for server, log in enumerate(logs):
            self.sources[server] += [source for source, _ in log]
            self.staleness[server] += [staleness for _, staleness in log]
        self.meetings.append((len(self.workers), *map(len, self.sources)))

    def until(self, item: int) -> "Schedule":
        """Return the part before an item, at which all workers met.

        Raises:
            UserError: they did not.
        """
        taken = next((counts for items, *counts in self.meetings if items == item), None)
        if item and taken is None:
            raise UserError(
                f"the schedule does not reach the checkpoint. Received: {len(self.workers)} items, of which "
                f"{item} are in the checkpoint. Start a new run"
            )
        counts = taken or [0] * self.servers
        return Schedule(
            self.servers,
            self.workers[:item],
            [list(sources[:count]) for sources, count in zip(self.sources, counts, strict=True)],
            [list(staleness[:count]) for staleness, count in zip(self.staleness, counts, strict=True)],
            [meeting for meeting in self.meetings if meeting[0] <= item],
        )

    def sources_after(self, item: int) -> list[list[int]]:
        """Return of each server the workers whose messages it took after an item, at which all workers met."""
        done = self.until(item).sources
        return [sources[len(before) :] for sources, before in zip(self.sources, done, strict=True)]

    @property
    def updates(self) -> int:
        """The number of gradients that each server took: with `--push-every` one may be of several items."""
        return sum(one >= 0 for one in self.staleness[0])

    def staleness_histogram(self) -> dict[str, int]:
        """Return the updates between fetch and push -> pushes, counted at every server."""
        counts = Counter(one for staleness in self.staleness for one in staleness if one >= 0)
        return {str(staleness): counts[staleness] for staleness in sorted(counts)}

    def most_ahead(self, workers: int) -> int:
        """Return the most steps that a worker was ahead of the slowest when it started one; meetings begin anew."""
        most, first = 0, 0
        for items, *_ in self.meetings:
            drawn = [0] * workers
            for worker in self.workers[first:items]:
                drawn[worker] += 1
                most = max(most, drawn[worker] - max(1, min(drawn)))
            first = items
        return most

    def save(self, folder: Path) -> None:
        """Write the schedule into a run folder, atomically.

        Raises:
            OSError: full disk, missing permission.
        """
        arrays: Weights = {
            "workers": np.array(self.workers, np.int32),
            "meetings": np.array(self.meetings, np.int64).reshape(-1, 1 + self.servers),
        }
        for server in range(self.servers):
            arrays[f"sources.{server}"] = np.array(self.sources[server], np.int32)
            arrays[f"staleness.{server}"] = np.array(self.staleness[server], np.int32)
        save_weights(folder / SCHEDULE_FILE, arrays)


def load_schedule(folder: Path) -> Schedule:
    """Return the schedule in a run folder.

    Raises:
        UserError: it has none, or it is damaged.
    """
    if not (folder / SCHEDULE_FILE).exists():
        raise UserError(
            f"there is no schedule in this folder. Received: {folder}. Name a run of servers with --staleness other "
            "than 0"
        )
    arrays = load_weights(folder / SCHEDULE_FILE)
    servers = sum(name.startswith("sources.") for name in arrays)
    return Schedule(
        servers,
        arrays["workers"].tolist(),
        [arrays[f"sources.{server}"].tolist() for server in range(servers)],
        [arrays[f"staleness.{server}"].tolist() for server in range(servers)],
        [tuple(meeting) for meeting in arrays["meetings"].tolist()],
    )
