"""One framework's side of `test_twins.py`, on a server of ranks: names, shapes, hashes, help."""

import contextlib
import importlib
import io
import itertools
import math
import os

from fake_ranks import alone

from common.checks.parity_cases import IMAGES, make_spec, random_batch
from common.config import ModelConfig, config_from_dict
from common.model.weights import draw_initial_weights, weights_hash
from common.training.run_setup import prepare_run


def _shapes_torch(spec, weights):
    from torch_impl.models import build_model
    from torch_impl.weights import get_weights, load_weights

    model = build_model(spec, ModelConfig(model=spec.name))
    load_weights(model, weights, spec=spec)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "shapes": {name: list(value.shape) for name, value in model.state_dict().items()
                   if not name.endswith("num_batches_tracked")},
        "trainable": [name for name, _ in model.named_parameters()],
        "first_weights": weights_hash(get_weights(model, spec=spec)),
    }  # fmt: skip


def _shapes_keras(spec, weights):
    import keras

    from keras_impl.models import build_model
    from keras_impl.weights import get_weights, load_weights, weight_maps

    keras.utils.clear_session()
    keras.config.set_floatx("float32")
    model = build_model(spec, ModelConfig(model=spec.name))
    load_weights(model, weights, spec=spec)
    names = {id(weight.variable): name for name, weight in weight_maps(model, spec).items()}
    return {
        "parameters": sum(math.prod(variable.shape) for variable in model.trainable_variables),
        # The seeds of dropout layers are variables too, and no weights.
        "shapes": {name: list(array.shape) for name, array in get_weights(model, spec=spec).items()},
        "all_variables_mapped": all(
            id(variable) in names for variable in model.variables if "seed" not in variable.path
        ),
        "trainable": [names[id(variable)] for variable in model.trainable_variables],
        "first_weights": weights_hash(get_weights(model, spec=spec)),
    }


def _layout_torch():
    """Return `--channels-last` -> whether what a convolution makes of a batch has its channels last in memory."""
    import torch

    from torch_impl.data import ShardedData
    from torch_impl.models import build_model

    layouts = {}
    for channels_last in (True, False):
        settings = {"data": {"dataset": "synthetic:200x28x28x1x3"}, "device": {"channels_last": channels_last}}
        setup = prepare_run(config_from_dict(settings), size=1)
        images, _ = next(ShardedData(setup, comm=alone(), device=torch.device("cpu")).training(1))
        outputs = build_model(setup.spec, setup.config.model).get_submodule("conv1")(images)
        layouts[str(channels_last)] = outputs.is_contiguous(memory_format=torch.channels_last)
    return layouts


def _layout_keras():
    """Return the shapes of all images inside the models, by model and `--channels-last`, and how `cnn` changes."""
    import keras
    import numpy as np
    import tensorflow as tf

    from keras_impl.models import build_model, set_precision_and_layout
    from keras_impl.weights import load_weights

    shapes = {}
    outputs = []
    for name, channels_last in itertools.product(IMAGES, (True, False)):
        keras.utils.clear_session()
        config = config_from_dict({"model": {"dtype": "float64"}, "device": {"channels_last": channels_last}})
        set_precision_and_layout(config)
        spec = make_spec(name)
        model = build_model(spec, config.model)
        inner = [layer for layer in model.layers if layer.name not in ("images", "channels_first")]
        shapes.setdefault(name, {})[str(channels_last)] = {
            layer.name: layer.output.shape for layer in inner if len(layer.output.shape) == 4
        }
        if name == "cnn":
            load_weights(model, draw_initial_weights(spec, seed=1), spec=spec)
            images = random_batch(spec)[0].astype("float64")
            # TensorFlow's own kernels for CPUs do not take channels first, XLA's do.
            outputs.append(tf.function(model, jit_compile=not channels_last)(images).numpy())
    difference = np.max(np.abs(outputs[0] - outputs[1])) / np.max(np.abs(outputs[0]))
    return {"shapes": shapes, "difference": float(difference)}


def _torchvision_layers():
    """Return name -> attributes of the layers of torchvision's own ResNet-34 for 3 channels and 1000 classes."""
    import torch
    from torch import nn

    from torch_impl.vision import torchvision_models

    with torch.device("meta"):
        model = torchvision_models().resnet34()
    layers = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            layers[name] = ["Convolution", module.out_channels, module.kernel_size, module.stride, module.padding,
                            module.bias is not None]  # fmt: skip
        elif isinstance(module, nn.MaxPool2d):
            layers[name] = ["MaxPooling", module.kernel_size, module.stride, module.padding]
        elif isinstance(module, nn.BatchNorm2d):
            layers[name] = ["BatchNorm", 1 - (module.momentum or 0), module.eps]
        elif isinstance(module, nn.Linear):
            layers[name] = ["Dense", module.out_features]
    shapes = {name: list(value.shape) for name, value in model.state_dict().items() if "num_batches" not in name}
    return {"layers": layers, "shapes": shapes, "parameters": sum(p.numel() for p in model.parameters())}


def _help(module):
    main = importlib.import_module(module).main
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main(["--help"])
    return text.getvalue()


SIDES = {"torch": _shapes_torch, "keras": _shapes_keras}
LAYOUTS = {"torch": _layout_torch, "keras": _layout_keras}


def facts_of(framework):
    """Return the facts of a framework."""
    os.environ["COLUMNS"] = "120"  # of help
    facts = {
        "help": {program: _help(f"{framework}_impl.{program}") for program in ("train", "predict")},
        "models": {},
    }
    for name in IMAGES:
        spec = make_spec(name)
        facts["models"][name] = SIDES[framework](spec, draw_initial_weights(spec, seed=1))
    facts["layout"] = LAYOUTS[framework]()
    if framework == "torch":
        facts["torchvision"] = _torchvision_layers()
    return facts
