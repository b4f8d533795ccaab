"""oneDNN, which has no kernels for float64: in float32 every model computes what NumPy does in float64, on and off.

oneDNN's own log of kernels shows that it is on and off.
"""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from frameworks import need
from numpy.lib.stride_tricks import sliding_window_view
from processes import ROOT, environment
from reference_rules import losses

from common.checks.differences import worst_difference
from common.checks.parity_cases import has_batch_norm, make_spec, random_batch, random_weights
from common.model import layers as kinds
from common.model.weights import load_weights

TOLERANCE = 1e-5  # 80 roundings of float32; up to 1.3e-6 were seen, with instructions from SSE4.1 to AVX-512
BEHIND_BATCH_NORM = 1e-4  # of gradients in training: small differences of large numbers; up to 1.3e-5 were seen
CONVOLUTIONAL = {"cnn", "simplecnn", "resnet34"}
KERNEL = re.compile(r"^onednn_verbose,(?:v1,)?primitive,exec,cpu,(\w+)", re.MULTILINE)


def kernels_of(log):
    """Return model -> kinds of oneDNN's kernels that computed it.

    Without changes of layout, and without products of matrices, which Eigen in TensorFlow takes from oneDNN anyway.
    """
    _, *parts = re.split(r"^model (\w+)\n", log, flags=re.MULTILINE)
    return {
        model: set(KERNEL.findall(lines)) - {"reorder", "gemm_api"}
        for model, lines in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.mark.ci
@pytest.mark.parametrize("framework", ["torch", "keras"])
@pytest.mark.parametrize("onednn", ["on", "off"])
def test_every_model_computes_in_float32_what_numpy_does_and_kernels_are_those_asked_for(framework, onednn, tmp_path):
    need(framework)
    worker = Path(__file__).parents[1] / "support" / "onednn_worker.py"
    command = [sys.executable, str(worker), framework, str(tmp_path), "--onednn", onednn]
    variables = environment() | {"ONEDNN_VERBOSE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    kernels = kernels_of(done.stdout)
    assert {file.name.rpartition("-")[0] for file in tmp_path.iterdir()} == kernels.keys() > CONVOLUTIONAL
    for model, found in kernels.items():
        # PyTorch multiplies matrices by MKL: of dense layers oneDNN computes nothing.
        some = onednn == "on" and (framework == "keras" or model in CONVOLUTIONAL)
        assert bool(found) == some and ("convolution" in found) == (some and model in CONVOLUTIONAL), (model, found)
    for file in tmp_path.iterdir():
        model, _, mode = file.stem.rpartition("-")
        spec = make_spec(model)
        weights = {name: value.astype("float32").astype("float64") for name, value in random_weights(spec).items()}
        expected, arrays = of_model(spec, weights, training=mode == "training"), load_weights(file)
        of_gradients = BEHIND_BATCH_NORM if mode == "training" and has_batch_norm(model) else TOLERANCE
        for is_gradient, tolerance in ((True, of_gradients), (False, TOLERANCE)):
            ours, theirs = (
                {name: value.astype("float64") for name, value in one.items()
                 if name.startswith("gradient/") == is_gradient}
                for one in (arrays, expected)
            )  # fmt: skip
            difference, where = worst_difference(ours, theirs)
            assert difference < tolerance, (model, mode, where)


# Every model in NumPy

CHANNEL = (None, slice(None), None, None)


def of_model(spec, weights, *, training):
    """Return what `outputs` of both `parity_worker.py` returns, worked out in NumPy and float64 from the spec alone.

    Outputs, losses, gradients and running statistics of a pass forward and back, with the batch of parity.
    """
    images, labels = random_batch(spec)
    values, back, weights = {"": images.transpose(0, 3, 1, 2)}, {}, {**weights}
    for row in spec.rows:
        layer = row.layer
        inputs = [values[name] for name in row.inputs]
        value, back[layer.name] = _forward(layer, inputs, weights, training=training)
        values[layer.name] = value
    of_losses = losses(value, labels)
    arrays = {"outputs": value} | {f"loss/{name}": np.array([loss]) for name, (loss, _) in of_losses.items()}
    gradients = dict.fromkeys(values, 0.0)
    gradients[spec.rows[-1].layer.name] = sum(gradient for _, gradient in of_losses.values())
    for row in reversed(spec.rows):
        layer = row.layer
        of_inputs, of_weights = back[layer.name](gradients[layer.name])
        arrays |= {f"gradient/{layer.name}.{name}": gradient for name, gradient in of_weights.items()}
        for name in row.inputs:
            gradients[name] = gradients[name] + of_inputs
    return arrays | {f"statistics/{one.name}": weights[one.name] for one in spec.weights if not one.trainable}


def _forward(layer, inputs, weights, *, training):
    """Return a layer's outputs, and the function from their gradient to that of each input and those of its weights."""
    x = inputs[0]
    own = {name.removeprefix(f"{layer.name}."): value for name, value in weights.items()
           if name.rpartition(".")[0] == layer.name}  # fmt: skip
    match layer:
        case kinds.Convolution():
            return _convolution(layer, x, **own)
        case kinds.MaxPooling():
            return _max_pooling(layer, x)
        case kinds.BatchNorm():
            after, result = _batch_norm(layer, x, own, training=training)
            weights |= {f"{layer.name}.{name}": value for name, value in after.items()}
            return result
        case kinds.Activation(function="relu"):
            return np.maximum(x, 0), lambda g: (g * (x > 0), {})
        case kinds.Activation():
            y = 1 / (1 + np.exp(-x))
            return y, lambda g: (g * y * (1 - y), {})
        case kinds.GlobalMean():
            return x.mean((2, 3)), lambda g: (np.broadcast_to(g[..., None, None], x.shape) / x[0, 0].size, {})
        case kinds.Flatten():
            return x.reshape(len(x), -1), lambda g: (g.reshape(x.shape), {})
        case kinds.Dense():
            y = x @ own["weight"].T + own.get("bias", 0.0)
            return y, lambda g: (g @ own["weight"], {"weight": g.T @ x} | ({"bias": g.sum(0)} if layer.bias else {}))
        case kinds.Add():
            return sum(inputs), lambda g: (g, {})
        case kinds.Dropout():  # which is off
            return x, lambda g: (g, {})


def _padded(layer, x, value):
    return np.pad(x, ((0, 0), (0, 0), *[(layer.padding, layer.padding)] * 2), constant_values=value)


def _windows(layer, x):
    """Return (batch, channels, height, width, kernel, kernel) of padded images."""
    step = slice(None, None, layer.stride)
    return sliding_window_view(x, (layer.kernel, layer.kernel), (2, 3))[:, :, step, step]


def _scattered(layer, x, of_place):
    """Add up, for each place in a kernel, what `of_place` has for the images (batch, channels, height, width) there."""
    padded = _padded(layer, np.zeros(x.shape), 0.0)
    for i, j in np.ndindex(layer.kernel, layer.kernel):
        part = of_place(i, j)
        height, width = (layer.stride * side for side in part.shape[2:])
        padded[:, :, i : i + height : layer.stride, j : j + width : layer.stride] += part
    sides = [slice(layer.padding, layer.padding + side) for side in x.shape[2:]]
    return padded[:, :, sides[0], sides[1]]


def _convolution(layer, x, weight, bias=0.0):
    windows = _windows(layer, _padded(layer, x, 0.0))
    y = np.tensordot(windows, weight, ([1, 4, 5], [1, 2, 3])) + bias

    def back(g):
        own = {"weight": np.tensordot(g, windows, ([0, 2, 3], [0, 2, 3]))}
        own |= {"bias": g.sum((0, 2, 3))} if layer.bias else {}
        return _scattered(layer, x, lambda i, j: np.einsum("bohw,oc->bchw", g, weight[:, :, i, j], optimize=True)), own

    return y.transpose(0, 3, 1, 2), back


def _max_pooling(layer, x):
    windows = _windows(layer, _padded(layer, x, -np.inf))
    y = windows.max((4, 5))
    # Several maxima are zeros of a ReLU, which no gradient passes.
    return y, lambda g: (_scattered(layer, x, lambda i, j: g * (windows[..., i, j] == y)), {})


def _batch_norm(layer, x, own, *, training):
    mean, variance = own["running_mean"], own["running_var"]
    count, after = x.size / x.shape[1], {}
    if training:
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
        batch = {"running_mean": mean, "running_var": variance * count / (count - 1)}
        after = {name: layer.decay * own[name] + (1 - layer.decay) * value for name, value in batch.items()}
    inverse = (variance + layer.epsilon) ** -0.5
    normal = (x - mean[CHANNEL]) * inverse[CHANNEL]

    def back(g):
        sums = {"weight": (g * normal).sum((0, 2, 3)), "bias": g.sum((0, 2, 3))}
        if training:
            g = g - (sums["bias"][CHANNEL] + normal * sums["weight"][CHANNEL]) / count
        return g * (own["weight"] * inverse)[CHANNEL], sums

    return after, (normal * own["weight"][CHANNEL] + own["bias"][CHANNEL], back)
