"""The models as numbers: exact parameter counts, operations, layer tables, and any size that the layers allow."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UserError
from common.model.layers import Add, BatchNorm, Convolution, Dense
from common.model.specs import MODEL_NAMES, layer_table, model_spec
from common.utils.paths import ROOT

# Name, (channels, height, width), outputs, parameters.
PUBLISHED = [
    ("mlp", (1, 28, 28), 10, 152_650),
    ("cnn", (1, 28, 28), 10, 21_840),
    ("simplecnn", (1, 28, 28), 10, 149_210),
    ("resnet34", (1, 148, 197), 9, 21_283_017),
    ("resnet34", (3, 224, 224), 1000, 21_797_672),
    ("dense500", (1, 20, 25), 10, 128_256 + 256 * 10 + 10),
    ("deep", (1, 28, 28), 10, 784 * 128 + 3 * 128 * 128 + 128 * 10 + 10),
    ("deep:2x16", (1, 28, 28), 10, 784 * 16 + 16 * 16 + 16 * 10 + 10),
]


def spec_of(name, shape=(1, 28, 28), outputs=10):
    return model_spec(name, input_shape=shape, outputs=outputs)


@pytest.mark.parametrize(("name", "shape", "outputs", "parameters"), PUBLISHED)
def test_parameter_counts_are_the_published_ones(name, shape, outputs, parameters):
    spec = spec_of(name, shape, outputs)
    assert spec.parameters == parameters
    assert sum(math.prod(weight.shape) for weight in spec.weights if weight.trainable) == parameters


def test_every_model_has_its_count_checked_and_in_the_readme():
    page = (ROOT / "common/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+) \|$", page, re.M)
    # Of a model of several sizes the first one is there.
    published = {name: parameters for name, _, _, parameters in reversed(PUBLISHED) if ":" not in name}
    assert {name: int(count.replace(",", "")) for name, count in rows} == published
    assert published.keys() == set(MODEL_NAMES)


def test_resnet34_has_the_published_buffers_operations_and_gradients():
    spec = spec_of("resnet34", (1, 148, 197), 9)
    assert sum(math.prod(weight.shape) for weight in spec.weights if not weight.trainable) == 17_024
    assert spec.multiply_adds / 1e9 == pytest.approx(2.306, abs=0.0005)
    assert spec.parameters * 4 / 1e6 == pytest.approx(85.1, abs=0.05)
    convolutions = [row for row in spec.rows if isinstance(row.layer, Convolution)]
    assert len([row for row in convolutions if row.layer.kernel == 1]) == 3
    # 33 convolutions on the main path and the dense layer: the 34 of the name.
    assert len(convolutions) - 3 + 1 == 34
    norms = [row.layer for row in spec.rows if isinstance(row.layer, BatchNorm)]
    assert {(norm.decay, norm.epsilon) for norm in norms} == {(0.9, 1e-5)}


def test_operations_and_shapes_by_hand():
    # 24 x 24 x (5 x 5) x 10 + 8 x 8 x (10 x 5 x 5) x 20 + 320 x 50 + 50 x 10
    assert spec_of("cnn").multiply_adds == 144_000 + 320_000 + 16_000 + 500
    assert spec_of("mlp").multiply_adds == 784 * 192 + 192 * 10
    shapes = {row.layer.name: row.output_shape for row in spec_of("simplecnn").rows}
    assert shapes["flatten"] == (1152,)
    resnet = {row.layer.name: row.output_shape for row in spec_of("resnet34", (1, 148, 197), 9).rows}
    assert resnet["conv1"] == (64, 74, 99) and resnet["maxpool"] == (64, 37, 50)
    assert resnet["layer4.2.relu2"] == (512, 5, 7) and resnet["avgpool"] == (512,)


def test_the_table_of_layers():
    head, _, *lines, last = layer_table(spec_of("cnn")).splitlines()
    columns = ["layer", "type", "parameters", "output shape", "weights shape", "padding", "stride"]
    assert re.split(r"  +", head) == columns
    assert len(lines) == 1 + 12
    cells = {line.split()[0]: re.split(r"  +", line.strip())[1:] for line in lines}
    assert cells["input"] == ["Input", "0", "1 x 28 x 28"]
    assert cells["conv1"] == ["Convolution", "260", "10 x 24 x 24", "10 x 1 x 5 x 5", "0", "1"]
    assert cells["pool1"] == ["MaxPooling", "0", "10 x 12 x 12", "0", "2"]
    assert cells["relu1"] == ["relu", "0", "10 x 12 x 12"]
    assert cells["fc2"] == ["Dense", "510", "10", "10 x 50"]
    assert last == "cnn: 21,840 parameters, 0.480 M multiply-adds per image"
    rows = {line.split()[0]: line.split() for line in layer_table(spec_of("resnet34", (3, 224, 224))).splitlines()[2:]}
    assert rows["conv1"][-2:] == ["3", "2"] and rows["maxpool"][-2:] == ["1", "2"]
    assert rows["layer2.0.downsample.0"][-2:] == ["0", "2"] and rows["layer2.0.conv2"][-2:] == ["1", "1"]


@pytest.mark.parametrize(
    ("name", "side", "layer"),
    [("cnn", 16, "pool2"), ("simplecnn", 6, "pool1"), ("mlp", 1, ""), ("resnet34", 1, ""), ("dense500", 1, "")],
)
def test_the_smallest_images_and_those_that_a_layer_refuses(name, side, layer):
    assert spec_of(name, (1, side, side)).rows[-1].output_shape == (10,)
    if layer:
        with pytest.raises(UserError, match=rf"{layer}\. Received: {side - 1} x {side - 1} pixels, 1 channels"):
            spec_of(name, (1, side - 1, side - 1))


@pytest.mark.parametrize("name", MODEL_NAMES)
@given(
    channels=st.integers(1, 4),
    height=st.integers(16, 120),
    width=st.integers(16, 120),
    outputs=st.integers(2, 300),
)
@settings(max_examples=10)
def test_any_size_and_number_of_classes(name, channels, height, width, outputs):
    spec = spec_of(name, (channels, height, width), outputs)
    last = spec.rows[-1]
    assert isinstance(last.layer, Dense) and last.output_shape == (outputs,)
    names = [weight.name for weight in spec.weights]
    assert len(names) == len(set(names))
    shapes = {"": spec.input_shape}
    for row in spec.rows:
        assert {shapes[name] for name in row.inputs} == {row.input_shape}
        assert len(row.inputs) == 1 + isinstance(row.layer, Add)
        assert min(row.output_shape) >= 1
        shapes[row.layer.name] = row.output_shape
