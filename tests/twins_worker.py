"""One framework's side of `test_twins.py`, in a process of its own: `python tests/twins_worker.py torch FOLDER`.

Writes FOLDER/facts.json (names, shapes, hashes, help) and FOLDER/arrays.npz (outputs, losses, gradients).
"""

import contextlib
import importlib
import io
import itertools
import json
import math
import os
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from common.config import ModelConfig, OptimizerConfig
from common.initial_weights import Weights, draw_initial_weights, weights_hash
from common.model_specs import ModelSpec, model_spec

# model -> input shape (channels, height, width) and outputs. Odd sides for resnet34, which show where zeros are padded.
CASES = {
    "mlp": ((1, 28, 28), 10),
    "cnn": ((1, 28, 28), 10),
    "simplecnn": ((1, 28, 28), 10),
    "dense500": ((1, 20, 25), 10),
    "resnet34": ((1, 45, 61), 9),
}
LOSSES = [("cross_entropy", "linear"), ("mse", "linear"), ("mse", "sigmoid"), ("mse", "softmax")]
BATCH = 3

MODES = ("inference", "training")
DTYPES: tuple[Literal["float64", "float32"], ...] = ("float64", "float32")
Dtype = Literal["float64", "float32"]

# (outputs, losses by name, gradients by the weights file's names, running statistics afterwards)
Answer = tuple[np.ndarray, dict[str, float], Weights, Weights]


def make_spec(name: str) -> ModelSpec:
    """Return the model of a case."""
    shape, outputs = CASES[name]
    return model_spec(name, input_shape=shape, outputs=outputs)


def random_weights(spec: ModelSpec) -> Weights:
    """Return float64 weights with nothing left at its first value: scales, shifts and running statistics too."""
    weights = {}
    for weight in spec.weights:
        generator = np.random.default_rng(zlib.crc32(weight.name.encode()))
        if weight.name.endswith("running_var") or weight.initializer == "ones":
            weights[weight.name] = generator.uniform(0.5, 1.5, weight.shape)
        else:
            fan_in = math.prod(weight.shape[1:])
            weights[weight.name] = generator.normal(0.0, max(1, fan_in) ** -0.5, weight.shape)
    return weights


def random_batch(spec: ModelSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return images (batch, height, width, channels) float64 and labels (batch,) int64."""
    channels, height, width = spec.input_shape
    generator = np.random.default_rng(5)
    return generator.normal(size=(BATCH, height, width, channels)), generator.integers(0, spec.outputs, BATCH)


def loss_name(loss: str, activation: str) -> str:
    """Name of a loss in the results."""
    return f"{loss}_{activation}"


def statistics_of(weights: Weights, spec: ModelSpec) -> Weights:
    """Return the running statistics among the weights."""
    return {weight.name: weights[weight.name] for weight in spec.weights if not weight.trainable}


def _torch(spec: ModelSpec, weights: Weights, *, dtype: Dtype, training: bool) -> Answer:
    import torch

    from torch_impl.models import build_model
    from torch_impl.optimizers import loss_per_sample
    from torch_impl.weights import get_weights, load_weights

    model = build_model(spec, ModelConfig(model=spec.name, dtype=dtype, dropout=False))
    load_weights(model, weights, spec=spec)
    model.train(training)
    images, labels = random_batch(spec)
    outputs = model(torch.from_numpy(images.astype(dtype)).permute(0, 3, 1, 2))
    losses = {
        loss_name(loss, activation): loss_per_sample(
            outputs,
            torch.from_numpy(labels),
            config=OptimizerConfig(loss=loss),  # type: ignore[arg-type]
            model_config=ModelConfig(output_activation=activation),  # type: ignore[arg-type]
        ).mean()
        for loss, activation in LOSSES
    }
    sum(losses.values()).backward()  # type: ignore[union-attr]
    gradients = {name: value.grad.numpy() for name, value in model.named_parameters() if value.grad is not None}
    statistics = statistics_of(get_weights(model, spec=spec), spec)
    return outputs.detach().numpy(), {name: float(loss) for name, loss in losses.items()}, gradients, statistics


def _keras(spec: ModelSpec, weights: Weights, *, dtype: Dtype, training: bool) -> Answer:
    import keras
    import tensorflow as tf

    from keras_impl.models import build_model
    from keras_impl.optimizers import build_loss
    from keras_impl.weights import get_weights, load_weights, weight_maps

    keras.utils.clear_session()  # forgets the dtype of the model before
    keras.config.set_floatx(dtype)
    model = build_model(spec, ModelConfig(model=spec.name, dtype=dtype, dropout=False))
    load_weights(model, weights, spec=spec)
    images, labels = random_batch(spec)
    with tf.GradientTape() as tape:
        outputs = model(images.astype(dtype), training=training)
        losses = {
            # Keras' `compile` takes the mean over the samples where the loss has not.
            loss_name(loss, activation): tf.reduce_mean(
                build_loss(
                    OptimizerConfig(loss=loss),  # type: ignore[arg-type]
                    ModelConfig(output_activation=activation),  # type: ignore[arg-type]
                )(labels, outputs)
            )
            for loss, activation in LOSSES
        }
        total = sum(losses.values())
    maps = weight_maps(model, spec)
    names = [weight.name for weight in spec.weights if weight.trainable]
    values = tape.gradient(total, [maps[name].variable.value for name in names])
    gradients = {name: maps[name].to_file(value.numpy()) for name, value in zip(names, values, strict=True)}
    statistics = statistics_of(get_weights(model, spec=spec), spec)
    return outputs.numpy(), {name: float(loss) for name, loss in losses.items()}, gradients, statistics


def _shapes_torch(spec: ModelSpec, weights: Weights) -> dict[str, Any]:
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


def _shapes_keras(spec: ModelSpec, weights: Weights) -> dict[str, Any]:
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


def _torchvision_layers() -> dict[str, Any]:
    """Return name -> attributes of the layers of torchvision's own ResNet-34 for 3 channels and 1000 classes."""
    import torch
    from torch import nn

    from torch_impl.vision import torchvision_models

    with torch.device("meta"):
        model = torchvision_models().resnet34()
    layers: dict[str, Any] = {}
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


def _help(module: str) -> str:
    main = importlib.import_module(module).main
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main(["--help"])
    return text.getvalue()


SIDES: dict[str, tuple[Callable[..., Answer], Callable[..., dict[str, Any]]]] = {
    "torch": (_torch, _shapes_torch),
    "keras": (_keras, _shapes_keras),
}


def main() -> None:
    """Write the facts and arrays of one framework."""
    framework, folder = sys.argv[1], Path(sys.argv[2])
    answer, shapes = SIDES[framework]
    facts: dict[str, Any] = {"models": {}, "help": {}}
    arrays: dict[str, np.ndarray] = {}
    for program in ("train", "predict"):
        facts["help"][program] = _help(f"{framework}_impl.{program}")
    for name in CASES:
        spec = make_spec(name)
        facts["models"][name] = shapes(spec, draw_initial_weights(spec, seed=1))
        for mode, dtype in itertools.product(MODES, DTYPES):
            weights = {weight: value.astype(dtype) for weight, value in random_weights(spec).items()}
            outputs, losses, gradients, statistics = answer(spec, weights, dtype=dtype, training=mode == "training")
            key = f"{name}/{mode}/{dtype}"
            arrays[f"{key}/outputs"] = outputs
            arrays |= {f"{key}/{loss}": np.array([value]) for loss, value in losses.items()}
            arrays |= {f"{key}/gradient/{weight}": value for weight, value in gradients.items()}
            arrays |= {f"{key}/statistics/{weight}": value for weight, value in statistics.items()}
    if framework == "torch":
        facts["torchvision"] = _torchvision_layers()
    (folder / "facts.json").write_text(json.dumps(facts))
    np.savez(folder / "arrays.npz", allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # TensorFlow and Horovod take their time to leave
