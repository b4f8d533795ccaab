"""When weights are averaged, and what differs between ranks in the meantime."""

import pytest

from common.config import StrategyConfig
from common.distributed.averaging import AveragingPlan

UPDATES = range(1, 13)


def updates(plan):
    """Return after which updates weights are averaged, weights differ, and states of the optimizer differ."""
    return (
        [step for step in UPDATES if plan.averages_after(step)],
        [step for step in UPDATES if plan.weights_differ_after(step)],
        [step for step in UPDATES if plan.optimizers_differ_after(step)],
    )


@pytest.mark.parametrize(
    ("settings", "averaged", "weights_differ", "states_differ"),
    [
        ({"average_every": 1}, [*UPDATES], [], []),
        ({"average_every": 5}, [5, 10], [1, 2, 3, 4, 6, 7, 8, 9, 11, 12], [1, 2, 3, 4, 6, 7, 8, 9, 11, 12]),
        ({"average_every": "epoch", "warmup_allreduce": 7}, [12], [8, 9, 10, 11], [8, 9, 10, 11]),
        ({"average_every": 2, "warmup_allreduce": 9, "average_state": False}, [10, 12], [11], [10, 11, 12]),
        ({"average_every": 99, "warmup_allreduce": 10}, [], [11, 12], [11, 12]),
    ],
)
def test_what_is_averaged_and_what_differs(settings, averaged, weights_differ, states_differ):
    config = StrategyConfig(strategy="averaging", **settings)
    plan = AveragingPlan(config, size=2, steps_per_epoch=6)
    assert updates(plan) == (averaged, weights_differ, states_differ)
    first, averaging = plan.rehearsed
    assert first == 0 and averaging + 1 == next(step for step in range(1, 100) if plan.averages_after(step))
    assert updates(AveragingPlan(config, size=1, steps_per_epoch=6)) == ([], [], [])
    assert updates(AveragingPlan(StrategyConfig(), size=2, steps_per_epoch=6)) == ([], [], [])
