"""AdamW in NumPy, the same for both frameworks: what is compared are the gradients of their models."""

import numpy as np

RATE, DECAY, BETA1, BETA2, EPSILON = 1e-3, 0.05, 0.9, 0.999, 1e-8  # PyTorch's betas and epsilon
_CHUNK = 1 << 15  # entries updated at once, so that they stay in the cache


class AdamW:
    """AdamW (https://pytorch.org/docs/stable/generated/torch.optim.AdamW.html), in place.

    Args:
        updates: that will be made; of one alone, no moments are kept.
    """

    def __init__(self, *, updates: int) -> None:
        self._keeps = updates > 1
        self._moments: dict[str, np.ndarray] = {}

    def update(self, name: str, weights: np.ndarray, gradient: np.ndarray, *, number: int) -> None:
        """Make an update of one array; the first has the number 1."""
        weights, gradient = weights.reshape(-1), gradient.reshape(-1)
        moments = self._moments.get(name)
        if moments is None and self._keeps:
            moments = self._moments[name] = np.zeros((2, weights.size))
        for start in range(0, weights.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            slope = gradient[part]
            first, second = np.zeros((2, slope.size)) if moments is None else moments[:, part]
            first += (1 - BETA1) * (slope - first)
            second += (1 - BETA2) * (slope * slope - second)
            scale = np.sqrt(second / (1 - BETA2**number)) + EPSILON
            weights[part] *= 1 - RATE * DECAY
            weights[part] -= RATE / (1 - BETA1**number) * first / scale
