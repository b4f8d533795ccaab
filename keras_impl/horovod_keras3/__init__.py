"""Horovod for Keras 3: an optimizer that averages gradients over the ranks, callbacks and checks. See README.md.

A package of its own, which imports nothing else of this project: `make horovod-keras3` makes a wheel of it.
"""

from . import requirements  # noqa: F401 - raises first where something is missing
from .callbacks import (
    BroadcastCallback,
    MetricAverageCallback,
    RanksDifferError,
    check_same_weights,
    equal_batches,
)
from .optimizer import DistributedOptimizer, check_compiled_model

__all__ = [
    "BroadcastCallback",
    "DistributedOptimizer",
    "MetricAverageCallback",
    "RanksDifferError",
    "check_compiled_model",
    "check_same_weights",
    "equal_batches",
]
