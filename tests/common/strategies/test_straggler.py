"""Which updates of a planted straggler are slow, and how long it sleeps after them."""

import time

from builders import make_config, make_setup

from common.config import Straggler
from common.strategies.straggler import Slowdown, slowdown_of


def test_it_sleeps_in_proportion_to_what_it_computed(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "time", lambda: 1000.5)
    slowdown = Slowdown(Straggler(rank=0, factor=3, probability=1), seed=1)
    slowdown.computed(1000.0)
    slowdown.computed(1001.0)  # a clock that was set back
    assert slept == [1.0, 0.0]


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
    setup = make_setup(make_config(tmp_path, balance={"slow": "1:2"}), size=2)
    assert slowdown_of(setup, rank=0) is None and slowdown_of(setup, rank=1) is not None
    plain = make_setup(make_config(tmp_path, balance={"slow": "1:1"}), size=2)
    assert slowdown_of(plain, rank=1) is None
