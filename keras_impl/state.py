"""What Keras changes while it trains, and what a checkpoint holds of it."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from common.config import Config
from common.model.specs import ModelSpec
from common.model.weights import Weights
from keras_impl import update_rules
from keras_impl.weights import get_weights, load_weights, weight_maps


class TrainingState:
    """Model and optimizer of one rank; with mixed precision the loss scale is part of the optimizer."""

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        *,
        spec: ModelSpec,
        config: Config,
        is_shared: bool = False,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.spec = spec
        self.config = config
        self.is_shared = is_shared  # whether all ranks hold it already: a checkpoint reaches each of them
        self.held_elsewhere: Callable[[], Weights] | None = None  # returns the optimizer's state where servers have it

    def restore(self, weights: Weights, optimizer: Weights | None = None) -> None:
        """Load what `export_weights` and `export_optimizer` returned; without the latter the optimizer stays as is."""
        load_weights(self.model, weights, spec=self.spec)
        if not optimizer:
            return
        names, maps = self.trainable()
        scalars = {name: array[0] for name, array in optimizer.items() if "." not in name}
        slots: dict[str, dict[str, np.ndarray]] = {name: {} for name in names}
        for key, array in optimizer.items():
            name, _, slot = key.rpartition(".")
            if name:
                slots[name][slot] = maps[name].from_file(array)
        update_rules.import_state(self.optimizer, names=names, scalars=scalars, slots=slots)

    def export_weights(self) -> Weights:
        """Return the weights and BatchNorm statistics under the names of the weights file; copies, on the host."""
        return get_weights(self.model, spec=self.spec)

    def export_optimizer(self) -> Weights:
        """Return the optimizer's state as "<parameter>.<slot>" -> array in the layout of the weights file, and "step".

        With mixed precision also "loss_scale" and "loss_scale_growth_step".
        """
        if self.held_elsewhere:
            return self.held_elsewhere()
        names, maps = self.trainable()
        scalars, slots = update_rules.export_state(self.optimizer, names=names)
        arrays = {name: np.atleast_1d(value) for name, value in scalars.items()}
        for name, values in slots.items():
            for slot, array in values.items():
                arrays[f"{name}.{slot}"] = np.ascontiguousarray(maps[name].to_file(array))
        return arrays

    def trainable(self) -> tuple[list[str], dict[str, Any]]:
        """Return the file's names of the trainable variables in the model's order, and all maps."""
        maps = weight_maps(self.model, self.spec)
        names = {id(weight.variable): name for name, weight in maps.items()}
        return [names[id(variable)] for variable in self.model.trainable_variables], maps
