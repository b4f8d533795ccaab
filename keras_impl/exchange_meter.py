"""`common.measurement.exchange_meter` inside a graph, which counts at every call, not only when it is traced."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from common.measurement import exchange_meter as counted

Exchange = Callable[[list[Any], Any], list[Any]]  # of tensors and a compression


class ExchangeMeter:
    """Counts from its creation.

    Args:
        times: whether exchanges are timed, for which each waits until all its tensors are ready.
    """

    def __init__(self, *, times: bool = True) -> None:
        self._times = times
        self._updates = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._bytes = tf.Variable([0, 0], dtype=tf.int64, trainable=False)  # sent, received
        self._seconds = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def read(self) -> counted.ExchangeMeter:
        """Return what was counted."""
        sent, received = self._bytes.numpy().tolist()
        return counted.ExchangeMeter(
            updates=self.updates, sent_bytes=sent, received_bytes=received, seconds=float(self._seconds)
        )

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Forget what the block counts."""
        variables = (self._updates, self._bytes, self._seconds)
        before = [variable.numpy() for variable in variables]
        yield
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)

    @property
    def updates(self) -> int:
        """Updates that were counted."""
        return int(self._updates)

    def count_update(self) -> None:
        """Count an update."""
        self._updates.assign_add(1)

    def note(self, started: Any, ended: Any) -> None:
        """Add the time between two timestamps."""
        self._seconds.assign_add(ended - started)

    def measure(self, exchange: Exchange, tensors: list[Any], compression: Any) -> list[Any]:
        """Return `exchange(tensors, compression)`; count its bytes and its time."""
        counting = _Counted(compression)
        exchanged = self._timed(exchange, tensors, counting) if self._times else exchange(tensors, counting)
        self._bytes.assign_add([counting.sent_bytes, counting.received_bytes])
        return exchanged

    def _timed(self, exchange: Exchange, tensors: list[Any], compression: Any) -> list[Any]:
        with tf.control_dependencies([tensor for tensor in tensors if tensor is not None]):
            started = tf.timestamp()
        with tf.control_dependencies([started]):
            exchanged = exchange(tensors, compression)
        with tf.control_dependencies([tensor for tensor in exchanged if tensor is not None]):
            self.note(started, tf.timestamp())
        return exchanged


class _Counted:
    """Horovod's hook for compression, which counts the bytes that are handed to Horovod and got back in one call."""

    def __init__(self, compression: Any) -> None:
        self._compression = compression
        self.sent_bytes = self.received_bytes = 0

    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        small, context = self._compression.compress(tensor)
        self.sent_bytes += small.dtype.size * small.shape.num_elements()
        return small, context

    def decompress(self, tensor: tf.Tensor, context: Any) -> tf.Tensor:
        self.received_bytes += tensor.dtype.size * tensor.shape.num_elements()
        return self._compression.decompress(tensor, context)
