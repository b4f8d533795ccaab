"""`keras_impl.update_rules` and `keras_impl.batch_norm` against NumPy references, which PyTorch itself follows, too.

Fifty steps on a problem whose gradients depend on the weights, under warm-up and decay of the learning rate; compared
after every step, in float64. Of float32: `twins/test_parity.py`.
"""

import itertools
from dataclasses import asdict

import numpy as np
import pytest
import reference_rules
from frameworks import results
from jobs import relative_difference
from rule_cases import BATCH_NORM_CASES, BATCH_NORM_STEPS, OPTIMIZER_CASES, START, batch_norm_data, gradients

pytestmark = pytest.mark.ci

TOLERANCE = 1e-13
WORKERS = ("torch_rules_worker", "keras_rules_worker")
SLOTS = {"sgd": set(), "adam": {"exp_avg", "exp_avg_sq"}, "adamw": {"exp_avg", "exp_avg_sq"}, "rmsprop": {"square_avg"}}


def reference(name):
    """Weights after each step (STEPS, entries) and final state of each parameter."""
    case, parameters, states = OPTIMIZER_CASES[name], START, [{}, {}]
    weights = []
    for step, lr in enumerate(case.learning_rates()):
        of_step = gradients(parameters, step)
        rule = getattr(reference_rules, case.rule)
        updates = [
            rule(w, g, state, lr=lr, **case.settings) for w, g, state in zip(parameters, of_step, states, strict=True)
        ]
        parameters, states = [list(column) for column in zip(*updates, strict=True)]
        weights.append(np.concatenate([w.ravel() for w in parameters]))
    return np.stack(weights), states


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("name", OPTIMIZER_CASES)
def test_weights_and_slots_follow_the_reference(name, worker):
    arrays, case = results(worker), OPTIMIZER_CASES[name]
    weights, states = reference(name)
    for way in ("weights", "resumed") if worker.startswith("keras") else ("weights",):
        assert relative_difference(arrays[f"{name}/{way}"], weights) < TOLERANCE, way
    names = SLOTS[case.rule] | ({"momentum_buffer"} if case.settings.get("momentum") else set())
    for index, state in enumerate(states):
        prefix = f"{name}/slot/{index}/"
        slots = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
        assert slots.keys() == names
        for slot, array in slots.items():
            assert relative_difference(array, state[slot]) < TOLERANCE, slot


def test_every_case_differs_from_every_other():
    """No two cases end close together, so that each test above tests a setting of its own."""
    ends = {name: reference(name)[0][-1] for name in OPTIMIZER_CASES}
    for (name, end), (other, other_end) in itertools.combinations(ends.items(), 2):
        assert relative_difference(end, other_end) > 1e-4, (name, other)


def test_sparse_gradients_count_as_the_dense_ones_that_they_stand_for():
    arrays = results("keras_rules_worker")
    assert np.array_equal(arrays["sparse"], arrays["dense"]) and (arrays["dense"] != 1).any()


def batch_norm_reference(kind, decay, eps):
    """What layers should give; keys `<step>/<name>` and `inference`."""
    data = asdict(batch_norm_data(kind))
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
    arrays = results(f"{framework}_rules_worker")
    for key, expected in batch_norm_reference(*BATCH_NORM_CASES[case]).items():
        received = arrays["/".join(part for part in (case, way, key) if part)]
        assert relative_difference(received, expected) < TOLERANCE, key


def test_biased_and_unbiased_variance_are_distinguished():
    """The unbiased variance of PyTorch is well outside the tolerance of the biased one."""
    data = batch_norm_data("image")
    unbiased = batch_norm_reference("image", 0.9, 1e-5)["0/running_variance"]
    biased = 0.9 * data.running_variance + 0.1 * data.x[0].var(axis=(0, 1, 2))
    assert relative_difference(biased, unbiased) > 1e-3


def test_batch_norm_with_channels_in_front_not_trainable_and_in_float16():
    arrays, expected = results("keras_rules_worker"), batch_norm_reference("image", 0.9, 1e-5)
    data = asdict(batch_norm_data("image"))
    x, _ = data.pop("x"), data.pop("output_gradient")
    inference = reference_rules.batch_norm_inference(x[0], eps=1e-5, **data)
    assert relative_difference(arrays["fixed/y"], inference) < TOLERANCE
    assert np.array_equal(arrays["fixed/running_variance"], data["running_variance"])
    for name, of_float16 in {"y": 2e-3, "running_variance": 1e-3}.items():
        assert relative_difference(arrays[f"axis/{name}"], expected[f"0/{name}"]) < TOLERANCE
        assert relative_difference(arrays[f"half/{name}"], expected[f"0/{name}"]) < of_float16
    assert (arrays["half/y"].dtype, arrays["half/running_variance"].dtype) == (np.float16, np.float32)


def test_what_has_no_meaning_is_refused():
    messages = {key: str(array) for key, array in results("keras_rules_worker").items() if key.startswith("refused/")}
    assert len(messages) == 4
    for key, message in messages.items():
        assert key.removeprefix("refused/") in message
