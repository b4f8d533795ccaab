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

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from keras import ops

_register = keras.saving.register_keras_serializable(package="horovod_twins")


class TorchRule(keras.optimizers.Optimizer):
    """What the four rules share: slots under torch's names, and weight decay as a part of the rule.

    A subclass names its slots in `_slot_names()` before `build` and computes one parameter's update in `update_step`.

    Args:
        learning_rate: float, schedule or callable.
        weight_decay: L2 factor, added to the gradient.
        **kwargs: those of `keras.optimizers.Optimizer` (clipnorm, use_ema, name, ...).

    Raises:
        ValueError: for values out of range.
    """

    _hyperparameters: ClassVar[tuple[str, ...]] = ()

    def _slot_names(self) -> tuple[str, ...]:
        """Names of this rule's state tensors, each shaped like its parameter, as `torch.optim` calls them."""
        raise NotImplementedError

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the slots, zeros in the shape and dtype of each variable."""
        if self.built:
            return
        super().build(variables)
        self._slots = {name: self.add_optimizer_variables(variables, name) for name in self._slot_names()}

    def _slot(self, name: str, variable: Any) -> Any:
        return self._slots[name][self._get_variable_index(variable)]

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


def _in_unit_interval(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 <= value < 1.0:
            raise ValueError(f"`{name}` must be in [0, 1). Received: {name}={value}")


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0.0:
            raise ValueError(f"`{name}` must not be negative. Received: {name}={value}")


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
        _not_negative(momentum=momentum, weight_decay=weight_decay)
        if nesterov and momentum <= 0.0:
            raise ValueError(f"`nesterov` needs a momentum above 0. Received: momentum={momentum}")
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, **kwargs)
        self.momentum = momentum
        self.nesterov = nesterov

    def _slot_names(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

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
        _in_unit_interval(beta_1=beta_1, beta_2=beta_2)
        _not_negative(epsilon=epsilon, weight_decay=weight_decay)
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, **kwargs)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def _slot_names(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

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
        u = d / (sqrt(s) + epsilon)
        plain       w <- w - lr u
        momentum    b <- momentum b + u;  w <- w - lr b

    Args:
        rho: decay of the squares, in [0, 1); torch calls it alpha.
        epsilon: added outside the root.
        momentum: at least 0; 0 keeps no buffer.
    """

    _hyperparameters = ("rho", "epsilon", "momentum")

    def __init__(
        self,
        learning_rate: Any = 1e-2,
        *,
        rho: float = 0.99,
        epsilon: float = 1e-8,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        **kwargs: Any,
    ) -> None:
        _in_unit_interval(rho=rho)
        _not_negative(epsilon=epsilon, momentum=momentum, weight_decay=weight_decay)
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, **kwargs)
        self.rho = rho
        self.epsilon = epsilon
        self.momentum = momentum

    def _slot_names(self) -> tuple[str, ...]:
        return ("square_avg", "momentum_buffer") if self.momentum else ("square_avg",)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One parameter's update; see the class for the formula."""
        lr = ops.cast(_float64(learning_rate), variable.dtype)
        gradient = self._gradient(gradient, variable)
        s = self._slot("square_avg", variable)
        self.assign(s, self.rho * s + (1.0 - self.rho) * ops.square(gradient))
        step = gradient / (ops.sqrt(s) + self.epsilon)
        if self.momentum:
            buffer = self._slot("momentum_buffer", variable)
            self.assign(buffer, self.momentum * buffer + step)
            step = buffer
        self.assign_sub(variable, lr * step)


def export_state(
    optimizer: keras.optimizers.Optimizer, *, names: Sequence[str]
) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
    """Reads the optimizer's state under torch's names; arrays keep the layout of the Keras variables.

    Not included: the averaged weights of `use_ema`.

    Args:
        optimizer: a built optimizer of this module, bare, distributed or inside a `LossScaleOptimizer`.
        names: names of the variables the optimizer was built with, in that order.

    Returns:
        scalars: `step` (updates so far, int64); under loss scaling also `loss_scale` (float32) and
            `loss_scale_growth_step` (int64), and `learning_rate_step` (int64) where all steps are counted.
        slots: `{name: {slot: array}}`; slots are `momentum_buffer`, `exp_avg`, `exp_avg_sq`, `square_avg`, as the rule
            has them.

    Raises:
        TypeError: if the optimizer is not one of this module's.
        ValueError: if it is not built, has another number of variables, or has accumulated part of an update only.
    """
    rule = _rule_of(optimizer, names=names)
    if rule.gradient_accumulation_steps and int(rule._iterations) % rule.gradient_accumulation_steps:
        raise ValueError(
            "The state can be exported after whole updates only. Received an optimizer with "
            f"{int(rule._iterations) % rule.gradient_accumulation_steps} accumulated gradients."
        )
    scalars = {"step": np.asarray(int(rule.iterations.numpy()), dtype=np.int64)}
    if optimizer is not rule:
        scalars["loss_scale"] = np.asarray(optimizer.dynamic_scale.numpy())
        scalars["loss_scale_growth_step"] = np.asarray(int(optimizer.step_counter), dtype=np.int64)
        if hasattr(optimizer, "steps"):
            scalars["learning_rate_step"] = np.asarray(int(optimizer.steps), dtype=np.int64)
    slots = {
        name: {slot: variables[index].numpy() for slot, variables in rule._slots.items()}
        for index, name in enumerate(names)
    }
    return scalars, slots


def import_state(
    optimizer: keras.optimizers.Optimizer,
    *,
    names: Sequence[str],
    scalars: Mapping[str, np.ndarray],
    slots: Mapping[str, Mapping[str, np.ndarray]],
) -> None:
    """Writes a state that `export_state` returned (or that came from `torch.optim`) into a built optimizer.

    Args:
        optimizer: a built optimizer of this module, bare, distributed or inside a `LossScaleOptimizer`.
        names: names of the variables the optimizer was built with, in that order.
        scalars: at least `step`.
        slots: `{name: {slot: array}}`, arrays in the layout of the Keras variables.

    Raises:
        TypeError: if the optimizer is not one of this module's.
        ValueError: if names, slots or shapes do not fit; then nothing was written.
    """
    rule = _rule_of(optimizer, names=names)
    pairs = []
    for index, name in enumerate(names):
        expected, received = set(rule._slots), set(slots.get(name, {}))
        if expected != received:
            raise ValueError(
                f"`{name}` needs the slots {sorted(expected)} of {type(rule).__name__}. Received: {sorted(received)}"
            )
        for slot, variables in rule._slots.items():
            value = np.asarray(slots[name][slot])
            if tuple(variables[index].shape) != value.shape:
                raise ValueError(
                    f"`{name}.{slot}` has the shape {tuple(variables[index].shape)}. Received: {value.shape}"
                )
            pairs.append((variables[index], value))
    for variable, value in pairs:
        variable.assign(value)
    rule._iterations.assign(int(scalars["step"]) * (rule.gradient_accumulation_steps or 1))
    if optimizer is not rule and "loss_scale" in scalars:
        optimizer.dynamic_scale.assign(scalars["loss_scale"])
        optimizer.step_counter.assign(int(scalars["loss_scale_growth_step"]))
        if hasattr(optimizer, "steps"):
            optimizer.steps.assign(int(scalars["learning_rate_step"]))


def _rule_of(optimizer: keras.optimizers.Optimizer, *, names: Sequence[str]) -> TorchRule:
    """The rule inside a possible `LossScaleOptimizer`, checked to be built on as many variables as there are names."""
    rule = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(rule, TorchRule):
        raise TypeError(f"Expected an optimizer of keras_impl.update_rules. Received: {type(rule).__name__}")
    if not rule.built:
        raise ValueError("The optimizer has no state yet: call `optimizer.build(model.trainable_variables)` first.")
    if len(rule._trainable_variables) != len(names):
        raise ValueError(
            f"The optimizer was built with {len(rule._trainable_variables)} variables. Received: {len(names)} names."
        )
    return rule
