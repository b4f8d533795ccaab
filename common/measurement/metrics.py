"""Sums and counts, and the metrics computed from them. Sums are reduced over ranks once, never averages."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sums:
    """Sums over samples: loss, correct predictions, count."""

    loss: float = 0.0
    correct: float = 0.0
    samples: float = 0.0

    def as_array(self) -> np.ndarray:
        """Return (3,) float64, to be summed over ranks."""
        return np.array([self.loss, self.correct, self.samples], dtype=np.float64)

    @classmethod
    def from_array(cls, array: np.ndarray) -> "Sums":
        """The inverse of `as_array`."""
        return cls(*(float(value) for value in array))

    @property
    def mean_loss(self) -> float | None:
        """Sum of the losses of all samples / number of samples; None without samples."""
        return self.loss / self.samples if self.samples else None

    @property
    def accuracy(self) -> float | None:
        """Samples with the largest output at their label / number of samples; None without samples."""
        return self.correct / self.samples if self.samples else None


def images_per_second(images: float, seconds: float) -> float | None:
    """Throughput = images of all ranks / seconds of the slowest rank; None if no time has passed."""
    return images / seconds if seconds > 0 else None
