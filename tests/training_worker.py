"""One framework's side of `test_training_parity.py`, in a process of its own: `training_worker.py torch|keras FILE`.

Trains every model without BatchNorm with every optimizer by the trainer's own parts: its data path, schedule, loss and
loop, 50 updates in float64. Writes losses, final weights and optimizer state to FILE (.npz).
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fake_ranks import alone

from common.config import Config, config_from_dict
from common.experiment import Experiment, prepare_experiment
from common.initial_weights import Weights
from common.schedule import learning_rates

EPOCHS, STEPS, BATCH_SIZE, RANKS = 5, 10, 8, 4  # the schedule is that of 4 ranks: warm-up, then decay
DATA = {
    "mlp": "synthetic:480x28x28x1x10",
    "cnn": "synthetic:480x28x28x1x10",
    "simplecnn": "synthetic:480x28x28x1x10",
    "dense500": "synthetic:480x20x25x1x10",
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.0, "learning_rate": 0.05},
    "momentum": {},
    "nesterov": {"nesterov": True},
    "weight_decay": {"weight_decay": 0.05},
    "adam": {"optimizer": "adam", "learning_rate": 0.001},
    "adamw": {"optimizer": "adamw", "learning_rate": 0.001, "weight_decay": 0.05},
    "rmsprop": {"optimizer": "rmsprop", "learning_rate": 0.001},
    "mse": {"loss": "mse", "learning_rate": 0.1},
}


@dataclass(frozen=True)
class Answer:
    """What a training ends with; `losses` are the means of the epochs."""

    losses: list[float]
    weights: Weights
    optimizer_state: Weights


def make_experiment(model: str, optimizer: str) -> tuple[Experiment, np.ndarray]:
    """Return a case and its learning rates (EPOCHS x STEPS,), which go up and down."""
    config: Config = config_from_dict(
        {
            "data": {"dataset": DATA[model]},
            "model": {
                "model": model,
                "dtype": "float64",
                "dropout": False,
                "output_activation": "softmax" if optimizer == "mse" else "linear",
            },
            "optimizer": OPTIMIZERS[optimizer],
            "schedule": {"warmup_epochs": 1.5, "decay": "cosine"},
            "training": {"epochs": EPOCHS, "steps_per_epoch": STEPS, "batch_size": BATCH_SIZE, "seed": 3},
        }
    )
    rates = learning_rates(
        config.schedule, base=config.optimizer.learning_rate, size=RANKS, steps=EPOCHS * STEPS, steps_per_epoch=STEPS
    )
    return prepare_experiment(config, size=1, progress=False), rates


def torch_trainer(experiment: Experiment) -> Any:
    """Return PyTorch's trainer, at the first weights."""
    import torch

    from torch_impl.loop import Trainer
    from torch_impl.models import build_model
    from torch_impl.optimizers import build_optimizer
    from torch_impl.weights import load_weights

    config = experiment.config
    model = build_model(experiment.spec, config.model)
    load_weights(model, experiment.first_weights, spec=experiment.spec)
    optimizer = build_optimizer(model, config.optimizer, learning_rate=config.optimizer.learning_rate)
    return Trainer(model, optimizer, config=config, device=torch.device("cpu"))


def keras_trainer(experiment: Experiment, rates: np.ndarray) -> Any:
    """Return Keras' trainer, at the first weights."""
    import keras

    from keras_impl.loop import Trainer
    from keras_impl.models import build_model
    from keras_impl.optimizers import build_optimizer
    from keras_impl.weights import load_weights

    keras.utils.clear_session()
    keras.config.set_floatx("float64")
    config, spec = experiment.config, experiment.spec
    model = build_model(spec, config.model)
    load_weights(model, experiment.first_weights, spec=spec)
    optimizer = build_optimizer(model, config.optimizer, learning_rates=rates, device=config.device)
    return Trainer(model, optimizer, config=config, distributed=False)


def _torch(experiment: Experiment, rates: np.ndarray) -> Answer:
    from torch_impl.data import training_data
    from torch_impl.optimizers import export_state
    from torch_impl.weights import get_weights

    trainer = torch_trainer(experiment)
    losses = []
    for epoch in range(1, EPOCHS + 1):
        batches = training_data(experiment, epoch=epoch, ranks=alone(), device=trainer.device)
        own = rates[(epoch - 1) * STEPS : epoch * STEPS]
        losses.append(trainer.train_epoch(batches, learning_rates=own, advance=lambda _: None)[0].mean_loss or 0.0)
    state = export_state(trainer.model, trainer.optimizer, scaler=trainer.scaler)
    return Answer(losses, get_weights(trainer.model, spec=experiment.spec), state)


def _keras(experiment: Experiment, rates: np.ndarray) -> Answer:
    from keras_impl.data import training_data
    from keras_impl.optimizers import export_state
    from keras_impl.weights import get_weights

    trainer, spec = keras_trainer(experiment, rates), experiment.spec
    losses = []
    for epoch in range(1, EPOCHS + 1):
        batches = training_data(experiment, epoch=epoch, ranks=alone())
        losses.append(trainer.train_epoch(batches, epoch=epoch, advance=lambda _: None)[0].mean_loss or 0.0)
    model = trainer.model
    return Answer(losses, get_weights(model, spec=spec), export_state(model, model.optimizer, spec=spec))


SIDES = {"torch": _torch, "keras": _keras}


def main() -> None:
    """Write the arrays of one framework."""
    framework, file = sys.argv[1], Path(sys.argv[2])
    arrays: dict[str, np.ndarray] = {}
    for model in DATA:
        for optimizer in OPTIMIZERS:
            experiment, rates = make_experiment(model, optimizer)
            answer = SIDES[framework](experiment, rates)
            key = f"{model}/{optimizer}"
            arrays[f"{key}/losses"] = np.array(answer.losses)
            arrays |= {f"{key}/weights/{name}": value for name, value in answer.weights.items()}
            arrays |= {f"{key}/state/{name}": value for name, value in answer.optimizer_state.items()}
    np.savez(file, allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # TensorFlow and Horovod take their time to leave
