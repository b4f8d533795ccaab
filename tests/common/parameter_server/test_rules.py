"""The update rules of servers against NumPy references of PyTorch's, and against themselves cut into shards."""

import numpy as np
import pytest
import reference_rules

from common.config import OptimizerConfig
from common.parameter_server.messages import shard_bounds
from common.parameter_server.rules import UpdateRule, slot_names

WEIGHTS, UPDATES = 11, 30
CASES = {  # settings, and the same for the reference
    "sgd": ({"momentum": 0.0, "weight_decay": 0.3}, {"weight_decay": 0.3}),
    "momentum": ({"momentum": 0.9, "weight_decay": 0.3}, {"momentum": 0.9, "weight_decay": 0.3}),
    "nesterov": ({"momentum": 0.8, "nesterov": True}, {"momentum": 0.8, "nesterov": True}),
    "adam": (
        {"optimizer": "adam", "beta1": 0.8, "beta2": 0.95, "epsilon": 0.1, "weight_decay": 0.3},
        {"betas": (0.8, 0.95), "eps": 0.1, "weight_decay": 0.3},
    ),
    "adamw": ({"optimizer": "adamw", "epsilon": 0.1, "weight_decay": 0.3}, {"eps": 0.1, "weight_decay": 0.3}),
    "rmsprop": (
        {"optimizer": "rmsprop", "alpha": 0.9, "epsilon": 0.1, "weight_decay": 0.3},
        {"alpha": 0.9, "eps": 0.1, "weight_decay": 0.3},
    ),
}


def rates():
    """One learning rate per update, which grows and falls: momentum keeps gradients, not steps."""
    return [0.1 * (update + 1) / 10 if update < 10 else 0.1 * 0.9**update for update in range(UPDATES)]


def trained(config, *, servers, dtype="float64", stop_at=None):
    """Return the weights after all updates; the state of the optimizer is handed over once, as by a resumed run."""
    generator = np.random.default_rng(3)
    weights = generator.normal(size=WEIGHTS).astype(dtype)
    bounds = shard_bounds(WEIGHTS, servers=servers)
    rules = [UpdateRule(config, weights[start:stop], slots={}, updates=0) for start, stop in bounds]
    for update, rate in enumerate(rates()):
        gradient = generator.normal(size=WEIGHTS).astype(dtype)
        if update == stop_at:
            rules = [UpdateRule(config, rule.weights, slots=rule.slots, updates=rule.updates) for rule in rules]
        before = gradient.copy()
        for rule, (start, stop) in zip(rules, bounds, strict=True):
            rule.update(gradient[start:stop], learning_rate=rate)
        assert np.array_equal(gradient, before)
    return weights


@pytest.mark.parametrize("name", CASES)
def test_rules_are_pytorchs(name):
    settings, reference = CASES[name]
    config = OptimizerConfig(**settings)
    generator, state = np.random.default_rng(3), {}
    weights = generator.normal(size=WEIGHTS)
    rule = getattr(reference_rules, config.optimizer)
    for rate in rates():
        weights, state = rule(weights, generator.normal(size=WEIGHTS), state, lr=rate, **reference)
    np.testing.assert_allclose(trained(config, servers=1), weights, rtol=1e-13, atol=1e-14)
    assert set(slot_names(config)) == set(state) - {"step"}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shards_and_a_resume_change_no_bit(name, dtype):
    config = OptimizerConfig(**CASES[name][0])
    whole = trained(config, servers=1, dtype=dtype)
    assert whole.dtype == dtype
    assert np.array_equal(trained(config, servers=3, dtype=dtype, stop_at=17), whole)


def test_shards_are_equal_to_one_weight():
    for size, servers in ((152650, 3), (10, 4), (7, 7), (21840, 1)):
        bounds = shard_bounds(size, servers=servers)
        sizes = [stop - start for start, stop in bounds]
        assert sum(sizes) == size and len(sizes) == servers and max(sizes) - min(sizes) <= 1
        assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
