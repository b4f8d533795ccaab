"""PyTorch's update rules as Keras 3 optimizers: `SGD`, `Adam`, `AdamW`, `RMSprop`.

Keras ships optimizers of the same names with other formulas: momentum that remembers old learning rates, epsilon on
the other side of the root or of the bias correction, weight decay beside the gradient instead of in it. These classes
compute what `torch.optim` computes (single-tensor form, `maximize=False`, no dampening), with the argument names of
Keras and the default values of PyTorch. They are ordinary Keras optimizers otherwise: learning-rate schedules,
clipping, EMA, gradient accumulation, `get_config`, `.keras` files, `tf.function`.

Sources: https://pytorch.org/docs/stable/optim.html (the algorithm box of each class), `torch/optim/sgd.py`, `adam.py`,
`rmsprop.py`.

Letters: w parameter, g gradient, lr learning rate, t number of this update counted from 1. Two things are worth
knowing: clipping sees the gradient before weight decay is added to it, as with `torch.nn.utils.clip_grad_*`; the
learning rate is stored in `keras.config.floatx()`, so that float64 proofs need `keras.config.set_floatx("float64")`
first.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from common.model.weights import Weights

_register = keras.saving.register_keras_serializable(package="horovod_twins")


class TorchRule(keras.optimizers.Optimizer):
    """What the four rules share: slots under torch's names, and weight decay as a part of the rule.

    A subclass computes one parameter's update in `update_step`. The settings have checked the ranges of all values.

    Args:
        learning_rate: float, schedule or callable.
        weight_decay: L2 factor, added to the gradient.
        **kwargs: those of `keras.optimizers.Optimizer` (clipnorm, use_ema, name, ...).
    """

    _hyperparameters: ClassVar[tuple[str, ...]] = ()
    _slot_names: tuple[str, ...] = ()  # of state tensors, each shaped like its parameter

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the slots, zeros in the shape and dtype of each variable."""
        if self.built:
            return
        super().build(variables)
        self.slots = {name: self.add_optimizer_variables(variables, name) for name in self._slot_names}

    def _slot(self, name: str, variable: Any) -> Any:
        return self.slots[name][self._get_variable_index(variable)]

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Does nothing: Keras would shrink the weights here, but each rule below applies its own decay."""

    def _decays(self, variable: Any) -> bool:
        return bool(self.weight_decay) and self._use_weight_decay(variable)

    def _gradient(self, gradient: Any, variable: Any, *, l2: bool = True) -> Any:
        """The gradient in the variable's dtype, with `weight_decay * w` added where `l2` asks for it."""
        gradient = ops.cast(gradient, variable.dtype)
        return gradient + self.weight_decay * variable if l2 and self._decays(variable) else gradient

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Updates the variables; embedding gradients are made dense first.

        PyTorch's are dense by default: rows that a batch did not touch decay and move by momentum too, and a row met
        twice counts once, with the sum of its gradients.
        """
        dense = [tf.convert_to_tensor(one) if isinstance(one, tf.IndexedSlices) else one for one in grads]
        super().apply(dense, trainable_variables)

    def get_config(self) -> dict[str, Any]:
        """The arguments that rebuild this optimizer by `from_config`."""
        return {**super().get_config(), **{name: getattr(self, name) for name in self._hyperparameters}}


def _float64(value: Any) -> Any:
    """Return a scalar as a float64 tensor.

    Python numbers must not pass through `cast`, which rounds them to float32 first.
    torch keeps learning rate and bias corrections as Python floats whatever the dtype of the weights; in float32 the
    difference 1 - 0.999 would already be wrong in its fifth digit.
    """
    return ops.convert_to_tensor(value, dtype="float64")


@_register
class SGD(TorchRule):
    """`torch.optim.SGD`: with d = g + weight_decay w

        plain       w <- w - lr d
        momentum    v <- momentum v + d;  w <- w - lr v
        nesterov    v <- momentum v + d;  w <- w - lr (d + momentum v)

    The buffer v holds gradients, not steps, so that a change of the learning rate acts on all of v at once.

    Args:
        momentum: in [0, 1]; 0 keeps no buffer.
        nesterov: whether to look ahead; needs momentum.
    """

    _hyperparameters = ("momentum", "nesterov")

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, **kwargs)
        self.momentum = momentum
        self.nesterov = nesterov
        self._slot_names = ("momentum_buffer",) if momentum else ()

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One parameter's update; see the class for the formula."""
        lr = ops.cast(_float64(learning_rate), variable.dtype)
        step = self._gradient(gradient, variable)
        if self.momentum:
            buffer = self._slot("momentum_buffer", variable)
            self.assign(buffer, self.momentum * buffer + step)
            step = step + self.momentum * buffer if self.nesterov else buffer
        self.assign_sub(variable, lr * step)


@_register
class Adam(TorchRule):
    """`torch.optim.Adam`: with d = g + weight_decay w

        m <- m + (1 - beta_1)(d - m)
        v <- beta_2 v + (1 - beta_2) d^2
        w <- w - lr / (1 - beta_1^t) * m / (sqrt(v) / sqrt(1 - beta_2^t) + epsilon)

    t is the optimizer's count of updates. (torch counts per parameter; the two differ only for a parameter that had no
    gradient in some of the updates.)

    Args:
        beta_1, beta_2: decay of the two moments, in [0, 1).
        epsilon: added outside the root, after the bias correction.
    """

    _hyperparameters = ("beta_1", "beta_2", "epsilon")
    _slot_names = ("exp_avg", "exp_avg_sq")
    _decoupled_decay: ClassVar[bool] = False

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, **kwargs)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One parameter's update; see the class for the formula."""
        lr = _float64(learning_rate)
        t = _float64(self.iterations + 1)
        step_size = ops.cast(lr / (1.0 - self.beta_1**t), variable.dtype)
        root_correction = ops.cast(ops.sqrt(1.0 - self.beta_2**t), variable.dtype)

        gradient = self._gradient(gradient, variable, l2=not self._decoupled_decay)
        if self._decoupled_decay and self._decays(variable):
            self.assign(variable, variable * ops.cast(1.0 - lr * self.weight_decay, variable.dtype))
        m, v = self._slot("exp_avg", variable), self._slot("exp_avg_sq", variable)
        self.assign_add(m, (1.0 - self.beta_1) * (gradient - m))
        self.assign(v, self.beta_2 * v + (1.0 - self.beta_2) * ops.square(gradient))
        self.assign_sub(variable, step_size * m / (ops.sqrt(v) / root_correction + self.epsilon))


@_register
class AdamW(Adam):
    """`torch.optim.AdamW`: w <- (1 - lr weight_decay) w, then `Adam`'s update with the plain gradient (d = g).

    Args:
        weight_decay: decoupled factor; the weights shrink by `lr * weight_decay` of themselves at every update.
    """

    _decoupled_decay = True

    def __init__(self, learning_rate: Any = 1e-3, *, weight_decay: float = 1e-2, **kwargs: Any) -> None:
        super().__init__(learning_rate, weight_decay=weight_decay, **kwargs)


@_register
class RMSprop(TorchRule):
    """`torch.optim.RMSprop` (not centered): with d = g + weight_decay w

        s <- rho s + (1 - rho) d^2
        w <- w - lr d / (sqrt(s) + epsilon)

    Args:
        rho: decay of the squares, in [0, 1); torch calls it alpha.
        epsilon: added outside the root.
    """

    _hyperparameters = ("rho", "epsilon")
    _slot_names = ("square_avg",)

    def __init__(
        self,
        learning_rate: Any = 1e-2,
        *,
        rho: float = 0.99,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, **kwargs)
        self.rho = rho
        self.epsilon = epsilon

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One parameter's update; see the class for the formula."""
        lr = ops.cast(_float64(learning_rate), variable.dtype)
        gradient = self._gradient(gradient, variable)
        s = self._slot("square_avg", variable)
        self.assign(s, self.rho * s + (1.0 - self.rho) * ops.square(gradient))
        self.assign_sub(variable, lr * (gradient / (ops.sqrt(s) + self.epsilon)))


def export_state(optimizer: keras.optimizers.Optimizer, *, names: Sequence[str]) -> Weights:
    """Return the state of a built optimizer under torch's names, in the layout of the Keras variables.

    "<name>.<slot>" -> array, with the slots `momentum_buffer`, `exp_avg`, `exp_avg_sq`, `square_avg`, as the rule has
    them; and in arrays of one number "step" (updates so far, int64), under loss scaling also "loss_scale" (float32),
    "loss_scale_growth_step" and "learning_rate_step" (int64), which counts the skipped updates, too.

    Args:
        optimizer: of this module, bare, distributed or inside our `LossScaleOptimizer`.
        names: of the variables that the optimizer was built with, in that order.
    """
    counts = {name: np.atleast_1d(variable.numpy()) for name, variable in _counts(optimizer).items()}
    return counts | {name: variable.numpy() for name, variable in _slots(optimizer, names=names).items()}


def import_state(optimizer: keras.optimizers.Optimizer, state: Weights, *, names: Sequence[str]) -> None:
    """Load what `export_state` returned, or what came from `torch.optim`; see there.

    Raises:
        ValueError: the state has other slots than the optimizer; nothing was loaded.
    """
    slots, counts = _slots(optimizer, names=names), _counts(optimizer)
    if unlike := slots.keys() ^ {name for name in state if "." in name}:
        raise ValueError(
            f"The state is that of another optimizer. Received: {', '.join(sorted(unlike))} on one side only"
        )
    for name, variable in slots.items():
        variable.assign(state[name])
    read = counts if "loss_scale" in state else ("step",)  # servers have no loss scale
    for name in read:
        counts[name].assign(state[name][0])


def _slots(optimizer: keras.optimizers.Optimizer, *, names: Sequence[str]) -> dict[str, keras.Variable]:
    rule = getattr(optimizer, "inner_optimizer", optimizer)
    by_slot = {slot: zip(names, variables, strict=True) for slot, variables in rule.slots.items()}
    return {f"{name}.{slot}": variable for slot, pairs in by_slot.items() for name, variable in pairs}


def _counts(optimizer: keras.optimizers.Optimizer) -> dict[str, keras.Variable]:
    counts = {"step": optimizer.iterations}
    if hasattr(optimizer, "inner_optimizer"):
        counts["loss_scale"] = optimizer.dynamic_scale
        counts["loss_scale_growth_step"] = optimizer.step_counter
        counts["learning_rate_step"] = optimizer.steps
    return counts
