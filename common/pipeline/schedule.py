"""The order in which a stage computes the forward and backward passes of its microbatches."""

from dataclasses import dataclass
from typing import Literal

PipelineSchedule = Literal["gpipe", "1f1b"]


@dataclass(frozen=True)
class Operation:
    """The forward or the backward pass of one microbatch of an update."""

    is_forward: bool
    microbatch: int


def operations(schedule: PipelineSchedule, *, stage: int, stages: int, microbatches: int) -> list[Operation]:
    """Return what a stage computes in an update, in its order.

    gpipe (Huang et al., arXiv 1811.06965) holds the activations of all microbatches before the first backward pass,
    1f1b (Narayanan et al., PipeDream, arXiv 1806.03377) at most of as many as stages follow, and of one more.
    """
    ahead = microbatches if schedule == "gpipe" else min(stages - stage, microbatches)
    order = [Operation(True, number) for number in range(ahead)]
    for number in range(microbatches):
        order.append(Operation(False, number))
        if ahead + number < microbatches:
            order.append(Operation(True, ahead + number))
    return order


def most_held(order: list[Operation]) -> int:
    """Return the most microbatches whose activations a stage holds at once."""
    held = most = 0
    for operation in order:
        held += 1 if operation.is_forward else -1
        most = max(most, held)
    return most


def ideal_bubble(*, stages: int, microbatches: int) -> float:
    """Return the part of the time that a stage waits, with even stages and messages that take no time (GPipe)."""
    return (stages - 1) / (microbatches + stages - 1)
