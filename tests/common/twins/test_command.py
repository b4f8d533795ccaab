"""`python -m common twins`, with both processes, as people call it."""

import pytest
from frameworks import need

from common.__main__ import main

STUDENT = """\
INPUT, OUTPUTS = (8, 8, 1), 10
def torch_model():
    from torch import nn
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
def keras_model():
    import keras
    from keras import layers
    inputs = keras.Input(INPUT)
    x = layers.Flatten()(layers.Conv2D(4, 3, activation="gelu")(inputs))
    return keras.Model(inputs, layers.Dense(10)(x))
"""
ATTENTION = """\
INPUT, OUTPUTS = (3, 2, 16), 3
def torch_model():
    import torch
    from torch import nn
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
            self.head = nn.Linear(16, 3)
        def forward(self, x):
            x = x.flatten(2).transpose(1, 2)
            x = x + self.attention(x, x, x, need_weights=NEEDED)[0]
            return self.head(torch.dropout(x, 0.5, train=self.training)[:, 0])
    return Model()
def keras_model():
    import keras
    from keras import layers
    inputs = keras.Input(INPUT)
    x = layers.Reshape((6, 16))(inputs)
    x = x + layers.MultiHeadAttention(2, 8, dropout=0.1)(x, x)
    return keras.Model(inputs, layers.Dense(3)(layers.Dropout(0.5)(x)[:, 0]))
"""
pytestmark = pytest.mark.ranks


@pytest.fixture(autouse=True)
def both_frameworks():
    for framework in ("torch", "keras"):
        need(framework)


def test_a_short_file_with_one_difference(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model.py").write_text(STUDENT)
    assert main(["twins", "my_model.py"]) == 1
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].startswith("DIFFERENT NUMBERS") and len(lines) <= 40 and len(shown.err.splitlines()) == 2
    assert " 1. before 3 / dense: activation" in shown.out
    assert "equal with Keras: keras.layers.ReLU()" in shown.out
    (page,) = (tmp_path / "runs").iterdir()
    assert lines[-1] == f"page: runs/{page.name}"
    assert "before 3 / dense" in page.read_text()


@pytest.mark.ci
@pytest.mark.parametrize("needed", ["True", "False"])
def test_dropout_of_attention_is_recognized_however_pytorch_calls_it(needed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model.py").write_text(ATTENTION.replace("NEEDED", needed))
    assert main(["twins", "my_model.py"]) == 0, capsys.readouterr()
    (tmp_path / "my_model.py").write_text(ATTENTION.replace("NEEDED", needed).replace("(2, 8, dropout=0.1)", "(2, 8)"))
    assert main(["twins", "my_model.py"]) == 1
    assert "dropout: 0.1 in PyTorch, 0 in Keras, at attention" in capsys.readouterr().out


@pytest.mark.ci
def test_an_error_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model.py").write_text(STUDENT.replace("nn.ReLU()", "nn.ReLU(1, 2, 3)"))
    assert main(["twins", "my_model.py"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 2  # what it is doing, and the error
    assert "torch_model() ended with TypeError" in shown.err and "my_model.py, line 4" in shown.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.ci
def test_resnet50_of_torchvision_and_keras(tmp_path, capsys):
    models = ["--torch", "torchvision.models:resnet50", "--keras"]
    models += ["keras.applications:ResNet50(weights=None, classifier_activation=None)", "--input", "96", "96", "3"]
    assert main(["twins", *models, "--page", str(tmp_path / "page.html")]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("DIFFERENT WORK")
    assert "only in Keras: conv1_conv/bias" in shown and "equal with Keras: use_bias=False" in shown
    assert "epsilon 1e-05 in PyTorch, 1.001e-05 in Keras" in shown
    assert "inside layer2.0.conv1 / conv3_block1_1_conv: strides" in shown
    assert "strides 1 in PyTorch, 2 in Keras" in shown
