"""Models as people have them: each gives a right verdict, or one line that says what to do."""

import re

import pytest

from common.twins.verdict import judge
from twins_cases import compared, written

IMPORTS_TORCH = """
    import torch
    from torch import nn
"""
IMPORTS_KERAS = """
    import keras
    from keras import layers as L
    from keras import ops
"""
TORCH = "    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))"
KERAS = "    return keras.Sequential([keras.Input(INPUT), L.Flatten(), L.Dense(3)])"


def model_file(torch=TORCH, keras=KERAS, *, shape="(2, 2, 3)", before=""):
    """Return the text of a model file."""
    return (
        f"{before}\nINPUT, OUTPUTS = {shape}, 3\n\n\ndef torch_model():{IMPORTS_TORCH}{torch}\n\n\n"
        f"def keras_model():{IMPORTS_KERAS}{keras}\n"
    )


def torch_class(forward, *, made="self.a = nn.Linear(12, 3)"):
    """Return a model whose `forward` has x, flattened."""
    return f"""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            {made}
        def forward(self, x):
            x = torch.flatten(x.permute(0, 2, 3, 1), 1)
            {forward}
    return Net()"""


def keras_class(call, *, made="self.a = L.Dense(3)"):
    """Return a subclassed model whose `call` has x, flattened."""
    return f"""
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            {made}
        def call(self, x, training=False):
            x = ops.reshape(x, (-1, 12))
            {call}
    return Net()"""


TWO = "self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 3)"
KERAS_TWO = "self.a, self.b = L.Dense(12), L.Dense(3)"
# name -> model file, and the level of the verdict or a regular expression of the error.
QUICK = {
    "downloads weights": (
        model_file("    return nn.Linear(1, 1).load_state_dict(torch.hub.load_state_dict_from_url('https://example.org/w.pth'))"),
        r"the model asks the network .*Received: example.org\. Build it without weights.*",
    ),
    "Keras downloads": (
        model_file(keras="    return keras.applications.MobileNetV2(weights='imagenet')"),
        r"the model asks the network .*Build it without weights.*",
    ),
    "ends the program on import": (model_file(before="import sys\nsys.exit('usage: train.py')"), r"the file ended with SystemExit: usage.*line 2.*"),
    "prints": (model_file(before="print('hello ' * 10)", torch="    print('building')\n" + TORCH), "equal"),
    "needs a GPU": (model_file("    return nn.Linear(12, 3).to('cuda')"), r"torch_model\(\) ended with .*line \d+\. Correct the model"),
    "shared layers": (
        model_file(
            torch_class("return self.b(self.a(torch.relu(self.a(x))))", made=TWO),
            keras_class("return self.b(self.a(ops.relu(self.a(x))))", made=KERAS_TWO),
        ),
        "equal",
    ),
    "shared in Keras only": (
        model_file(
            torch_class("return self.b(self.c(torch.relu(self.a(x))))", made=TWO + "; self.c = nn.Linear(12, 12)"),
            keras_class("return self.b(self.a(ops.relu(self.a(x))))", made=KERAS_TWO),
        ),
        "work",
    ),
    "tied weights": (
        model_file(
            torch_class("return self.b(x @ self.a.weight.T)", made=TWO),
            keras_class("return self.b(ops.matmul(x, self.a(x * 0) * 0 + ops.eye(12)) if False else self.a(x))", made=KERAS_TWO.replace("12)", "12, use_bias=False)", 1)),
        ),
        "equal|work",
    ),
    "a constant buffer": (
        model_file(
            torch_class("return self.a(x + self.table)", made="self.a = nn.Linear(12, 3); self.register_buffer('table', torch.linspace(0, 1, 12))"),
            keras_class("return self.a(x + ops.linspace(0.0, 1.0, 12, dtype='float64'))"),
        ),
        "equal",
    ),
    "nn.Sequential in a ModuleList": (
        model_file(
            torch_class("return self.a[1](self.a[0](x))", made="self.a = nn.ModuleList([nn.Sequential(nn.Linear(12, 12), nn.Tanh()), nn.Sequential(nn.Linear(12, 3))])"),
            "    return keras.Sequential([keras.Input(INPUT), L.Flatten(), L.Dense(12, activation='tanh'), L.Dense(3)])",
        ),
        "equal",
    ),
    "a Lambda layer": (
        model_file(
            torch_class("return self.a(torch.tanh(x))"),
            "    return keras.Sequential([keras.Input(INPUT), L.Flatten(), L.Lambda(lambda x: ops.tanh(x)), L.Dense(3)])",
        ),
        "equal",
    ),
    "a Lambda layer that differs": (
        model_file(
            torch_class("return self.a(torch.tanh(x))"),
            "    return keras.Sequential([keras.Input(INPUT), L.Flatten(), L.Lambda(lambda x: ops.sin(x)), L.Dense(3)])",
        ),
        "numbers",
    ),
    "channels first": (
        model_file(
            "    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(16, 3))",
            "    return keras.Sequential([keras.Input((3, 2, 2)), L.Conv2D(4, 1, data_format='channels_first'), L.Flatten(), L.Dense(3)])",
        ),
        r"keras_model\(\)'s call ended with UnimplementedError: .*only supports the NHWC tensor format on the CPU.*",
    ),
    "a policy of mixed precision": (
        model_file(before="import os", keras="    keras.config.set_dtype_policy('mixed_bfloat16')\n" + KERAS),
        r"models are compared in float64\. Received: Keras layer .* computes in bfloat16.*",
    ),
    "random numbers in PyTorch": (
        model_file(torch_class("return self.a(x + torch.randn_like(x))")),
        r"PyTorch's model draws random numbers outside dropout.*torch\.randn_like.*",
    ),
    "random numbers in Keras": (
        model_file(keras="    return keras.Sequential([keras.Input(INPUT), L.Flatten(), L.GaussianNoise(0.5), L.Dense(3)])"),
        r"Keras' model draws random numbers outside dropout.*GaussianNoise.*",
    ),
    "two outputs": (model_file(torch_class("return self.a(x), x")), r"a model returns one tensor\. Received: a tuple of 2 from PyTorch.*"),
    "a dictionary": (model_file(keras=keras_class("return {'logits': self.a(x)}")), r"a model returns one tensor\. Received: a dict of 1 from Keras.*"),
    "no trainable array": (
        model_file("    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten())", "    return keras.Sequential([keras.Input(INPUT), L.AveragePooling2D(2), L.Flatten()])"),
        "equal",
    ),
    "equal shapes and values": (
        model_file(
            torch_class("return self.b(torch.relu(self.c(torch.tanh(self.a(x)))))", made=TWO + "; self.c = nn.Linear(12, 12); nn.init.ones_(self.a.weight); nn.init.ones_(self.c.weight)"),
            keras_class("return self.b(ops.relu(self.c(ops.tanh(self.a(x)))))", made="self.c, self.a, self.b = L.Dense(12, kernel_initializer='ones'), L.Dense(12, kernel_initializer='ones'), L.Dense(3)"),
        ),
        "equal",
    ),
    "an exception in call": (model_file(keras=keras_class("raise RuntimeError('not today')")), r"keras_model\(\)'s call ended with RuntimeError: .*not today.*"),
    "an exception in forward": (model_file(torch_class("return self.missing(x)")), r"torch_model\(\)'s forward ended with AttributeError: .*missing.*"),
    "not installed": (model_file(before="import a_package_that_is_not_there"), r"the file needs what is not installed\. Received: No module named 'a_package.*"),
    "returns no model": (model_file("    return 3"), r"torch_model\(\) returns an nn\.Module\. Received: int.*"),
    "no input": ("def torch_model(): ...\ndef keras_model(): ...\n", r"a model file has INPUT.*without INPUT.*"),
    "a shape that is none": (model_file(shape="(2, -2, 3)"), r"INPUT is \(height, width, channels\).*Received: \(2, -2, 3\).*"),
    "outputs that are no numbers": (model_file(torch_class("return self.a(x) / 0")), r"PyTorch's model returns what is no number.*"),
    "an LSTM": (
        model_file(
            torch_class("return self.b(self.a(x.reshape(-1, 4, 3))[0][:, -1])", made="self.a, self.b = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 3)"),
            "    return keras.Sequential([keras.Input(INPUT), L.Reshape((4, 3)), L.LSTM(5), L.Dense(3)])",
        ),
        "undecided",
    ),
    "an LSTM by WEIGHTS": (
        model_file(
            torch_class("return self.b(self.a(x.reshape(-1, 4, 3))[0][:, -1])", made="self.a, self.b = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 3)"),
            "    return keras.Sequential([keras.Input(INPUT), L.Reshape((4, 3)), L.LSTM(5, name='lstm'), L.Dense(3)], name='net')",
            before="WEIGHTS = {'a.weight_ih_l0': 'net/lstm/lstm_cell/kernel', 'a.weight_hh_l0': 'net/lstm/lstm_cell/recurrent_kernel', 'a.bias_ih_l0 + a.bias_hh_l0': 'net/lstm/lstm_cell/bias'}",
        ),
        "training",  # two biases learn twice as fast as their sum
    ),
    "a separable convolution": (
        model_file(
            "    return nn.Sequential(nn.Conv2d(3, 3, 1, groups=3, bias=False), nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(16, 3))",
            "    return keras.Sequential([keras.Input(INPUT), L.SeparableConv2D(4, 1), L.Flatten(), L.Dense(3)])",
        ),
        "undecided",
    ),
    "WEIGHTS of no array": (model_file(before="WEIGHTS = {'2.weight': 'x'}"), r"WEIGHTS names no array of PyTorch's model\. Received: '2\.weight'.*"),
    "runs on import": (model_file(before="import numpy as np\nfor step in range(100):\n    np.random.default_rng(step).normal(size=100).sum()"), "equal"),
}
LONG = {
    "400 layers": (
        model_file(
            "    return nn.Sequential(nn.Flatten(), *(layer for _ in range(200) for layer in (nn.Linear(12, 12), nn.LayerNorm(12))), nn.Linear(12, 3))",
            "    return keras.Sequential([keras.Input(INPUT), L.Permute((3, 1, 2)), L.Flatten(), *(layer for _ in range(200) for layer in (L.Dense(12), L.LayerNormalization(epsilon=1e-5))), L.Dense(3)])",
        ),
        "equal",
    ),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    sources = {name: written(folder / "files", f"m{number}", text) for number, (name, (text, _)) in enumerate(QUICK.items())}
    return compared(sources, folder)


@pytest.mark.parametrize("name", QUICK)
def test_each_gives_a_verdict_or_one_line(outcomes, name):
    check(outcomes[name], QUICK[name][1])


@pytest.mark.ci
@pytest.mark.parametrize("name", LONG)
def test_of_many_layers(name, tmp_path):
    check(compared({name: written(tmp_path, "model", LONG[name][0])}, tmp_path)[name], LONG[name][1])


def check(outcome, expected):
    if isinstance(outcome, str):
        assert "\n" not in outcome
        assert re.fullmatch(expected, outcome), outcome
    else:
        verdict = judge(outcome)
        assert verdict.level in expected.split("|"), (verdict, outcome)
