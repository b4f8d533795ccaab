"""What a rehearsal (`RankStrategy.rehearse`) changes, undone."""

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
