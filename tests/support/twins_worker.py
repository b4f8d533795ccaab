"""One framework's side of `test_twins.py`, on a server of ranks: each `check_...` compares it with the numbers."""

import contextlib
import importlib
import io
import itertools
import math
import os

import numpy as np
from fake_ranks import alone

from common.checks.parity_cases import IMAGES, make_spec, random_batch
from common.config import ModelConfig, config_from_dict
from common.model.layers import BatchNorm, Convolution, Dense, MaxPooling
from common.model.partition import cut_into_stages
from common.model.specs import model_spec
from common.model.weights import draw_initial_weights, weights_hash
from common.task.prepare import prepare


def check_names_shapes_counts_and_first_weights(framework):
    models, weights = (importlib.import_module(f"{framework}_impl.{name}") for name in ("models", "weights"))
    for name in IMAGES:
        if framework == "keras":
            importlib.import_module("keras").utils.clear_session()
        spec = make_spec(name)
        first = draw_initial_weights(spec, seed=1)
        model = models.build_model(spec, ModelConfig(model=name))
        weights.load_weights(model, first, spec=spec)
        arrays = weights.get_weights(model, spec=spec)
        assert weights_hash(arrays) == weights_hash(first)
        shapes, trainable = _of_torch(model) if framework == "torch" else _of_keras(model, arrays, spec=spec)
        assert shapes == {weight.name: weight.shape for weight in spec.weights}
        assert sorted(trainable) == sorted(weight.name for weight in spec.weights if weight.trainable)
        assert sum(trainable.values()) == spec.parameters


def _of_torch(model):
    """Return the shapes of all weights, and how many values the trainable ones have."""
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items() if "num_batches" not in name}
    return shapes, {name: parameter.numel() for name, parameter in model.named_parameters()}


def _of_keras(model, arrays, *, spec):
    maps = importlib.import_module("keras_impl.weights").weight_maps(model, spec)
    names = {id(weight.variable): name for name, weight in maps.items()}
    # The seeds of dropout layers are variables too, and no weights.
    assert all(id(variable) in names for variable in model.variables if "seed" not in variable.path)
    trainable = {names[id(variable)]: math.prod(variable.shape) for variable in model.trainable_variables}
    return {name: array.shape for name, array in arrays.items()}, trainable


def check_channels_are_last_or_first(framework):
    _check_layout_torch() if framework == "torch" else _check_layout_keras()


def _check_layout_torch():
    """What a convolution makes of a batch has its channels as `--channels-last` says in memory."""
    import torch

    from torch_impl.data import ShardedData
    from torch_impl.models import build_model

    for channels_last in (True, False):
        settings = {"data": {"dataset": "synthetic:200x28x28x1x3"}, "device": {"channels_last": channels_last}}
        task = prepare(config_from_dict(settings), ranks=1)
        (images,), _ = next(ShardedData(task, comm=alone(), device=torch.device("cpu")).training(1))
        outputs = build_model(task.spec, task.config.model).get_submodule("conv1")(images)
        assert outputs.is_contiguous(memory_format=torch.channels_last) == channels_last


def _check_layout_keras():
    """Images in models have their channels as `--channels-last` says; `cnn` computes the same, as do its stages."""
    import keras
    import tensorflow as tf

    from keras_impl.models import build_model, set_precision_and_layout
    from keras_impl.weights import load_weights

    shapes, outputs = {}, []
    for name, channels_last in itertools.product(IMAGES, (True, False)):
        keras.utils.clear_session()
        config = config_from_dict({"model": {"dtype": "float64"}, "device": {"channels_last": channels_last}})
        set_precision_and_layout(config)
        spec = make_spec(name)
        model = build_model(spec, config.model)
        for layer in model.layers:
            if layer.name not in ("images", "channels_first") and len(layer.output.shape) == 4:
                shapes.setdefault((name, layer.name), []).append(layer.output.shape)
        if name == "cnn":
            load_weights(model, draw_initial_weights(spec, seed=1), spec=spec)
            images = random_batch(spec)[0].astype("float64")
            # TensorFlow's own kernels for CPUs do not take channels first, XLA's do.
            outputs.append(tf.function(model, jit_compile=not channels_last)(images).numpy())
            for part in cut_into_stages(spec, 2, after="pool1").parts:
                stage = build_model(part, config.model)
                arrays = draw_initial_weights(spec, seed=1, names=[weight.name for weight in part.weights])
                load_weights(stage, arrays, spec=part)
                images = tf.function(stage, jit_compile=not channels_last)(images).numpy()
            assert np.allclose(images, outputs[-1], rtol=1e-13, atol=0)
    assert shapes
    assert all((last[0], last[3], *last[1:3]) == first for last, first in shapes.values())
    difference = np.max(np.abs(outputs[0] - outputs[1])) / np.max(np.abs(outputs[0]))
    assert 0 < difference < 1e-13  # not 0: it was another computation


def torchvision_has_our_resnet34():
    """Compare torchvision's own ResNet-34 for 3 channels and 1000 classes with the numbers, layer by layer."""
    import torch
    from torch import nn

    from torch_impl.vision import torchvision_models

    spec = model_spec("resnet34", input_shape=(3, 224, 224), outputs=1000)
    with torch.device("meta"):
        model = torchvision_models().resnet34()
    layers = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            bias = module.bias is not None
            layers[name] = (module.out_channels, module.kernel_size, module.stride, module.padding, bias)
        elif isinstance(module, nn.MaxPool2d):
            layers[name] = (module.kernel_size, module.stride, module.padding)
        elif isinstance(module, nn.BatchNorm2d):
            layers[name] = (1 - (module.momentum or 0), module.eps)
        elif isinstance(module, nn.Linear):
            layers[name] = (module.out_features,)
    assert layers == {row.layer.name: _attributes(row.layer) for row in spec.rows if _attributes(row.layer)}
    shapes, trainable = _of_torch(model)
    assert shapes == {weight.name: weight.shape for weight in spec.weights}
    assert sum(trainable.values()) == spec.parameters


def _attributes(layer):
    if isinstance(layer, Convolution):
        pairs = [(number, number) for number in (layer.kernel, layer.stride, layer.padding)]
        return (layer.filters, *pairs, layer.bias)
    if isinstance(layer, MaxPooling):
        return (layer.kernel, layer.stride, layer.padding)
    if isinstance(layer, BatchNorm):
        return (layer.decay, layer.epsilon)
    return (layer.units,) if isinstance(layer, Dense) else ()


def help_of(framework):
    os.environ["COLUMNS"] = "120"
    text = io.StringIO()
    for program in ("train", "predict"):
        main = importlib.import_module(f"{framework}_impl.{program}").main
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            main(["--help"])
    return text.getvalue()
