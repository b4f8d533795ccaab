"""How far two sets of arrays are apart: relative to the largest entry of the reference, the worst of all."""

import math
from collections.abc import Mapping

import numpy as np


def relative_difference(value: np.ndarray, reference: np.ndarray) -> float:
    """Return the largest difference over the largest entry of the reference.

    Infinite for another shape, for floats of another dtype, and where either has entries that are no numbers. Where the
    reference is all zeros, the value must be.
    """
    if value.shape != reference.shape or (value.dtype != reference.dtype and "f" in value.dtype.kind):
        return math.inf
    if not (np.all(np.isfinite(value)) and np.all(np.isfinite(reference))):
        return math.inf
    difference = float(np.max(np.abs(value.astype(np.float64) - reference), initial=0.0))
    largest = float(np.max(np.abs(reference), initial=0.0))
    if largest == 0.0:
        return 0.0 if difference == 0.0 else math.inf
    return difference / largest


def worst_difference(values: Mapping[str, np.ndarray], references: Mapping[str, np.ndarray]) -> tuple[float, str]:
    """Return the largest relative difference of two sets of arrays and where it is; infinite for other names."""
    if values.keys() != references.keys():
        return math.inf, min(values.keys() ^ references.keys())
    differences = {name: relative_difference(values[name], references[name]) for name in references}
    worst = max(differences, key=lambda name: differences[name], default="nothing")
    return differences.get(worst, 0.0), worst
