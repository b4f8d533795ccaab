"""What a step computes and moves, worked out by hand."""

import math

import pytest

from analysis.projection.work import Operation, step_operations
from common.model.specs import model_spec


def operations_of(model, **settings):
    spec = model_spec(model, input_shape=(1, 28, 28), outputs=10)
    found = step_operations(spec, **{"batch": 3, **settings})
    return {(one.part, one.layer): one for one in found}


def test_products_of_the_perceptron_by_hand():
    found = operations_of("mlp")
    flops, moved = 2 * 3 * 784 * 192, 4 * (3 * 784 + 3 * 192 + 784 * 192 + 192)
    assert found["forward", "fc1"] == Operation("forward", "fc1", flops, moved, 192, is_dense=True)
    assert found["backward", "fc1, by weights"].flops == flops
    assert ("backward", "fc1, by input") not in found  # nobody asks for the gradient of the images
    assert found["backward", "fc2, by input"].flops == 2 * 3 * 192 * 10 and found["forward", "fc2"].smallest == 10
    assert ("forward", "flatten") not in found  # which moves nothing


def test_a_convolution_is_the_product_of_its_positions():
    found = operations_of("simplecnn")["forward", "conv2"]
    assert found.flops == 2 * 3 * 24 * 24 * 8 * (4 * 3 * 3) and found.smallest == 8
    assert found.bytes == 4 * (3 * 4 * 26 * 26 + 3 * 8 * 24 * 24 + 8 * 4 * 9 + 8)
    assert operations_of("simplecnn")["forward", "conv1"].smallest == 4
    assert operations_of("simplecnn")["forward", "relu2"].smallest == math.inf


@pytest.mark.parametrize("model", ["mlp", "cnn", "simplecnn", "dense500", "resnet34"])
def test_a_step_computes_three_times_the_forward_pass_but_the_first_gradient(model):
    spec = model_spec(model, input_shape=(1, 64, 64), outputs=10)
    products = sum(one.flops for one in step_operations(spec, batch=5) if one.smallest < math.inf)
    first = next(row for row in spec.rows if row.multiply_adds)
    assert products == 2 * 5 * (3 * spec.multiply_adds - first.multiply_adds)


def test_the_update_reads_and_writes_weights_and_states():
    parameters = model_spec("mlp", input_shape=(1, 28, 28), outputs=10).parameters
    moved = {name: operations_of("mlp", optimizer=name)["update", ""].bytes for name in ("sgd", "adam")}
    # Gradient: set to zero, read; weight and velocity, or weight and two moments: read, written.
    assert moved == {"sgd": 4 * 6 * parameters, "adam": 4 * 8 * parameters}


def test_mixed_precision_halves_what_layers_move_and_not_the_update():
    single, half = operations_of("cnn"), operations_of("cnn", value_bytes=2)
    assert half["forward", "conv1"].bytes == single["forward", "conv1"].bytes / 2
    assert half["update", ""] == single["update", ""] and half["input", ""] == single["input", ""]
    assert half["forward", "conv1"].flops == single["forward", "conv1"].flops
