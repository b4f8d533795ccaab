"""The learning rate of every step: scaling with the number of ranks, warm-up, decay. Pure functions."""

import math

import numpy as np

from common.config import ScheduleConfig


def scale_factor(lr_scaling: str | None, *, size: int) -> float:
    """Return by how much the learning rate of one rank is multiplied for `size` ranks.

    linear: size (Goyal et al. 2017, arXiv 1706.02677); sqrt: its square root (Krizhevsky 2014, arXiv 1404.5997);
    none: 1. None is linear.
    """
    return {"linear": float(size), "sqrt": math.sqrt(size), "none": 1.0}[lr_scaling or "linear"]


def learning_rates(
    schedule: ScheduleConfig, *, base: float, size: int, steps: int, steps_per_epoch: int, first: int | None = None
) -> np.ndarray:
    """Return (steps,) float64, the learning rate of every step of a run; if `first` is given, only of the first ones.

    Warm-up (Goyal et al. 2017, section 2.2): from `base` in a straight line to base x scale over `warmup_epochs`.
    Decay is counted from the end of the warm-up: cosine = half a period down to 0 after the last step
    (Loshchilov and Hutter 2017, arXiv 1608.03983, without restarts); step = `decay_factor` every `decay_epochs`.
    """
    step = np.arange(steps if first is None else min(first, steps), dtype=np.float64)
    warmup_steps = schedule.warmup_epochs * steps_per_epoch
    scale = scale_factor(schedule.lr_scaling, size=size)
    progress = np.minimum(1.0, (step + 1) / warmup_steps) if warmup_steps > 0 else np.ones_like(step)
    rates = base * (1.0 + (scale - 1.0) * progress)
    after_warmup = np.maximum(0.0, step - warmup_steps)
    if schedule.decay == "cosine":
        rates *= 0.5 * (1.0 + np.cos(np.pi * after_warmup / max(1.0, steps - warmup_steps)))
    elif schedule.decay == "step":
        rates *= schedule.decay_factor ** np.floor(after_warmup / (schedule.decay_epochs * steps_per_epoch))
    return rates
