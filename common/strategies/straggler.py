"""`--slow`: a rank that computes more slowly than it could, to see what that costs each strategy."""

import time
from typing import Any

import numpy as np

from common.config import Straggler
from common.task.task import Task

_STREAM = 2  # of the draws of a seed; 0 and 1 are those of `common.data.sharding`


class Slowdown:
    """Sleeps after the computing of an update, before anything is exchanged.

    Args:
        straggler: how much longer the computing takes, and with which probability.
        seed: from which it is drawn which updates are slow, the same in both frameworks and after a resume.
    """

    def __init__(self, straggler: Straggler, *, seed: int) -> None:
        self.straggler = straggler
        self.seed = seed
        self._step: int | None = None  # until `start_at` is called: an update that is rehearsed is none of the run

    def start_at(self, step: int) -> None:
        """Let the next update be this one of the run, counted from 0."""
        self._step = step

    def is_slow(self, step: int) -> bool:
        """Return whether an update of the run, counted from 0, is slow."""
        seed_sequence = np.random.SeedSequence(entropy=self.seed, spawn_key=(_STREAM, step))
        return float(seed_sequence.generate_state(1, np.uint64)[0]) < self.straggler.probability * 2.0**64

    def computed(self, started: float, *_: Any) -> None:
        """End the computing of the next update, which started at this time (seconds since 1970), by sleeping.

        Further arguments are ignored: they let a graph wait for what was computed.
        """
        if self._step is None:
            return
        if self.is_slow(self._step):
            time.sleep(max(0.0, (time.time() - started) * (self.straggler.factor - 1)))
        self._step += 1


def slowdown_of(task: Task, *, rank: int) -> Slowdown | None:
    """Return what slows a rank down; None: nothing."""
    straggler = task.config.balance.straggler
    if straggler is None or straggler.rank != rank or straggler.factor == 1:
        return None
    return Slowdown(straggler, seed=task.config.training.seed)
