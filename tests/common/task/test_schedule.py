"""Learning rates: numbers by hand; `torch_checks.py` compares them with PyTorch's schedulers."""

import numpy as np
import pytest

from common.config import ScheduleConfig
from common.task.schedule import learning_rates


def rates(size=4, steps=12, **settings):
    """Learning rates from a base of 0.1, 4 steps an epoch."""
    schedule = ScheduleConfig(**settings)
    return learning_rates(schedule, base=0.1, size=size, steps=steps, steps_per_epoch=4)


# From 0.1 to 0.4 in four equal steps.
WARM_UP = [0.175, 0.25, 0.325, 0.4]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"warmup_epochs": 1}, [*WARM_UP, *[0.4] * 8]),
        ({"warmup_epochs": 0}, [0.4] * 12),
        ({"warmup_epochs": 3, "size": 1}, [0.1] * 12),  # nothing to warm up to
        ({"warmup_epochs": 0, "lr_scaling": "none"}, [0.1] * 12),
        ({"warmup_epochs": 0.5, "lr_scaling": "sqrt"}, [0.15, *[0.2] * 11]),
        ({"warmup_epochs": 6}, [0.1 + 0.3 * step / 24 for step in range(1, 13)]),  # it does not arrive
        # After 4 steps of warm-up 8 are left; step s of them has half of 1 + cos(pi s / 8).
        ({"decay": "cosine"}, [*WARM_UP, *(0.4 * 0.5 * (1 + np.cos(np.pi * step / 8)) for step in range(8))]),
        ({"decay": "step", "decay_epochs": 1, "decay_factor": 0.5}, [*WARM_UP, *[0.4] * 4, *[0.2] * 4, *[0.1] * 4]),
        # Decay waits for the warm-up.
        (
            {"decay": "step", "decay_epochs": 0.5, "decay_factor": 0.1, "warmup_epochs": 2},
            [*(0.1 + 0.3 * step / 8 for step in range(1, 9)), 0.4, 0.4, 0.04, 0.04],
        ),
    ],
)
def test_rates_by_hand(settings, expected):
    np.testing.assert_allclose(rates(steps=len(expected), **settings), expected, rtol=1e-15)
