"""A worker's count of what it exchanges in its updates, and of the time that takes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace


@dataclass
class ExchangeMeter:
    """Counts from its creation.

    Attributes:
        updates: of this worker, one per batch.
        sent_bytes, received_bytes: of all of them together.
        seconds: spent exchanging, waiting for others included.
    """

    updates: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    seconds: float = 0.0

    def send(self, count: int) -> None:
        """Count bytes that are handed over."""
        self.sent_bytes += count

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Forget what the block counts."""
        before = replace(self)
        yield
        vars(self).update(vars(before))

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time of the block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started
