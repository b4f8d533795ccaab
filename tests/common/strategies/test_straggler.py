"""Which updates of a planted straggler are slow; that it takes time: `end_to_end/test_formulas.py`."""

import time

from builders import make_config, make_task

from common.config import Straggler
from common.strategies.straggler import Slowdown, slowdown_of


def test_the_seed_and_the_update_alone_decide_what_is_slow(monkeypatch):
    slowdown = Slowdown(Straggler(rank=0, factor=2, probability=0.25), seed=7)
    slow = [step for step in range(2000) if slowdown.is_slow(step)]
    assert 500 - 4 * 19.4 < len(slow) < 500 + 4 * 19.4  # standard deviation of the binomial distribution
    assert slow != [step for step in range(2000) if Slowdown(slowdown.straggler, seed=8).is_slow(step)]
    slept = []
    slowdown.start_at(990)  # a run that was resumed
    for step in range(990, 1010):
        monkeypatch.setattr(time, "sleep", lambda _, step=step: slept.append(step))
        slowdown.computed(0.0)
    assert slept == [step for step in slow if 990 <= step < 1010]


def test_only_the_rank_named_is_slowed_down(tmp_path):
    task = make_task(make_config(tmp_path, balance={"slow": "1:2"}), size=2)
    assert slowdown_of(task, rank=0) is None and slowdown_of(task, rank=1) is not None
