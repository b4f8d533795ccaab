"""The optimizers on a flat vector of weights, with PyTorch's formulas: those of `keras_impl/update_rules.py`."""

import numpy as np

from common.config import OptimizerConfig


def slot_names(optimizer: OptimizerConfig) -> tuple[str, ...]:
    """Return what an optimizer keeps for each weight, under PyTorch's names."""
    if optimizer.optimizer == "sgd":
        return ("momentum_buffer",) if optimizer.momentum else ()
    return ("square_avg",) if optimizer.optimizer == "rmsprop" else ("exp_avg", "exp_avg_sq")


class UpdateRule:
    """Updates weights in place, in their own dtype.

    Args:
        weights: (weights,) float.
        slots: name -> (weights,) of the same dtype; zeros where one is missing.
        updates: number of updates done before.

    Attributes:
        slots: the state of the optimizer.
        updates: number of updates done.
    """

    def __init__(
        self, settings: OptimizerConfig, weights: np.ndarray, *, slots: dict[str, np.ndarray], updates: int
    ) -> None:
        self.weights = weights
        self.slots = {name: slots.get(name, np.zeros_like(weights)) for name in slot_names(settings)}
        self.updates = updates
        self._settings = settings
        self._step = {"sgd": self._sgd, "rmsprop": self._rmsprop}.get(settings.optimizer, self._adam)

    def update(self, gradient: np.ndarray, *, learning_rate: float) -> None:
        """Do one update.

        Args:
            gradient: (weights,), which is not changed.
        """
        self.updates += 1
        decay = self._settings.weight_decay
        if decay and self._settings.optimizer == "adamw":
            self.weights *= 1.0 - learning_rate * decay
        elif decay:
            gradient = gradient + decay * self.weights
        self._step(gradient, learning_rate)

    def _sgd(self, gradient: np.ndarray, learning_rate: float) -> None:
        """`torch.optim.SGD`: v <- momentum v + d; w <- w - lr v, or with Nesterov's w <- w - lr (d + momentum v)."""
        momentum = self._settings.momentum
        if momentum:
            velocity = self.slots["momentum_buffer"]
            velocity *= momentum
            velocity += gradient
            gradient = gradient + momentum * velocity if self._settings.nesterov else velocity
        self.weights -= learning_rate * gradient

    def _rmsprop(self, gradient: np.ndarray, learning_rate: float) -> None:
        """`torch.optim.RMSprop`: s <- alpha s + (1 - alpha) d^2; w <- w - lr d / (sqrt(s) + epsilon)."""
        squares = self.slots["square_avg"]
        squares *= self._settings.alpha
        squares += (1.0 - self._settings.alpha) * np.square(gradient)
        self.weights -= learning_rate * (gradient / (np.sqrt(squares) + self._settings.epsilon))

    def _adam(self, gradient: np.ndarray, learning_rate: float) -> None:
        """`torch.optim.Adam` after t updates: m <- m + (1 - beta1)(d - m); v <- beta2 v + (1 - beta2) d^2;

        w <- w - lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon).
        """
        beta1, beta2 = self._settings.beta1, self._settings.beta2
        mean, squares = self.slots["exp_avg"], self.slots["exp_avg_sq"]
        mean += (1.0 - beta1) * (gradient - mean)
        squares *= beta2
        squares += (1.0 - beta2) * np.square(gradient)
        step_size = learning_rate / (1.0 - beta1**self.updates)
        root_correction = (1.0 - beta2**self.updates) ** 0.5
        self.weights -= step_size * mean / (np.sqrt(squares) / root_correction + self._settings.epsilon)
