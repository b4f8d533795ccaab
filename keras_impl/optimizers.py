"""The optimizers and losses in Keras, with PyTorch's formulas and every value given from the settings."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from common.config import Config, ModelConfig, OptimizerConfig
from common.config.device import INITIAL_LOSS_SCALE, LOSS_SCALE_GROWTH_STEPS
from keras_impl import update_rules


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
    """Keras' own, but for the learning rate: an update that an overflow skips uses up its rate, as in PyTorch."""

    def build(self, var_list: Any) -> None:
        """Adds a count of steps, skipped or not, and gives it to the schedule."""
        self.steps = self.add_variable(shape=(), dtype="int", initializer="zeros", aggregation="none", name="steps")
        super().build(var_list)
        self.inner_optimizer._learning_rate.counter = self.steps

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Counts the step, then updates unless a gradient is not finite."""
        self.steps.assign_add(1)
        super().apply(grads, trainable_variables)


def build_optimizer(model: keras.Model, settings: Config, *, learning_rates: np.ndarray) -> keras.optimizers.Optimizer:
    """Return the update rule over all weights of the model.

    Args:
        learning_rates: (updates,) which the optimizer looks up, update by update; the last one holds for all after it.
    """
    config = settings.optimizer
    rates = LearningRates(learning_rates.tolist())
    decay = config.weight_decay
    if config.optimizer == "sgd":
        optimizer: Any = update_rules.SGD(rates, momentum=config.momentum, nesterov=config.nesterov, weight_decay=decay)
    elif config.optimizer == "rmsprop":
        optimizer = update_rules.RMSprop(rates, rho=config.alpha, epsilon=config.epsilon, weight_decay=decay)
    else:
        rule = update_rules.Adam if config.optimizer == "adam" else update_rules.AdamW
        optimizer = rule(rates, beta_1=config.beta1, beta_2=config.beta2, epsilon=config.epsilon, weight_decay=decay)
    if settings.device.mixed_precision == "float16":
        optimizer = LossScaleOptimizer(
            optimizer, initial_scale=INITIAL_LOSS_SCALE, dynamic_growth_steps=LOSS_SCALE_GROWTH_STEPS
        )
    optimizer.build(model.trainable_variables)
    return optimizer


def loss_per_sample(outputs: Any, labels: Any, *, config: OptimizerConfig, model_config: ModelConfig) -> Any:
    """Return (batch,) losses, of the dtype of the outputs, or float32 if that is less precise.

    Args:
        outputs: (batch, outputs), linear.
        labels: (batch,) int64.
        model_config: names the activation that mse sees.
    """
    outputs = ops.cast(outputs, keras.backend.result_type(outputs.dtype, "float32"))
    if config.loss == "cross_entropy":
        return ops.sparse_categorical_crossentropy(labels, outputs, from_logits=True)
    if model_config.output_activation == "sigmoid":
        outputs = ops.sigmoid(outputs)
    elif model_config.output_activation == "softmax":
        outputs = ops.softmax(outputs, axis=-1)
    target = ops.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
    return ops.mean(ops.square(outputs - target), axis=-1)
