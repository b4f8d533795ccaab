"""The count of exchanges inside a graph."""

from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from keras_impl.exchange_meter import ExchangeMeter  # noqa: E402 - TensorFlow may be missing


class AsTheyAre:
    """A compression that changes nothing."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        return tensor


@pytest.mark.parametrize("times", [True, False])
def test_exchanges_wait_for_each_other_s_tensors_only_where_they_are_timed(times: bool) -> None:
    meter, waits = ExchangeMeter(times=times), []

    def exchange(tensors: list[Any], compression: Any) -> list[Any]:
        sent = [tf.identity(compression.compress(tensor)[0]) for tensor in tensors]
        waits.extend(bool(tensor.op.control_inputs) for tensor in sent)
        return [compression.decompress(tensor, None) for tensor in sent]

    @tf.function
    def step(one: Any, other: Any) -> list[Any]:
        return meter.measure(exchange, [one, other], AsTheyAre)

    for _ in range(3):
        step(tf.zeros(3, tf.float32), tf.zeros((2, 2), tf.float64))
    assert waits == [times, times]
    counted = meter.read()
    assert (counted.sent_bytes, counted.received_bytes) == (3 * 44, 3 * 44)
    assert (counted.seconds > 0) == times
