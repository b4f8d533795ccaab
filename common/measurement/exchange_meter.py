"""A worker's count of what it exchanges in its updates, and of the time that takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from common.measurement.timing import Timer


@dataclass(kw_only=True)
class ExchangeMeter(Timer):
    """Counts from its creation; its seconds are those spent exchanging, waiting for others included.

    Attributes:
        updates: of this worker, one per batch.
        sent_bytes, received_bytes: of all of them together.
    """

    updates: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def send(self, count: int) -> None:
        """Count bytes that are handed over."""
        self.sent_bytes += count

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Forget what the block counts."""
        before = replace(self)
        yield
        vars(self).update(vars(before))
