"""What a rehearsal changes, undone.

The first update and the first batch of an evaluation do work that is done once: graphs are built, kernels are chosen,
Horovod agrees on tensors. They are rehearsed in start-up (`Strategy.rehearse`, `Strategy.rehearse_evaluation`), so that
no time of training or evaluation contains it, in neither framework.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from common.model.kept_arrays import KeptArrays


@contextmanager
def undone(strategy: Any) -> Iterator[None]:
    """Undo what the block changes of weights, BatchNorm statistics, optimizer state, loss scale and generators.

    All of them are variables. What a strategy counts is its own to undo.
    """
    variables = [*strategy.model.variables, *strategy.optimizer.variables, *strategy.kept().values()]
    before = KeptArrays(variable.numpy() for variable in variables)
    if hasattr(strategy.optimizer, "dynamic_scale"):  # so small that no overflow leaves the update out
        strategy.optimizer.dynamic_scale.assign(1.0)
    yield
    for variable, array in zip(variables, before.take(), strict=True):
        variable.assign(array)
