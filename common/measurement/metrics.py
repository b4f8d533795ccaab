"""Sums and counts, and the metrics computed from them. Sums are reduced over ranks once, never averages."""

from typing import NamedTuple


class Sums(NamedTuple):
    """Sums over samples: loss, correct predictions, count."""

    loss: float = 0.0
    correct: float = 0.0
    samples: float = 0.0

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
