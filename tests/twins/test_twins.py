"""The two trainers build the same models, each framework in a process of its own (`twins_worker.py`).

What they compute is compared in `test_parity.py`, their sources in `form/test_twins.py`.
"""

from functools import cache

import numpy as np
import pytest
from frameworks import call

from common.checks.parity_cases import IMAGES, make_spec
from common.model.specs import BatchNorm, Convolution, Dense, MaxPooling, model_spec
from common.model.weights import draw_initial_weights, weights_hash

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


@pytest.fixture(scope="module")
def side_of(tmp_path_factory):
    """A function of a framework that returns what its worker found."""
    folder = tmp_path_factory.mktemp("twins")
    return cache(lambda framework: call(framework, "twins_worker:facts_of", framework, folder=folder))


@pytest.fixture(params=FRAMEWORKS)
def side(request, side_of):
    return side_of(request.param)


@pytest.mark.ci
def test_same_help(side_of):
    ours, theirs = (side_of(framework)["help"] for framework in FRAMEWORKS)
    for program, words in (("train", "--lr-scaling"), ("predict", "--invert")):
        assert words in ours[program]
        assert ours[program].replace("torch_impl", "keras_impl") == theirs[program]


@pytest.mark.parametrize("model", IMAGES)
def test_names_shapes_and_first_weights_are_those_of_the_numbers(side, model):
    spec, built = make_spec(model), side["models"][model]
    assert built["parameters"] == spec.parameters == PARAMETERS[model]
    assert built["shapes"] == {weight.name: list(weight.shape) for weight in spec.weights}
    assert sorted(built["trainable"]) == sorted(weight.name for weight in spec.weights if weight.trainable)
    assert built.get("all_variables_mapped", True)
    assert built["first_weights"] == weights_hash(draw_initial_weights(spec, seed=1))  # bit for bit


def test_published_sizes_of_resnet34():
    thesis = model_spec("resnet34", input_shape=(1, 148, 197), outputs=9)
    assert (thesis.parameters, round(thesis.multiply_adds / 1e9, 3)) == (21_283_017, 2.306)
    assert sum(np.prod(weight.shape) for weight in thesis.weights if not weight.trainable) == 17_024
    assert model_spec("resnet34", input_shape=(3, 224, 224), outputs=1000).parameters == 21_797_672


def test_channels_are_last_or_first_in_memory_under_pytorch(side_of):
    assert side_of("torch")["layout"] == {"True": True, "False": False}


def test_channels_are_last_or_first_and_compute_the_same_under_keras(side_of):
    layout = side_of("keras")["layout"]
    for shapes in layout["shapes"].values():
        moved = {name: [shape[0], shape[3], *shape[1:3]] for name, shape in shapes["True"].items()}
        assert moved == shapes["False"]
    assert layout["shapes"].keys() == IMAGES.keys()
    assert 0 < layout["difference"] < 1e-13  # not 0: it was another computation


def test_torchvision_has_our_resnet34(side_of):
    spec = model_spec("resnet34", input_shape=(3, 224, 224), outputs=1000)
    theirs = side_of("torch")["torchvision"]
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
