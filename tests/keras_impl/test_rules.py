"""`keras_impl.update_rules` and `keras_impl.batch_norm` against NumPy references, which PyTorch itself follows, too.

Fifty steps on a problem whose gradients depend on the weights, under warm-up and decay of the learning rate; compared
after every step. In float64 all agree to rounding.
"""

from dataclasses import asdict

import numpy as np
import pytest
import reference_rules
from frameworks import results
from jobs import relative_difference
from rule_cases import BATCH_NORM_CASES, BATCH_NORM_STEPS, DTYPES, OPTIMIZER_CASES, batch_norm_data, problem

pytestmark = pytest.mark.ci  # in `make test`, the mutations of twins/test_parity.py find a wrong update rule

FLOAT64 = 1e-13
TOLERANCE = {"float64": FLOAT64, "float32": 1e-5}
WORKERS = ("torch_rules_worker", "keras_rules_worker")
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


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZER_CASES)
def test_weights_and_slots_follow_the_reference(name, dtype, worker):
    arrays, case = results(worker), OPTIMIZER_CASES[name]
    weights, states = reference(name, dtype)
    for way in ("weights", "resumed") if worker.startswith("keras") else ("weights",):
        received = arrays[f"{name}/{dtype}/{way}"]
        assert received.dtype == dtype
        assert relative_difference(received, weights) < TOLERANCE[dtype], way
    names = SLOTS[case.rule] | ({"momentum_buffer"} if case.settings.get("momentum") else set())
    for index, state in enumerate(states):
        prefix = f"{name}/{dtype}/slot/{index}/"
        slots = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
        assert slots.keys() == names
        for slot, array in slots.items():
            assert relative_difference(array, state[slot]) < TOLERANCE[dtype], slot


def test_every_case_differs_from_every_other():
    """No two cases end close together, so that each test above tests a setting of its own."""
    ends = {name: reference(name, "float64")[0][-1] for name in OPTIMIZER_CASES}
    for name, end in ends.items():
        for other, other_end in ends.items():
            assert name == other or relative_difference(end, other_end) > 1e-4, (name, other)


def test_keras_features_keep_their_meaning():
    """Sparse gradients count as the dense ones that they stand for."""
    arrays = results("keras_rules_worker")
    assert arrays["clipvalue"] == pytest.approx(2.0 - 0.5 * (1.0 + 0.1 * 2.0), rel=1e-15)  # decay after clipping
    assert arrays["excluded"] == pytest.approx(2.0 - 0.5 * 1.0, rel=1e-15)
    assert np.array_equal(arrays["sparse"], arrays["dense"]) and (arrays["dense"] != 1).any()


def batch_norm_reference(kind, dtype, decay, eps):
    """What layers should give, in float64 from the dtype's data; keys `<step>/<name>` and `inference`."""
    data = {name: np.asarray(array, np.float64) for name, array in asdict(batch_norm_data(kind, dtype)).items()}
    x, gamma, beta = data["x"], data["gamma"], data["beta"]
    mean, variance = data["running_mean"], data["running_variance"]
    axes = tuple(range(x.ndim - 2))
    expected = {}
    for step, output_gradient in enumerate(data["output_gradient"]):
        y, mean, variance = reference_rules.batch_norm_training(
            x[step], gamma=gamma, beta=beta, running_mean=mean, running_variance=variance, decay=decay, eps=eps
        )
        expected |= {f"{step}/y": y, f"{step}/running_mean": mean, f"{step}/running_variance": variance}
        expected[f"{step}/x_gradient"] = reference_rules.batch_norm_input_gradient(
            x[step], output_gradient, gamma=gamma, eps=eps
        )
        expected[f"{step}/gamma_gradient"] = (output_gradient * (y - beta) / gamma).sum(axis=axes)
        expected[f"{step}/beta_gradient"] = output_gradient.sum(axis=axes)
    expected["inference"] = reference_rules.batch_norm_inference(
        x[0], gamma=gamma, beta=beta, running_mean=mean, running_variance=variance, eps=eps
    )
    assert step == BATCH_NORM_STEPS - 1
    return expected


@pytest.mark.parametrize("side", ["torch", "keras eager", "keras graph"])
@pytest.mark.parametrize("case", BATCH_NORM_CASES)
def test_batch_norm_follows_the_reference(case, side):
    framework, _, way = side.partition(" ")
    arrays, dtype = results(f"{framework}_rules_worker"), BATCH_NORM_CASES[case][1]
    for key, expected in batch_norm_reference(*BATCH_NORM_CASES[case]).items():
        received = arrays["/".join(part for part in (case, way, key) if part)]
        assert received.dtype == dtype
        assert relative_difference(received, expected) < TOLERANCE[dtype], key


def test_biased_and_unbiased_variance_are_distinguished():
    """The unbiased variance of PyTorch is well outside the tolerance of the biased one."""
    data = batch_norm_data("image", "float64")
    unbiased = batch_norm_reference("image", "float64", 0.9, 1e-5)["0/running_variance"]
    biased = 0.9 * data.running_variance + 0.1 * data.x[0].var(axis=(0, 1, 2))
    assert relative_difference(biased, unbiased) > 1e-3


def test_batch_norm_with_channels_in_front_not_trainable_and_in_float16():
    arrays, expected = results("keras_rules_worker"), batch_norm_reference("image", "float64", 0.9, 1e-5)
    data = asdict(batch_norm_data("image", "float64"))
    x, _ = data.pop("x"), data.pop("output_gradient")
    inference = reference_rules.batch_norm_inference(x[0], eps=1e-5, **data)
    assert relative_difference(arrays["fixed/y"], inference) < FLOAT64
    assert np.array_equal(arrays["fixed/running_variance"], data["running_variance"])
    for name, of_float16 in {"y": 2e-3, "running_variance": 1e-3}.items():
        assert relative_difference(arrays[f"axis/{name}"], expected[f"0/{name}"]) < FLOAT64
        assert relative_difference(arrays[f"half/{name}"], expected[f"0/{name}"]) < of_float16
    assert (arrays["half/y"].dtype, arrays["half/running_variance"].dtype) == (np.float16, np.float32)


def test_what_has_no_meaning_is_refused():
    messages = {key: str(array) for key, array in results("keras_rules_worker").items() if key.startswith("refused/")}
    assert len(messages) == 14
    for key, message in messages.items():
        assert key.removeprefix("refused/") in message
