"""One framework's side of `test_exchange_parity.py`: `exchange_worker.py torch|keras FOLDER OPTIMIZER UPDATES`.

Both processes run at once. PyTorch trains, and writes its whole state (weights, running statistics, optimizer slots)
before each update; Keras takes each of these states, makes one update from it and compares with PyTorch's next state.
A state of ResNet-34 in float64 has half a gigabyte: each is removed when it is done with, and few are written ahead.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from fake_ranks import alone
from rule_workers import relative_difference
from training_worker import OPTIMIZERS, RANKS, keras_trainer, torch_trainer

from common.config import config_from_dict
from common.experiment import Experiment, prepare_experiment
from common.initial_weights import Weights, load_weights, save_weights
from common.schedule import learning_rates

AHEAD = 2  # states that wait for Keras
PATIENCE_SECONDS = 240.0
WARMUP_UPDATES = 10


def make_experiment(optimizer: str, updates: int) -> tuple[Experiment, np.ndarray]:
    """Return the case, in which every update is an epoch of its own, and its learning rates, which go up and down."""
    settings: dict[str, dict[str, Any]] = {
        "data": {"dataset": "synthetic:480x32x32x1x10"},
        "model": {"model": "resnet34", "dtype": "float64"},
        "optimizer": OPTIMIZERS[optimizer],
        "schedule": {"warmup_epochs": float(min(WARMUP_UPDATES, updates // 2)), "decay": "cosine"},
        "training": {"epochs": updates, "steps_per_epoch": 1, "batch_size": 8, "seed": 3},
    }
    config = config_from_dict(settings)
    base = config.optimizer.learning_rate
    rates = learning_rates(config.schedule, base=base, size=RANKS, steps=updates, steps_per_epoch=1)
    return prepare_experiment(config, size=1, progress=False), rates


def _file(folder: Path, update: int) -> Path:
    return folder / f"state-{update:03}.safetensors"


def _wait(condition: Any) -> None:
    since = time.monotonic()
    while not condition():
        if time.monotonic() - since > PATIENCE_SECONDS:
            raise TimeoutError("the other framework's process does not go on")
        time.sleep(0.01)


def write_state(folder: Path, update: int, weights: Weights, optimizer_state: Weights) -> None:
    """Write the state before an update, counted from 0; wait while Keras is far behind."""
    _wait(lambda: len(list(folder.glob("state-*.safetensors"))) <= AHEAD)
    state = {f"weights/{name}": value for name, value in weights.items()}
    state |= {f"optimizer/{name}": value for name, value in optimizer_state.items() if name != "step"}
    save_weights(_file(folder, update), state)


def read_state(folder: Path, update: int) -> tuple[Weights, Weights]:
    """Return weights and optimizer state before an update."""
    _wait(_file(folder, update).exists)
    arrays = load_weights(_file(folder, update))
    return (
        {name.removeprefix("weights/"): value for name, value in arrays.items() if name.startswith("weights/")},
        {name.removeprefix("optimizer/"): value for name, value in arrays.items() if name.startswith("optimizer/")},
    )


def _torch(folder: Path, experiment: Experiment, rates: np.ndarray) -> None:
    from torch_impl.data import training_data
    from torch_impl.optimizers import export_state
    from torch_impl.weights import get_weights

    trainer, spec = torch_trainer(experiment), experiment.spec
    model, optimizer = trainer.model, trainer.optimizer
    for update in range(len(rates)):
        state = export_state(model, optimizer, scaler=trainer.scaler)
        write_state(folder, update, get_weights(model, spec=spec), state)
        batches = training_data(experiment, epoch=update + 1, ranks=alone(), device=trainer.device)
        trainer.train_epoch(batches, learning_rates=rates[update : update + 1], advance=lambda _: None)
    state = export_state(model, optimizer, scaler=trainer.scaler)
    write_state(folder, len(rates), get_weights(model, spec=spec), state)


def _keras(folder: Path, experiment: Experiment, rates: np.ndarray) -> None:
    from keras_impl.data import training_data
    from keras_impl.optimizers import export_state, import_state
    from keras_impl.weights import get_weights, load_weights

    trainer, spec = keras_trainer(experiment, rates), experiment.spec
    model, optimizer = trainer.model, trainer.model.optimizer
    differences: list[dict[str, float]] = []
    weights, state = read_state(folder, 0)
    for update in range(len(rates)):
        load_weights(model, weights, spec=spec)
        if update:  # before the first update PyTorch has no slots, and Keras' are zeros
            import_state(model, optimizer, {**state, "step": np.array([update])}, spec=spec)
        trainer.train_epoch(training_data(experiment, epoch=update + 1, ranks=alone()), epoch=update + 1,
                            advance=lambda _: None)  # fmt: skip
        before = weights
        weights, state = read_state(folder, update + 1)
        _file(folder, update).unlink()
        ours, own_state = get_weights(model, spec=spec), export_state(model, optimizer, spec=spec)
        slots = set(own_state) - {"step"}
        assert sorted(slots) == sorted(state) and int(own_state["step"][0]) == update + 1
        differences.append(
            {
                "weights": max(relative_difference(ours[name], weights[name]) for name in weights),
                "slots": max((relative_difference(own_state[name], state[name]) for name in slots), default=0.0),
                "moved": min(relative_difference(weights[name], before[name]) for name in weights),
            }
        )
    (folder / "differences.json").write_text(json.dumps(differences))


if __name__ == "__main__":
    {"torch": _torch, "keras": _keras}[sys.argv[1]](Path(sys.argv[2]), *make_experiment(sys.argv[3], int(sys.argv[4])))
    sys.stdout.flush()
    os._exit(0)  # TensorFlow and Horovod take their time to leave
