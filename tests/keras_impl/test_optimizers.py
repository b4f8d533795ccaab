"""`keras_impl.update_rules` against PyTorch's rules: the NumPy reference, and torch itself in another process.

Fifty steps on a problem whose gradients depend on the weights, under warm-up and decay of the learning rate; compared
after every step. In float64 the three agree to rounding.
"""

import numpy as np
import pytest
import reference_rules
from frameworks import results
from jobs import relative_difference
from rule_cases import DTYPES, HALF, OPTIMIZER_CASES, STEPS, problem

pytestmark = pytest.mark.ci  # in `make test`, the mutations of twins/test_parity.py find a wrong update rule

FLOAT64 = 1e-13
TOLERANCE = {"float64": FLOAT64, "float32": 1e-5}
SLOTS = {"sgd": set(), "adam": {"exp_avg", "exp_avg_sq"}, "adamw": {"exp_avg", "exp_avg_sq"}, "rmsprop": {"square_avg"}}


def reference(name, dtype):
    """Weights after each step (STEPS, entries) and final state of each parameter, in float64 from the dtype's data."""
    case, data = OPTIMIZER_CASES[name], problem(dtype)
    parameters, states = [start.astype(np.float64) for start in data.start], [{}, {}]
    weights = []
    for step, lr in enumerate(case.learning_rates()):
        gradients = data.gradients(parameters, step)
        rule = getattr(reference_rules, case.rule)
        updates = [
            rule(w, g, state, lr=lr, **case.settings) for w, g, state in zip(parameters, gradients, states, strict=True)
        ]
        parameters, states = [list(column) for column in zip(*updates, strict=True)]
        weights.append(np.concatenate([w.ravel() for w in parameters]))
    return np.stack(weights), states


@pytest.mark.parametrize("worker", ["torch_rules_worker", "keras_optimizers_worker"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZER_CASES)
def test_weights_follow_the_reference(name, dtype, worker):
    weights, _ = reference(name, dtype)
    received = results(worker)[f"{name}/{dtype}/weights"]
    assert received.dtype == dtype
    assert relative_difference(received, weights) < TOLERANCE[dtype]


@pytest.mark.parametrize("name", OPTIMIZER_CASES)
def test_keras_follows_torch(name):
    torch, keras = results("torch_rules_worker"), results("keras_optimizers_worker")
    assert relative_difference(keras[f"{name}/float64/weights"], torch[f"{name}/float64/weights"]) < FLOAT64


@pytest.mark.parametrize("name", OPTIMIZER_CASES)
def test_slots_have_torch_names_and_values(name):
    case = OPTIMIZER_CASES[name]
    torch, keras = results("torch_rules_worker"), results("keras_optimizers_worker")
    _, states = reference(name, "float64")
    expected = SLOTS[case.rule] | ({"momentum_buffer"} if case.settings.get("momentum") else set())
    for index, state in enumerate(states):
        prefix = f"{name}/float64/slot/{index}/"
        for arrays in (torch, keras):
            assert {key.removeprefix(prefix) for key in arrays if key.startswith(prefix)} == expected
        for slot in expected:
            assert relative_difference(keras[prefix + slot], torch[prefix + slot]) < FLOAT64
            assert relative_difference(keras[prefix + slot], state[slot]) < FLOAT64


@pytest.mark.parametrize("way", ["eager", "schedule", "resumed", "saved"])
@pytest.mark.parametrize("name", OPTIMIZER_CASES)
def test_other_ways_lead_to_the_same_weights(name, way):
    """Without `tf.function`; with a schedule object; resumed from exported state; resumed from a `.keras` file."""
    weights, _ = reference(name, "float64")
    received = results("keras_optimizers_worker")[f"{name}/float64/{way}"]
    expected = weights[HALF:] if way in ("resumed", "saved") else weights
    assert len(expected) == (STEPS - HALF if way in ("resumed", "saved") else STEPS)
    assert relative_difference(received, expected) < FLOAT64


def test_every_case_differs_from_every_other():
    """No two cases end close together, so that each test above tests a setting of its own."""
    ends = {name: reference(name, "float64")[0][-1] for name in OPTIMIZER_CASES}
    for name, end in ends.items():
        for other, other_end in ends.items():
            assert name == other or relative_difference(end, other_end) > 1e-4, (name, other)


def test_keras_features_keep_their_meaning():
    arrays = results("keras_optimizers_worker")
    assert arrays["clipvalue"] == pytest.approx(2.0 - 0.5 * (1.0 + 0.1 * 2.0), rel=1e-15)  # decay after clipping
    assert arrays["excluded"] == pytest.approx(2.0 - 0.5 * 1.0, rel=1e-15)
    assert arrays["accumulation"] == pytest.approx(arrays["accumulation_as_one"], rel=1e-15)


@pytest.mark.parametrize("name", ["adam", "clipped"])
def test_sparse_gradients_count_as_the_dense_ones_they_stand_for(name):
    arrays = results("keras_optimizers_worker")
    assert np.array_equal(arrays[f"sparse_{name}"], arrays[f"dense_{name}"])
    assert not np.array_equal(arrays[f"dense_{name}"], np.ones((4, 1)))


def test_loss_scaling_keeps_and_exports_its_state():
    """Gradient 4 at scale 4 is a gradient of 1; the infinite one is skipped and halves the scale."""
    arrays = results("keras_optimizers_worker")
    expected, state = reference_rules.adam(np.array(2.0), np.array(1.0), {}, lr=0.5)
    assert relative_difference(arrays["loss_scale"], expected) < FLOAT64
    assert relative_difference(arrays["loss_scale_exp_avg"], state["exp_avg"]) < FLOAT64
    assert arrays["loss_scale_scalars"].tolist() == [1, 2.0, 0, 1, 2.0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("beta", "beta_1=1.0"),
        ("decay", "weight_decay=-1.0"),
        ("nesterov", "momentum=0.0"),
        ("rho", "rho=1.5"),
        ("unbuilt", "build"),
        ("count", "2 names"),
        ("half", "1 accumulated"),
        ("foreign", "TypeError"),
        ("slots", "exp_avg"),
        ("shape", "kernel.exp_avg_sq"),
    ],
)
def test_refuses(name, words):
    assert words in str(results("keras_optimizers_worker")[f"error_{name}"])
