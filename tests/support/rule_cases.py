"""The cases on which update rules and batch normalization are compared: settings and data, in NumPy."""

import dataclasses
from typing import Any

import numpy as np

STEPS = 50
HALF = 25


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerCase:
    """One optimizer with settings.

    Attributes:
        rule: its name in `reference_rules`.
        base_lr: learning rate after warm-up.
        settings: keyword arguments of the torch optimizer (and of the reference) beside the learning rate.
    """

    rule: str
    base_lr: float
    settings: dict[str, Any]

    def keras_settings(self):
        """`settings` under Keras' names."""
        settings = {{"alpha": "rho", "eps": "epsilon"}.get(name, name): value for name, value in self.settings.items()}
        if "betas" in settings:
            settings["beta_1"], settings["beta_2"] = settings.pop("betas")
        return settings

    def learning_rates(self):
        """One rate a step: ten steps of warm-up, then a slow decay with one sharp drop."""
        warm_up = [self.base_lr * (step + 1) / 10 for step in range(10)]
        decay = [self.base_lr * 0.97**step * (0.1 if step >= 25 else 1.0) for step in range(STEPS - 10)]
        return warm_up + decay


# The settings of each case, whose name begins with its rule.
_SETTINGS = {
    "sgd": {},
    "sgd_decay": {"weight_decay": 0.3},
    "sgd_momentum": {"momentum": 0.9},
    "sgd_momentum_decay": {"momentum": 0.9, "weight_decay": 0.3},
    "sgd_nesterov": {"momentum": 0.9, "nesterov": True},
    "sgd_nesterov_decay": {"momentum": 0.8, "nesterov": True, "weight_decay": 0.3},
    "adam": {},
    # An epsilon of the size of the gradients shows on which side of the root and of the correction it is added.
    "adam_settings": {"betas": (0.8, 0.95), "eps": 0.1, "weight_decay": 0.3},
    "adamw": {},
    "adamw_settings": {"eps": 0.1, "weight_decay": 0.3},
    "rmsprop": {},
    "rmsprop_settings": {"alpha": 0.9, "eps": 0.1, "weight_decay": 0.3},
}
OPTIMIZER_CASES = {
    name: OptimizerCase(rule=rule, base_lr=0.02 if rule == "rmsprop" else 0.1, settings=settings)
    for name, settings in _SETTINGS.items()
    for rule in name.split("_")[:1]
}
# The problem, the same in all cases, of a matrix and a vector: minimize the sum of `curvature / 2 * w^2 - push * w`,
# where `push` changes from step to step.
_DRAW, _SHAPES = np.random.default_rng(2024), [(3, 4), (5,)]
START = [_DRAW.normal(size=shape) for shape in _SHAPES]
CURVATURE = [_DRAW.uniform(0.1, 2.0, size=shape) for shape in _SHAPES]
PUSH = [_DRAW.normal(size=(STEPS, *shape)) for shape in _SHAPES]


def gradients(parameters, step):
    """Gradients at `parameters`, in whatever arrays those are; so that every error grows into the next step."""
    return [c * w - p[step] for c, w, p in zip(CURVATURE, parameters, PUSH, strict=True)]


BATCH_NORM_SHAPES = {"dense": (8, 5), "image": (4, 3, 2, 6), "one_dimensional": (6, 7, 3)}
BATCH_NORM_STEPS = 4
BATCH_NORM_SETTINGS = {"default": (0.9, 1e-5), "changed": (0.6, 1e-2)}
"""Decay of the running statistics and epsilon."""
BATCH_NORM_CASES = {
    f"{kind}/{name}": (kind, *setting) for kind in BATCH_NORM_SHAPES for name, setting in BATCH_NORM_SETTINGS.items()
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchNormData:
    """Inputs x and weights of the outputs in the loss (BATCH_NORM_STEPS, *shape); the rest (channels,)."""

    x: np.ndarray
    output_gradient: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    running_mean: np.ndarray
    running_variance: np.ndarray


def batch_norm_data(kind):
    """Data with channels last, far from mean 0 and variance 1, scales and shifts included."""
    draw = np.random.default_rng(7)
    shape = BATCH_NORM_SHAPES[kind]
    channels = shape[-1]
    return BatchNormData(
        x=draw.normal(1.5, 2.0, size=(BATCH_NORM_STEPS, *shape)),
        output_gradient=draw.normal(size=(BATCH_NORM_STEPS, *shape)),
        gamma=draw.uniform(0.5, 2.0, size=channels),
        beta=draw.normal(size=channels),
        running_mean=draw.normal(size=channels),
        running_variance=draw.uniform(0.5, 2.0, size=channels),
    )
