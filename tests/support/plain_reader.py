"""Exported models, read by programs that cannot import this project: `python plain_reader.py torch|keras|onnx RUNS`.

Reads <run>/model.* and images.npy, writes <run>/plain-<target>.npy, (batch, outputs).
"""

import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np


class Blocked:
    """Finds no module of this project."""

    def find_spec(self, name, path=None, target=None):
        """Raise ModuleNotFoundError for ours."""
        if name.split(".")[0] in ("common", "torch_impl", "keras_impl", "launch", "analysis"):
            raise ModuleNotFoundError(f"{name} is blocked")


sys.meta_path.insert(0, Blocked())


def outputs_torch(file, images):
    """Read a `state_dict` into modules written here for the test: the names are the file's."""
    import torch
    from torch import nn

    state = torch.load(file, weights_only=True)
    name = file.parent.name
    if name == "resnet34":
        if torch.version.cuda is None:  # beside it torchvision's wheel, which is built for CUDA, lacks its operators
            library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in ("nms", "qnms"):
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        from torchvision.models import resnet34

        model = resnet34(num_classes=len(state["fc.bias"]))
        model.conv1 = nn.Conv2d(images.shape[3], 64, 7, stride=2, padding=3, bias=False)
    else:
        model = nn.Sequential(OrderedDict(_torch_layers(name, state)))
    model.load_state_dict(state)
    with torch.inference_mode():
        return model.eval()(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).numpy()


def _torch_layers(name, state):
    from torch import nn

    def convolution(layer):
        outputs, inputs, kernel, _ = state[f"{layer}.weight"].shape
        return layer, nn.Conv2d(inputs, outputs, kernel)

    def dense(layer):
        return layer, nn.Linear(*reversed(state[f"{layer}.weight"].shape), bias=f"{layer}.bias" in state)

    last = [("flatten", nn.Flatten()), dense("fc1"), ("a", nn.Sigmoid() if name == "mlp" else nn.ReLU()), dense("fc2")]
    if name == "cnn":
        return [convolution("conv1"), ("p1", nn.MaxPool2d(2)), ("r1", nn.ReLU()), convolution("conv2"),
                ("p2", nn.MaxPool2d(2)), ("r2", nn.ReLU()), *last]  # fmt: skip
    if name == "simplecnn":
        return [convolution("conv1"), ("r1", nn.ReLU()), convolution("conv2"), ("r2", nn.ReLU()),
                ("p1", nn.MaxPool2d(2)), *last]  # fmt: skip
    if name == "deep":
        weights = [layer.removesuffix(".weight") for layer in state if layer.endswith(".weight")]
        hidden = [module for layer in weights[:-1] for module in (dense(layer), (f"r-{layer}", nn.ReLU()))]
        return [("flatten", nn.Flatten()), *hidden, dense(weights[-1])]
    return last


def outputs_keras(file, images):
    import keras

    return keras.saving.load_model(file).predict_on_batch(images)


def outputs_onnx(file, images):
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return session.run(["outputs"], {"images": images.transpose(0, 3, 1, 2)})[0]


def main():
    target, runs = sys.argv[1], Path(sys.argv[2])
    try:
        import common  # noqa: F401
    except ModuleNotFoundError as error:
        assert "blocked" in str(error)
    for run in sorted(runs.iterdir()):
        (file,) = run.glob({"torch": "*.pt", "keras": "*.keras", "onnx": "*.onnx"}[target])
        np.save(run / f"plain-{target}.npy", globals()[f"outputs_{target}"](file, np.load(run / "images.npy")))


if __name__ == "__main__":
    main()
