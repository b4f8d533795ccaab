"""Ranks without Horovod: one alone, or several as threads that meet in their allgathers."""

import pickle
import threading
from collections import defaultdict

from common.distributed.communicator import Communicator

WAIT_SECONDS = 60.0  # before a test that hangs is ended


def alone():
    """The only rank of a run."""
    return Communicator(rank=0, size=1, local_rank=0, local_size=1, controller="none", allgather=lambda value: [value])


class Meeting:
    """Where ranks meet: an allgather ends when all have called it, or with an error when one never will."""

    def __init__(self, size):
        self.size = size
        self.ended = set()
        self.changed = threading.Condition()
        self.rounds = defaultdict(dict)
        self.calls = [0] * size

    def allgather(self, rank, value):
        with self.changed:
            shared = self.rounds[self.calls[rank]]
            self.calls[rank] += 1
            shared[rank] = pickle.dumps(value)  # what other ranks get is a copy
            self.changed.notify_all()
            self.changed.wait_for(lambda: len(shared) == self.size or self.ended - shared.keys(), WAIT_SECONDS)
            if len(shared) < self.size:
                raise RuntimeError(f"rank {rank} waits, only ranks {sorted(shared)} have come")
            return [pickle.loads(shared[other]) for other in range(self.size)]

    def end(self, rank):
        with self.changed:
            self.ended.add(rank)
            self.changed.notify_all()


def run_ranks(size, work):
    """Call `work` on every rank at the same time; return what each rank returned or raised."""
    meeting = Meeting(size)
    results = [None] * size

    def run(rank):
        try:
            results[rank] = work(
                Communicator(
                    rank=rank,
                    size=size,
                    local_rank=rank,
                    local_size=size,
                    controller="gloo",
                    allgather=lambda value: meeting.allgather(rank, value),
                )
            )
        except BaseException as error:
            results[rank] = error
        finally:
            meeting.end(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_SECONDS)
    assert len(meeting.ended) == size, f"only ranks {sorted(meeting.ended)} of {size} ended"
    return results
