"""What the two frameworks are given when they are proven to be twins: models, optimizers, weights and batches.

Made from seeds, so that both make the same, and small, so that a proof takes seconds. Dropout is off: the frameworks
draw its masks from generators of their own.
"""

import math
import zlib
from typing import Any, Literal

import numpy as np

from common.config import ModelConfig, OptimizerConfig, config_from_dict
from common.model.layers import BatchNorm, Dropout
from common.model.specs import ModelSpec, model_spec
from common.model.weights import Weights
from common.task.prepare import prepare
from common.task.schedule import learning_rates
from common.task.task import Task

Dtype = Literal["float32", "float64"]
Mode = Literal["inference", "training"]
DTYPES: tuple[Dtype, ...] = ("float64", "float32")
MODES: tuple[Mode, ...] = ("inference", "training")

# model -> height, width, channels, classes. ResNet's odd sides show where zeros are padded.
IMAGES = {
    "mlp": (28, 28, 1, 10),
    "cnn": (28, 28, 1, 10),
    "simplecnn": (28, 28, 1, 10),
    "dense500": (20, 25, 1, 10),
    "deep": (28, 28, 1, 10),
    "resnet34": (33, 45, 1, 9),
}
SAMPLES = 968
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.0, "learning_rate": 0.05},
    "momentum": {"learning_rate": 0.01},
    "nesterov": {"nesterov": True, "learning_rate": 0.01},
    "weight_decay": {"weight_decay": 0.05, "learning_rate": 0.01},
    "adam": {"optimizer": "adam", "learning_rate": 0.001},
    "adamw": {"optimizer": "adamw", "learning_rate": 0.001, "weight_decay": 0.05},
    "rmsprop": {"optimizer": "rmsprop", "learning_rate": 0.001},
    "mse": {"loss": "mse", "learning_rate": 0.1},  # momentum, on another loss
}
# Strategies whose updates are the same in every run, besides allreduce, on STRATEGY_RANKS ranks.
STRATEGIES: dict[str, dict[str, Any]] = {
    "averaging": {"strategy": "averaging", "average_every": 3},
}
STRATEGY_RANKS = 2
LOSSES = {
    "cross_entropy": (OptimizerConfig(loss="cross_entropy"), ModelConfig()),
    "mse": (OptimizerConfig(loss="mse"), ModelConfig()),
    "mse_sigmoid": (OptimizerConfig(loss="mse"), ModelConfig(output_activation="sigmoid")),
    "mse_softmax": (OptimizerConfig(loss="mse"), ModelConfig(output_activation="softmax")),
}
OUTPUTS_BATCH = 3
GLOBAL_BATCH = 32  # shared by 1, 2 or 4 ranks
BATCH_NORM_BATCH = 8  # of each rank: BatchNorm sees a rank's batch, so more ranks are another computation
BATCH_NORM_RATE = 0.1  # times the learning rate: batches that small bear smaller steps
SCHEDULE_RANKS = 4  # the learning rate goes up and down as on 4 ranks, however many train
SCHEDULE_SHARE = 0.8  # of the schedule is trained: at its very end the rate is so small that no update shows
LONGEST_WARMUP = 10  # updates


def make_spec(model: str) -> ModelSpec:
    """Return the model for its images."""
    height, width, channels, classes = IMAGES[model]
    return model_spec(model, input_shape=(channels, height, width), outputs=classes)


def has_batch_norm(model: str) -> bool:
    """Return whether a model normalizes over the batch."""
    return make_spec(model).holds(BatchNorm)


def has_dropout(model: str) -> bool:
    """Return whether dropout had to be switched off in a model."""
    return make_spec(model).holds(Dropout)


def random_weights(spec: ModelSpec) -> Weights:
    """Return float64 weights with nothing left at its first value: scales, shifts and running statistics too."""
    weights = {}
    for weight in spec.weights:
        generator = np.random.default_rng(zlib.crc32(weight.name.encode()))
        if weight.name.endswith("running_var") or weight.initializer == "ones":
            weights[weight.name] = generator.uniform(0.5, 1.5, weight.shape)
        else:
            fan_in = math.prod(weight.shape[1:])
            weights[weight.name] = generator.normal(0.0, max(1, fan_in) ** -0.5, weight.shape)
    return weights


def random_batch(spec: ModelSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return images (batch, height, width, channels) float64 and labels (batch,) int64."""
    channels, height, width = spec.input_shape
    generator = np.random.default_rng(5)
    images = generator.normal(size=(OUTPUTS_BATCH, height, width, channels))
    return images, generator.integers(0, spec.outputs, OUTPUTS_BATCH)


def make_task(
    model: str, optimizer: str, *, dtype: Dtype, updates: int, size: int, strategy: str = "allreduce"
) -> tuple[Task, np.ndarray]:
    """Return a training of `size` ranks and its learning rates.

    Every update is an epoch of its own, so that losses and weights can be asked for after each.

    Args:
        size: number of ranks; divides GLOBAL_BATCH.
        strategy: allreduce, or one of STRATEGIES.

    Returns:
        The task, and (updates,) float64 learning rates, which go up and then down.
    """
    height, width, channels, classes = IMAGES[model]
    small = has_batch_norm(model)
    rate = OPTIMIZERS[optimizer]["learning_rate"] * (BATCH_NORM_RATE if small else 1.0)
    config = config_from_dict(
        {
            "data": {"dataset": f"synthetic:{SAMPLES}x{height}x{width}x{channels}x{classes}"},
            "model": {
                "model": model,
                "dtype": dtype,
                "dropout": False,
                "output_activation": "softmax" if optimizer == "mse" else "linear",
            },
            "optimizer": OPTIMIZERS[optimizer] | {"learning_rate": rate},
            "schedule": {"warmup_epochs": float(min(LONGEST_WARMUP, updates // 2)), "decay": "cosine"},
            "training": {
                "epochs": updates,
                "steps_per_epoch": 1,
                "batch_size": BATCH_NORM_BATCH if small else GLOBAL_BATCH // size,
                "seed": 3,
            },
            "device": {"device": "cpu", "threads": 1},
            "strategy": STRATEGIES.get(strategy, {}),
        }
    )
    rates = learning_rates(
        config.schedule,
        base=config.optimizer.learning_rate,
        size=SCHEDULE_RANKS,
        steps=round(updates / SCHEDULE_SHARE),
        steps_per_epoch=1,
        first=updates,
    )
    return prepare(config, ranks=size), rates
