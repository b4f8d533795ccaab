"""The models as numbers: exact parameter counts, operations, layer tables, and any size that the layers allow."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UserError
from common.model.specs import MODEL_NAMES, BatchNorm, Convolution, Dense, layer_table, model_spec
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


def test_every_model_has_its_count_checked():
    assert {name for name, *_ in PUBLISHED if ":" not in name} == set(MODEL_NAMES)


def test_the_table_of_models_in_the_readme_has_the_computed_counts():
    page = (ROOT / "common/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+) \|$", page, re.M)
    stated = {name: int(count.replace(",", "")) for name, count in rows}
    computed = {}
    for name, shape, outputs, _ in [one for one in PUBLISHED if ":" not in one[0]]:
        computed.setdefault(name, spec_of(name, shape, outputs).parameters)
    assert stated == computed


def test_dense500_has_128256_parameters_up_to_its_hidden_layer():
    rows = spec_of("dense500", (1, 20, 25)).rows
    hidden = [row.layer.name for row in rows].index("relu1")
    assert sum(row.parameters for row in rows[: hidden + 1]) == 128_256
    assert spec_of("dense500", (1, 1, 500), outputs=37).parameters == 128_256 + 257 * 37


def test_resnet34_has_the_published_buffers_operations_and_gradients():
    spec = spec_of("resnet34", (1, 148, 197), 9)
    assert sum(math.prod(weight.shape) for weight in spec.weights if not weight.trainable) == 17_024
    assert spec.multiply_adds / 1e9 == pytest.approx(2.306, abs=0.0005)
    assert spec.parameters * 4 / 1e6 == pytest.approx(85.1, abs=0.05)
    convolutions = [row for row in spec.rows if isinstance(row.layer, Convolution)]
    assert len([row for row in convolutions if row.layer.kernel == 1]) == 3
    # 33 convolutions on the main path and the dense layer: the 34 of the name.
    assert len(convolutions) - 3 + 1 == 34
    assert all(
        row.layer.decay == 0.9 and row.layer.epsilon == 1e-5 for row in spec.rows if isinstance(row.layer, BatchNorm)
    )


def test_multiply_adds_by_hand():
    # 24 x 24 x (5 x 5) x 10 + 8 x 8 x (10 x 5 x 5) x 20 + 320 x 50 + 50 x 10
    assert spec_of("cnn").multiply_adds == 144_000 + 320_000 + 16_000 + 500
    assert spec_of("mlp").multiply_adds == 784 * 192 + 192 * 10


def test_shapes_by_hand():
    shapes = {row.layer.name: row.output_shape for row in spec_of("cnn").rows}
    assert shapes["conv1"] == (10, 24, 24) and shapes["pool1"] == (10, 12, 12)
    assert shapes["conv2"] == (20, 8, 8) and shapes["pool2"] == (20, 4, 4) and shapes["flatten"] == (320,)
    assert {row.layer.name: row.output_shape for row in spec_of("simplecnn").rows}["flatten"] == (1152,)
    resnet = {row.layer.name: row.output_shape for row in spec_of("resnet34", (1, 148, 197), 9).rows}
    assert resnet["conv1"] == (64, 74, 99) and resnet["maxpool"] == (64, 37, 50)
    assert resnet["layer4.2.relu2"] == (512, 5, 7) and resnet["avgpool"] == (512,)


def test_a_block_that_changes_channels_has_a_convolution_in_its_shortcut():
    spec = spec_of("resnet34", (3, 64, 64))
    for name, shortcut, source in [
        ("layer1.0.add", "maxpool", "layer1.0.bn2"),
        ("layer2.0.add", "layer2.0.downsample.1", "layer2.0.bn2"),
        ("layer2.1.add", "layer2.0.relu2", "layer2.1.bn2"),
    ]:
        layer = spec[name]
        assert (layer.shortcut, layer.source) == (shortcut, source)
    assert spec["layer3.0.downsample.0"].source == "layer2.3.relu2"
    assert not spec.has_layer("layer1.0.downsample.0") and spec.has_layer("layer4.0.downsample.0")


def test_layer_table_of_cnn():
    lines = layer_table(spec_of("cnn")).splitlines()
    assert lines[0].split("  ")[0] == "layer"
    for head in ("type", "parameters", "output shape", "weights shape", "padding", "stride"):
        assert head in lines[0]
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[2:-1]]
    assert cells[0] == ["input", "Input", "0", "1 x 28 x 28"]
    assert cells[1] == ["conv1", "Convolution", "260", "10 x 24 x 24", "10 x 1 x 5 x 5", "0", "1"]
    assert cells[2] == ["pool1", "MaxPooling", "0", "10 x 12 x 12", "0", "2"]
    assert cells[3] == ["relu1", "relu", "0", "10 x 24 x 24".replace("24", "12")]
    assert cells[-1] == ["fc2", "Dense", "510", "10", "10 x 50"]
    assert len(cells) == 1 + 12
    assert lines[-1] == "cnn: 21,840 parameters, 0.480 M multiply-adds per image"


def test_layer_table_shows_padding_and_stride_of_resnet34():
    rows = {line.split()[0]: line.split() for line in layer_table(spec_of("resnet34", (3, 224, 224))).splitlines()[2:]}
    assert rows["conv1"][-2:] == ["3", "2"] and rows["maxpool"][-2:] == ["1", "2"]
    assert rows["layer2.0.downsample.0"][-2:] == ["0", "2"] and rows["layer2.0.conv2"][-2:] == ["1", "1"]


@pytest.mark.parametrize(
    ("name", "side", "layer"), [("cnn", 15, "pool2"), ("cnn", 4, "conv1"), ("simplecnn", 5, "pool1")]
)
def test_too_small_images_are_refused_by_name(name, side, layer):
    with pytest.raises(UserError, match=rf"{layer}\. Received: {side} x {side} pixels, 1 channels") as error:
        spec_of(name, (1, side, side))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "side"), [("mlp", 1), ("cnn", 16), ("simplecnn", 6), ("resnet34", 1), ("dense500", 1)]
)
def test_the_smallest_images(name, side):
    assert spec_of(name, (1, side, side)).rows[-1].output_shape == (10,)


@given(
    name=st.sampled_from(MODEL_NAMES),
    channels=st.integers(1, 4),
    height=st.integers(16, 120),
    width=st.integers(16, 120),
    outputs=st.integers(2, 300),
)
@settings(max_examples=40)
def test_any_size_and_number_of_classes(name, channels, height, width, outputs):
    spec = spec_of(name, (channels, height, width), outputs)
    last = spec.rows[-1]
    assert isinstance(last.layer, Dense) and last.output_shape == (outputs,)
    names = [weight.name for weight in spec.weights]
    assert len(names) == len(set(names))
    shapes = {"": spec.input_shape}
    for row in spec.rows:
        assert row.input_shape == shapes[row.layer.source]
        assert min(row.output_shape) >= 1
        shapes[row.layer.name] = shapes[""] = row.output_shape
        if hasattr(row.layer, "shortcut"):
            assert shapes[row.layer.shortcut] == row.output_shape
