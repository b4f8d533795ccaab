"""`keras_impl.batch_norm` against PyTorch's layer: the NumPy reference, and torch itself in another process."""

import numpy as np
import pytest
import reference_rules
from frameworks import results
from jobs import relative_difference
from rule_cases import BATCH_NORM_SETTINGS, BATCH_NORM_SHAPES, BATCH_NORM_STEPS, DTYPES, batch_norm_data

pytestmark = pytest.mark.ci

TOLERANCE = {"float64": 1e-13, "float32": 1e-5}
WORKER = "keras_batch_norm_worker"


def reference(kind, setting, dtype):
    """What layers should give, in float64 from the dtype's data; keys `<step>/<name>` and `inference`."""
    decay, eps = BATCH_NORM_SETTINGS[setting]
    data = batch_norm_data(kind, dtype)
    x, output_gradient, gamma, beta, mean, variance = (
        np.asarray(getattr(data, name), dtype=np.float64)
        for name in ("x", "output_gradient", "gamma", "beta", "running_mean", "running_variance")
    )
    axes = tuple(range(x.ndim - 2))
    expected = {}
    for step in range(BATCH_NORM_STEPS):
        y, mean, variance = reference_rules.batch_norm_training(
            x[step], gamma=gamma, beta=beta, running_mean=mean, running_variance=variance, decay=decay, eps=eps
        )
        expected[f"{step}/y"] = y
        expected[f"{step}/x_gradient"] = reference_rules.batch_norm_input_gradient(
            x[step], output_gradient[step], gamma=gamma, eps=eps
        )
        expected[f"{step}/gamma_gradient"] = (output_gradient[step] * (y - beta) / gamma).sum(axis=axes)
        expected[f"{step}/beta_gradient"] = output_gradient[step].sum(axis=axes)
        expected[f"{step}/running_mean"] = mean
        expected[f"{step}/running_variance"] = variance
    expected["inference"] = reference_rules.batch_norm_inference(
        x[0], gamma=gamma, beta=beta, running_mean=mean, running_variance=variance, eps=eps
    )
    return expected


@pytest.mark.parametrize("side", ["torch", "keras eager", "keras graph"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("setting", BATCH_NORM_SETTINGS)
@pytest.mark.parametrize("kind", BATCH_NORM_SHAPES)
def test_layers_follow_the_reference(kind, setting, dtype, side):
    framework, _, way = side.partition(" ")
    arrays = results("torch_rules_worker" if framework == "torch" else WORKER)
    for key, expected in reference(kind, setting, dtype).items():
        received = arrays["/".join(part for part in (kind, setting, dtype, way, key) if part)]
        assert received.dtype == dtype
        assert relative_difference(received, expected) < TOLERANCE[dtype], key


@pytest.mark.parametrize("kind", BATCH_NORM_SHAPES)
def test_keras_follows_torch(kind):
    torch, keras = results("torch_rules_worker"), results(WORKER)
    for key in reference(kind, "default", "float64"):
        prefix = f"{kind}/default/float64"
        assert relative_difference(keras[f"{prefix}/graph/{key}"], torch[f"{prefix}/{key}"]) < 1e-13, key


def test_biased_and_unbiased_variance_are_distinguished():
    """The unbiased variance of PyTorch is well outside the tolerance of the biased one."""
    data = batch_norm_data("image", "float64")
    unbiased = reference("image", "default", "float64")["0/running_variance"]
    biased = 0.9 * data.running_variance + 0.1 * data.x[0].var(axis=(0, 1, 2))
    assert relative_difference(biased, unbiased) > 1e-3


def test_other_ways():
    """Channels in front; frozen (inference mode, statistics untouched); float16 inputs; `fit`; a saved file."""
    arrays, expected = results(WORKER), reference("image", "default", "float64")
    data = batch_norm_data("image", "float64")
    assert relative_difference(arrays["axis/y"], expected["0/y"]) < 1e-13
    assert relative_difference(arrays["axis/running_variance"], expected["0/running_variance"]) < 1e-13
    frozen = reference_rules.batch_norm_inference(
        data.x[0],
        gamma=data.gamma,
        beta=data.beta,
        running_mean=data.running_mean,
        running_variance=data.running_variance,
        eps=1e-5,
    )
    assert relative_difference(arrays["frozen/y"], frozen) < 1e-13
    assert np.array_equal(arrays["frozen/running_variance"], data.running_variance)
    assert arrays["half/y"].dtype == np.float16
    assert arrays["half/running_variance"].dtype == np.float32
    assert relative_difference(arrays["half/y"], expected["0/y"]) < 2e-3
    assert relative_difference(arrays["half/running_variance"], expected["0/running_variance"]) < 1e-3
    assert relative_difference(arrays["fit/running_variance"], expected["0/running_variance"]) < 1e-13
    assert np.array_equal(arrays["saved/inference"], arrays["fit/inference"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("one_value", "more than one value"),
        ("mask", "mask"),
        ("renorm", "renorm=True"),
        ("synchronized", "synchronized=True"),
    ],
)
def test_refuses(name, words):
    assert words in str(results(WORKER)[f"error_{name}"])
