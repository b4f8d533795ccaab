"""50 updates of training: both frameworks end with the same weights, losses and optimizer state, in float64.

Each framework trains in a process of its own (`training_worker.py`), by the parts its `train.py` is made of, from the
same first weights on the same samples, without dropout, under a learning rate that goes up and then down.
"""

import importlib.util

import numpy as np
import pytest
from rule_workers import relative_difference, results
from training_worker import DATA, EPOCHS, OPTIMIZERS, STEPS, make_experiment

TOLERANCE = 1e-8
FRAMEWORKS = ("torch", "keras")


@pytest.fixture(scope="module")
def trained() -> dict[str, dict[str, np.ndarray]]:
    """The arrays of both frameworks."""
    for framework in FRAMEWORKS:
        if importlib.util.find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")
    return {framework: results("training_worker", framework) for framework in FRAMEWORKS}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", DATA)
def test_fifty_updates_end_the_same(trained: dict[str, dict[str, np.ndarray]], model: str, optimizer: str) -> None:
    torch, keras = (
        {key: value for key, value in trained[framework].items() if key.startswith(f"{model}/{optimizer}/")}
        for framework in FRAMEWORKS
    )
    # PyTorch's plain and momentum SGD count no updates.
    keras_only = {f"{model}/{optimizer}/state/step"} if f"{model}/{optimizer}/state/step" not in torch else set()
    assert set(torch) == set(keras) - keras_only
    assert all(int(side.get(f"{model}/{optimizer}/state/step", [EPOCHS * STEPS])[0]) == 50 for side in (torch, keras))
    differences = {key: relative_difference(keras[key], torch[key]) for key in torch}
    worst = max(differences, key=lambda key: differences[key])
    assert differences[worst] <= TOLERANCE, (worst, differences[worst])

    losses = torch[f"{model}/{optimizer}/losses"]
    assert len(losses) == EPOCHS
    # mse of a softmax hardly falls in 50 updates.
    assert losses.min() < losses[0] or optimizer == "mse", "a model that does not learn proves little"
    first = make_experiment(model, optimizer)[0].first_weights
    moved = {name: relative_difference(torch[f"{model}/{optimizer}/weights/{name}"], first[name]) for name in first}
    assert min(moved.values()) > 1e-4, min(moved, key=lambda name: moved[name])


def test_the_learning_rate_goes_up_and_down() -> None:
    rates = make_experiment("mlp", "momentum")[1]
    highest = int(rates.argmax())
    assert 0 < highest < len(rates) - 1 and rates[0] < rates[highest] / 2 and rates[-1] < rates[highest] / 100
