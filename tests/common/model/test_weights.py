"""Initial weights and the weights file: same seed, same bits."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load_file, save_file

from common.errors import UserError
from common.model.specs import ModelSpec, model_spec
from common.model.weights import (
    check_weights,
    draw_initial_weights,
    load_weights,
    save_weights,
    tensor_hashes,
    weights_hash,
)

CNN = model_spec("cnn", input_shape=(1, 28, 28), outputs=10)
RESNET = model_spec("resnet34", input_shape=(3, 32, 32), outputs=10)


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype and one[name].tobytes() == other[name].tobytes(), name


def test_the_seed_and_the_name_alone_decide_the_values():
    weights, other = draw_initial_weights(CNN, seed=3), draw_initial_weights(CNN, seed=4)
    assert all((weights[name] != other[name]).all() for name in weights)
    reordered = ModelSpec(CNN.name, CNN.input_shape, CNN.outputs, CNN.rows[::-1])
    again = draw_initial_weights(reordered, seed=3)
    assert list(again) != list(weights)
    assert_same_bits(again, weights)
    same_shape = ["layer1.0.conv1.weight", "layer1.0.conv2.weight", "layer1.1.conv1.weight"]
    of_resnet = draw_initial_weights(RESNET, seed=0)
    for name, other_name in itertools.combinations(same_shape, 2):
        assert not (of_resnet[name] == of_resnet[other_name]).any()
    double = draw_initial_weights(CNN, seed=3, dtype="float64")
    assert_same_bits(weights, {name: array.astype(np.float32) for name, array in double.items()})
    assert (weights["fc1.weight"] != double["fc1.weight"]).any()


def test_the_values_never_change():
    """A new NumPy or another machine must give these values, or old runs cannot be repeated."""
    weights = draw_initial_weights(CNN, seed=1)
    assert weights_hash(weights) == "6eb0b7663846acc201e31ebf1ad5ee04"
    # The tail of a normal distribution may differ in the last bit between C libraries: eight digits are compared.
    first = draw_initial_weights(RESNET, seed=1)["conv1.weight"].ravel()[:3]
    np.testing.assert_allclose(first, [-0.00463041291, 0.000207960562, -0.0222487878], rtol=1e-7)


def test_weights_have_the_distributions_of_pytorch():
    """Five standard errors of mean, variance and deviation."""
    spec = model_spec("mlp", input_shape=(1, 28, 28), outputs=10)
    weights = draw_initial_weights(spec, seed=0, dtype="float64")
    for name, fan_in in [("fc1.weight", 784), ("fc1.bias", 784), ("fc2.weight", 192), ("fc2.bias", 192)]:
        array, bound = weights[name], fan_in**-0.5
        assert np.abs(array).max() <= bound and abs(array.mean()) < 5 * bound / np.sqrt(3 * array.size)
        assert array.var() == pytest.approx(bound**2 / 3, rel=5 * np.sqrt(0.8 / array.size))
    weights = draw_initial_weights(RESNET, seed=0, dtype="float64")
    kernel = weights["layer2.0.conv1.weight"]
    assert kernel.std() == pytest.approx(np.sqrt(2 / (128 * 9)), rel=5 / np.sqrt(2 * kernel.size))
    assert np.abs(kernel).max() > 3 * kernel.std()
    for name, value in [("bn1.weight", 1), ("bn1.bias", 0), ("bn1.running_mean", 0), ("bn1.running_var", 1)]:
        assert (weights[name] == value).all() and weights[name].shape == (64,)


def test_files_are_those_of_the_library_and_keep_every_bit_in_any_order_and_layout(tmp_path):
    arrays = {
        "a": np.arange(3, dtype=np.uint8),
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "c": np.array([7]),
        "d": np.array([True, False]),
        "e": np.zeros((0, 4)),
        "f": np.float16([1.5]),
        "g": np.array(2.5),
    }
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, tmp_path / "theirs")
    for number, written in enumerate((arrays, {name: np.asfortranarray(arrays[name]) for name in reversed(arrays)})):
        file = tmp_path / f"ours-{number}"
        assert save_weights(file, written) == weights_hash(written) == weights_hash(arrays)
        assert file.read_bytes() == (tmp_path / "theirs").read_bytes()
        assert_same_bits(load_weights(file), dict(sorted(load_file(file).items())))
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"conv1.weight": np.zeros((10, 3, 5, 5))}, r"conv1.weight should have shape \(10, 1, 5, 5\)"),
        ({"extra": np.zeros(3)}, "extra should have shape none"),
        ({"fc2.bias": None}, r"fc2.bias should have shape \(10,\). Received: none in here"),
    ],
)
def test_weights_of_another_model_are_refused_by_name(changes, words):
    weights = draw_initial_weights(CNN, seed=2) | changes
    with pytest.raises(UserError, match=words):
        check_weights({name: array for name, array in weights.items() if array is not None}, CNN, source="here")


ANY_ARRAY = st.sampled_from(["float32", "float64"]).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(max_dims=4, max_side=4))
)


@given(array=ANY_ARRAY, bit=st.integers(0, 10**6))
@settings(max_examples=60)
def test_hashes_differ_for_one_bit_name_shape_and_type(array, bit):
    data = bytearray(array.tobytes())
    bit %= len(data) * 8
    data[bit // 8] ^= 1 << bit % 8
    changed = np.frombuffer(bytes(data), array.dtype).reshape(array.shape)
    rest = {"a": np.zeros(3), "z": np.ones(2)}
    one, other = {**rest, "b": array}, {**rest, "b": changed}
    assert weights_hash(one) != weights_hash(other)
    assert (tensor_hashes(one) != tensor_hashes(other)).tolist() == [False, True, False]
    others = [{"c": array}, {"b": array.ravel(), "c": array}, {"b": array[None]}, {"b": array.view("uint8")}]
    assert len({weights_hash(weights) for weights in ({"b": array}, *others)}) == 5
