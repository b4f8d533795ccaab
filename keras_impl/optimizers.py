"""The optimizers and losses in Keras, with PyTorch's formulas and every value given from the settings."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from common.config import (
    INITIAL_LOSS_SCALE,
    LOSS_SCALE_GROWTH_STEPS,
    DeviceConfig,
    ModelConfig,
    OptimizerConfig,
)
from common.model.specs import ModelSpec
from common.model.weights import Weights
from keras_impl import update_rules
from keras_impl.weights import weight_maps


@keras.saving.register_keras_serializable(package="horovod_twins")
class LearningRates(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of every step of the run, looked up by the optimizer's count of updates, or by `counter`."""

    def __init__(self, learning_rates: Sequence[float]) -> None:
        self.learning_rates = np.asarray(learning_rates, dtype=np.float64)
        self.counter: Any = None

    def __call__(self, step: Any) -> Any:
        """Return the learning rate of update `step`, counted from 0; after the last one it stays."""
        rates = ops.convert_to_tensor(self.learning_rates, dtype=keras.config.floatx())
        step = step if self.counter is None else self.counter - 1  # counted already when the update begins
        return ops.take(rates, ops.minimum(step, len(self.learning_rates) - 1))

    def get_config(self) -> dict[str, Any]:
        """The arguments that rebuild this schedule."""
        return {"learning_rates": self.learning_rates.tolist()}


@keras.saving.register_keras_serializable(package="horovod_twins")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Keras' own, but for the learning rate: an update that an overflow leaves out uses up its rate, as in PyTorch."""

    def build(self, var_list: Any) -> None:
        """Adds a count of steps, left out or not, and shows it to the schedule."""
        self.steps = self.add_variable(shape=(), dtype="int", initializer="zeros", aggregation="none", name="steps")
        super().build(var_list)
        schedule = self.inner_optimizer._learning_rate
        if isinstance(schedule, LearningRates):
            schedule.counter = self.steps

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Counts the step, then updates unless a gradient is not finite."""
        if not self.built:
            self.build(trainable_variables)
        self.steps.assign_add(1)
        super().apply(grads, trainable_variables)


def build_optimizer(
    model: keras.Model, config: OptimizerConfig, *, learning_rates: np.ndarray, device: DeviceConfig
) -> keras.optimizers.Optimizer:
    """Return the update rule over all weights of the model."""
    rates = LearningRates(learning_rates.tolist())
    decay = config.weight_decay
    if config.optimizer == "sgd":
        optimizer: Any = update_rules.SGD(rates, momentum=config.momentum, nesterov=config.nesterov, weight_decay=decay)
    elif config.optimizer == "rmsprop":
        optimizer = update_rules.RMSprop(rates, rho=config.alpha, epsilon=config.epsilon, weight_decay=decay)
    else:
        rule = update_rules.Adam if config.optimizer == "adam" else update_rules.AdamW
        optimizer = rule(rates, beta_1=config.beta1, beta_2=config.beta2, epsilon=config.epsilon, weight_decay=decay)
    if device.mixed_precision:
        optimizer = LossScaleOptimizer(
            optimizer, initial_scale=INITIAL_LOSS_SCALE, dynamic_growth_steps=LOSS_SCALE_GROWTH_STEPS
        )
    optimizer.build(model.trainable_variables)
    return optimizer


def build_loss(config: OptimizerConfig, model_config: ModelConfig) -> Any:
    """Return the loss of `compile`: labels (batch,), linear outputs (batch, outputs) -> mean over the batch."""
    if config.loss == "cross_entropy":
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def mse(labels: Any, outputs: Any) -> Any:
        if model_config.output_activation == "sigmoid":
            outputs = ops.sigmoid(outputs)
        elif model_config.output_activation == "softmax":
            outputs = ops.softmax(outputs, axis=-1)
        labels = ops.reshape(ops.cast(labels, "int32"), (-1,))  # Keras adds an axis to labels of one number a sample
        target = ops.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
        return ops.mean(ops.square(outputs - target), axis=-1)

    return mse


def export_state(model: keras.Model, optimizer: keras.optimizers.Optimizer, *, spec: ModelSpec) -> Weights:
    """Return the optimizer's state as "<parameter>.<slot>" -> array in the layout of the weights file, and "step"."""
    names, maps = _trainable(model, spec)
    scalars, slots = update_rules.export_state(optimizer, names=names)
    arrays = {name: np.atleast_1d(value) for name, value in scalars.items()}
    for name, values in slots.items():
        for slot, array in values.items():
            arrays[f"{name}.{slot}"] = np.ascontiguousarray(maps[name].to_file(array))
    return arrays


def import_state(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, arrays: Weights, *, spec: ModelSpec
) -> None:
    """Put back what `export_state` returned."""
    names, maps = _trainable(model, spec)
    scalars = {name: array[0] for name, array in arrays.items() if "." not in name}
    slots: dict[str, dict[str, np.ndarray]] = {name: {} for name in names}
    for key, array in arrays.items():
        name, _, slot = key.rpartition(".")
        if name:
            slots[name][slot] = maps[name].from_file(array)
    update_rules.import_state(optimizer, names=names, scalars=scalars, slots=slots)


def _trainable(model: keras.Model, spec: ModelSpec) -> tuple[list[str], dict[str, Any]]:
    """Return the file's names of the trainable variables in the model's order, and all maps."""
    maps = weight_maps(model, spec)
    names = {id(weight.variable): name for name, weight in maps.items()}
    return [names[id(variable)] for variable in model.trainable_variables], maps
