"""The update rules of servers against NumPy references of PyTorch's, and against themselves cut into shards."""

import numpy as np
import pytest
import reference_rules
from rule_cases import OPTIMIZER_CASES, STEPS

from common.config import OptimizerConfig
from common.parameter_server.messages import shard_bounds
from common.parameter_server.rules import UpdateRule, slot_names

WEIGHTS = 11


def config_of(case):
    """Return a case's settings under the names of this project."""
    settings = {{"eps": "epsilon"}.get(name, name): value for name, value in case.settings.items()}
    if "betas" in settings:
        settings["beta1"], settings["beta2"] = settings.pop("betas")
    defaults = {"momentum": 0.0, "weight_decay": 0.01 if case.rule == "adamw" else 0.0}
    return OptimizerConfig(optimizer=case.rule, **(defaults | settings))


def trained(case, *, servers, dtype="float64", stop_at=None):
    """Return the weights after all updates; the state of the optimizer is handed over once, as by a resumed run."""
    config, generator = config_of(case), np.random.default_rng(3)
    weights = generator.normal(size=WEIGHTS).astype(dtype)
    bounds = shard_bounds(WEIGHTS, servers=servers)
    rules = [UpdateRule(config, weights[start:stop], slots={}, updates=0) for start, stop in bounds]
    for update, rate in enumerate(case.learning_rates()):
        gradient = generator.normal(size=WEIGHTS).astype(dtype)
        if update == stop_at:
            rules = [UpdateRule(config, rule.weights, slots=rule.slots, updates=rule.updates) for rule in rules]
        before = gradient.copy()
        for rule, (start, stop) in zip(rules, bounds, strict=True):
            rule.update(gradient[start:stop], learning_rate=rate)
        assert np.array_equal(gradient, before)
    return weights


@pytest.mark.parametrize("name", OPTIMIZER_CASES)
def test_rules_are_pytorchs(name):
    case = OPTIMIZER_CASES[name]
    generator, state = np.random.default_rng(3), {}
    weights = generator.normal(size=WEIGHTS)
    for rate in case.learning_rates():
        rule = getattr(reference_rules, case.rule)
        weights, state = rule(weights, generator.normal(size=WEIGHTS), state, lr=rate, **case.settings)
    np.testing.assert_allclose(trained(case, servers=1), weights, rtol=1e-13, atol=1e-14)
    assert set(slot_names(config_of(case))) == set(state) - {"step"}


@pytest.mark.parametrize("name", OPTIMIZER_CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shards_and_a_resume_change_no_bit(name, dtype):
    whole = trained(OPTIMIZER_CASES[name], servers=1, dtype=dtype)
    assert whole.dtype == dtype
    assert np.array_equal(trained(OPTIMIZER_CASES[name], servers=3, dtype=dtype, stop_at=STEPS // 2), whole)


def test_shards_are_equal_to_one_weight():
    for size, servers in ((152650, 3), (10, 4), (7, 7), (21840, 1)):
        bounds = shard_bounds(size, servers=servers)
        sizes = [stop - start for start, stop in bounds]
        assert sum(sizes) == size and len(sizes) == servers and max(sizes) - min(sizes) <= 1
        assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
