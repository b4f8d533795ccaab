"""One framework's side of `test_twins.py`, in its own process: `python tests/support/twins_worker.py torch FOLDER`.

Writes FOLDER/facts.json: names, shapes, hashes, help.
"""

import contextlib
import importlib
import io
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.checks.parity_cases import IMAGES, make_spec
from common.config import ModelConfig
from common.model.specs import ModelSpec
from common.model.weights import Weights, draw_initial_weights, weights_hash


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


SIDES: dict[str, Callable[..., dict[str, Any]]] = {"torch": _shapes_torch, "keras": _shapes_keras}


def main() -> None:
    """Write the facts of one framework."""
    framework, folder = sys.argv[1], Path(sys.argv[2])
    facts: dict[str, Any] = {
        "help": {program: _help(f"{framework}_impl.{program}") for program in ("train", "predict")},
        "models": {},
    }
    for name in IMAGES:
        spec = make_spec(name)
        facts["models"][name] = SIDES[framework](spec, draw_initial_weights(spec, seed=1))
    if framework == "torch":
        facts["torchvision"] = _torchvision_layers()
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # TensorFlow and Horovod take their time to leave
