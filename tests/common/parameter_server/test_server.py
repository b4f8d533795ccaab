"""The learning rates of a server's updates, with a list of frames in place of MPI."""

from typing import Any

import numpy as np
import pytest

from common.config import OptimizerConfig
from common.parameter_server import server
from common.parameter_server.messages import CALL, HAS_GRADIENT, PUSH, Frame, Opening
from common.parameter_server.server import Server

RATES = np.array([8.0, 4.0, 2.0, 1.0])  # of four global batches


class Messages:
    """What workers have sent, in place of the world."""

    def __init__(self):
        self.waiting: list[tuple[int, int, Any]] = []  # tag, source, content

    def arrived(self, world, *, tag, source=None):
        return self.waiting[0][1] if self.waiting and self.waiting[0][0] == tag else None

    def recv(self, *, source, tag):
        return self.waiting.pop(0)[2]

    def Recv(self, buffer, *, source, tag):  # noqa: N802 - MPI's name
        buffer[:] = self.waiting.pop(0)[2]

    def Send(self, buffer, *, dest, tag):  # noqa: N802 - MPI's name
        pass


def rates_of_pushes(monkeypatch, pushes, *, is_synchronous=False, batches=0):
    """Return the learning rate that a server gives each push of a worker, which sums so many batches."""
    messages = Messages()
    monkeypatch.setattr(server, "arrived", messages.arrived)
    opening = Opening(
        optimizer=OptimizerConfig(momentum=0.0),
        is_synchronous=is_synchronous,
        lead=None,
        learning_rates=RATES,
        weights=np.zeros(1),
        slots={},
        updates=0,
        batches=batches,
    )
    messages.waiting.append((CALL, 0, ("open", opening)))
    for worker, summed in pushes:
        frame = Frame(1, np.float64)
        frame.header[:] = 0, HAS_GRADIENT, summed
        frame.vector[:] = -1.0
        messages.waiting.append((PUSH, worker, frame.buffer))
    tested = Server(messages, workers=2)
    tested.answer_next()
    weights = [0.0]
    while messages.waiting:
        tested.answer_next()
        weights.append(float(tested.weights[0]))
    return np.diff(weights).tolist()


IN_TURNS = [(number % 2, 1) for number in range(8)]


@pytest.mark.parametrize(
    ("pushes", "options", "rates"),
    [
        # Each gradient is half a global batch of two workers.
        ([*IN_TURNS, (0, 1), (1, 1)], {}, [8, 8, 4, 4, 2, 2, 1, 1, 1, 1]),
        # The sum of several gradients counts as many batches.
        ([(0, 4), (1, 2), (0, 1), (1, 1)], {}, [8, 2, 1, 1]),
        # A resumed run goes on where its batches ended.
        ([(0, 2), (1, 2)], {"batches": 4}, [2, 1]),
        # In step, one gradient of each worker is a global batch.
        (IN_TURNS, {"is_synchronous": True}, [0, 8, 0, 4, 0, 2, 0, 1]),
    ],
)
def test_each_push_has_the_learning_rate_of_the_batches_before_it(monkeypatch, pushes, options, rates):
    assert rates_of_pushes(monkeypatch, pushes, **options) == rates
