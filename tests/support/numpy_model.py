"""Every model in NumPy and float64, from its spec alone: outputs, losses, gradients, running statistics.

`of_model` returns what `outputs` of both `parity_worker.py` returns, under the same names.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from common.checks.parity_cases import random_batch
from common.model import layers as kinds

CHANNEL = (None, slice(None), None, None)


def of_model(spec, weights, *, training):
    """Return the arrays of a pass forward and back with the batch of parity."""
    images, labels = random_batch(spec)
    values, back, weights = {"": images.transpose(0, 3, 1, 2)}, {}, {**weights}
    for row in spec.rows:
        layer = row.layer
        inputs = [values[name] for name in row.inputs]
        value, back[layer.name] = _forward(layer, inputs, weights, training=training)
        values[layer.name] = value
    losses = _losses(value, labels)
    arrays = {"outputs": value} | {f"loss/{name}": np.array([loss]) for name, (loss, _) in losses.items()}
    gradients = dict.fromkeys(values, 0.0)
    gradients[spec.rows[-1].layer.name] = sum(gradient for _, gradient in losses.values())
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


def _losses(z, labels):
    """Return name of a loss -> its mean over the batch, and the gradient of that by the outputs."""
    wanted, count = np.eye(z.shape[1])[labels], len(z)
    exponentials = np.exp(z - z.max(1, keepdims=True))
    p, s = exponentials / exponentials.sum(1, keepdims=True), 1 / (1 + np.exp(-z))

    def mse(y, to_outputs):
        return ((y - wanted) ** 2).mean(), to_outputs(2 * (y - wanted) / z.size)

    return {
        "cross_entropy": (-np.log(p[np.arange(count), labels]).mean(), (p - wanted) / count),
        "mse": mse(z, lambda g: g),
        "mse_sigmoid": mse(s, lambda g: g * s * (1 - s)),
        "mse_softmax": mse(p, lambda g: p * (g - (g * p).sum(1, keepdims=True))),
    }
