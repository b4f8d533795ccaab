"""The two trainers build the same models, each framework in a process of its own (`twins_worker.py`).

What they compute is compared in `test_parity.py`, their sources in `form/test_twins.py`.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frameworks import call

from common.checks.parity_cases import IMAGES, make_spec
from common.model.specs import BatchNorm, Convolution, Dense, MaxPooling, model_spec
from common.model.weights import draw_initial_weights, weights_hash

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ("torch", "keras")
# facts: exact counts of trainable values
PARAMETERS = {
    "mlp": 152_650,
    "cnn": 21_840,
    "simplecnn": 149_210,
    "resnet34": 21_283_017,
    "dense500": 128_256 + 256 * 10 + 10,  # up to the hidden layer, then as many outputs as asked for
    "deep": 784 * 128 + 3 * 128 * 128 + 128 * 10 + 10,
}
Side = dict[str, Any]  # what one framework's worker wrote


@pytest.fixture(scope="module")
def side_of(tmp_path_factory):
    """A function of a framework that returns its side."""
    folder = tmp_path_factory.mktemp("twins")
    return cache(lambda framework: call(framework, "twins_worker:facts_of", framework, folder=folder))


@pytest.fixture(scope="module")
def torch_side(side_of):
    return side_of("torch")


@pytest.fixture(scope="module")
def keras_side(side_of):
    return side_of("keras")


@pytest.fixture(params=FRAMEWORKS)
def side(request):
    return request.getfixturevalue(f"{request.param}_side")


@pytest.mark.ci
def test_same_help(torch_side, keras_side):
    for program in ("train", "predict"):
        texts = [torch_side["help"][program], keras_side["help"][program]]
        assert len(texts[0]) > 500
        assert texts[0].replace("torch_impl", "keras_impl") == texts[1]
    assert all(f"--{flag}" in torch_side["help"]["train"] for flag in ("recipe", "max-steps", "lr-scaling"))


@pytest.mark.parametrize("model", IMAGES)
def test_names_shapes_and_counts_are_those_of_the_numbers(side, model):
    spec, built = make_spec(model), side["models"][model]
    assert built["parameters"] == spec.parameters == PARAMETERS[model]
    assert built["shapes"] == {weight.name: list(weight.shape) for weight in spec.weights}
    assert sorted(built["trainable"]) == sorted(weight.name for weight in spec.weights if weight.trainable)
    assert built.get("all_variables_mapped", True)


def test_published_sizes_of_resnet34():
    thesis = model_spec("resnet34", input_shape=(1, 148, 197), outputs=9)
    assert (thesis.parameters, round(thesis.multiply_adds / 1e9, 3)) == (21_283_017, 2.306)
    assert sum(np.prod(weight.shape) for weight in thesis.weights if not weight.trainable) == 17_024
    assert model_spec("resnet34", input_shape=(3, 224, 224), outputs=1000).parameters == 21_797_672


@pytest.mark.parametrize("model", IMAGES)
def test_first_weights_arrive_bit_for_bit(side, model):
    assert side["models"][model]["first_weights"] == weights_hash(draw_initial_weights(make_spec(model), seed=1))


def test_channels_are_last_or_first_in_memory_under_pytorch(torch_side):
    assert torch_side["layout"] == {"True": True, "False": False}


@pytest.mark.parametrize("model", IMAGES)
def test_channels_are_last_or_first_under_keras(keras_side, model):
    shapes = keras_side["layout"]["shapes"][model]
    moved = {name: [shape[0], shape[3], *shape[1:3]] for name, shape in shapes["True"].items()}
    assert moved == shapes["False"]


def test_channels_first_compute_the_same_under_keras(keras_side):
    assert 0 < keras_side["layout"]["difference"] < 1e-13  # not 0: it was another computation


def test_torchvision_has_our_resnet34(torch_side):
    spec = model_spec("resnet34", input_shape=(3, 224, 224), outputs=1000)
    theirs = torch_side["torchvision"]
    assert theirs["parameters"] == spec.parameters
    assert theirs["shapes"] == {weight.name: list(weight.shape) for weight in spec.weights}
    assert theirs["layers"] == layer_attributes(spec)


def layer_attributes(spec):
    """Return name -> type and attributes of the layers that have any, as `twins_worker.py` reads them."""
    layers = {}
    for row in spec.rows:
        layer = row.layer
        if isinstance(layer, Convolution):
            pairs = [[number, number] for number in (layer.kernel, layer.stride, layer.padding)]
            layers[layer.name] = ["Convolution", layer.filters, *pairs, layer.bias]
        elif isinstance(layer, MaxPooling):
            layers[layer.name] = ["MaxPooling", layer.kernel, layer.stride, layer.padding]
        elif isinstance(layer, BatchNorm):
            layers[layer.name] = ["BatchNorm", layer.decay, layer.epsilon]
        elif isinstance(layer, Dense):
            layers[layer.name] = ["Dense", layer.units]
    return layers
