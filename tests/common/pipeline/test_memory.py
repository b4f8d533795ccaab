"""The forecast of memory: by hand, and that parts of a model need parts of it."""

import pytest

from common.model.partition import cut_into_stages
from common.model.specs import model_spec
from common.model.split import split_layers
from common.pipeline.forecast import training_bytes

MLP = model_spec("mlp", input_shape=(1, 28, 28), outputs=10)
DEEP = model_spec("deep:8x1024", input_shape=(1, 28, 28), outputs=10)


def test_weights_gradients_slots_and_outputs_are_counted():
    outputs = 784 + 192 + 192 + 10  # flatten, fc1, sigmoid1, fc2
    assert training_bytes(MLP, images=1, slots=1, value_bytes=4) == 4 * (152_650 * 3 + outputs)
    assert training_bytes(MLP, images=64, slots=2, value_bytes=8) == 8 * (152_650 * 4 + 64 * outputs)
    # Statistics of BatchNorm have no gradient.
    resnet = model_spec("resnet34", input_shape=(1, 33, 33), outputs=9)
    statistics = sum(weight.shape[0] for weight in resnet.weights if not weight.trainable)
    assert training_bytes(resnet, images=0, slots=0, value_bytes=1) == 2 * resnet.parameters + statistics


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_of_many_needs_its_part_of_a_deep_model(ranks):
    whole = training_bytes(DEEP, images=64, slots=1, value_bytes=4)
    for partition in (cut_into_stages(DEEP, ranks), split_layers(DEEP, ranks)):
        parts = [training_bytes(part, images=64, slots=1, value_bytes=4) for part in partition.parts]
        assert max(parts) < 1.25 * whole / ranks
        assert sum(parts) >= whole
