"""Models in parts: where they may be cut, what each part holds, and that the parts make the whole again."""

import numpy as np
import pytest

from common.errors import UserError
from common.model.partition import cut_into_stages
from common.model.specs import MODEL_NAMES, model_spec
from common.model.split import split_layers
from common.model.weights import draw_initial_weights, weights_hash

SPECS = {
    name: model_spec(name, input_shape=(1, 37, 41) if name == "resnet34" else (1, 28, 28), outputs=10)
    for name in MODEL_NAMES
}
DIVIDED = [
    *(pytest.param(cut_into_stages(spec, 2), id=f"{name}-2-stages") for name, spec in SPECS.items()),
    pytest.param(cut_into_stages(SPECS["cnn"], 4), id="cnn-4-stages"),
    pytest.param(cut_into_stages(SPECS["resnet34"], 8), id="resnet34-8-stages"),
    *(pytest.param(split_layers(SPECS[name], 2), id=f"{name}-split") for name in MODEL_NAMES if name != "resnet34"),
    pytest.param(split_layers(SPECS["simplecnn"], 4), id="simplecnn-split-4"),
]


@pytest.mark.parametrize("partition", DIVIDED)
def test_the_parts_make_the_whole_again(partition):
    whole = draw_initial_weights(partition.whole, seed=1)
    state = {f"{weight.name}.momentum_buffer": whole[weight.name] * 2 for weight in partition.whole.weights}
    state["step"] = np.array([7])
    of_parts = [partition.cut(whole, part) for part in range(len(partition.parts))]
    for spec, weights in zip(partition.parts, of_parts, strict=True):
        assert {name: array.shape for name, array in weights.items()} == {one.name: one.shape for one in spec.weights}
    assert weights_hash(_joined(partition, of_parts)) == weights_hash(whole)
    states = [partition.cut(state, part) for part in range(len(partition.parts))]
    assert all("step" in one for one in states)
    assert weights_hash(_joined(partition, states)) == weights_hash(state)


def _joined(partition, of_parts):
    pieces = {key: [arrays[key] for arrays in of_parts if key in arrays] for arrays in of_parts for key in arrays}
    joined = {key: partition.join(key, arrays) for key, arrays in pieces.items()}
    for key, arrays in pieces.items():
        assert joined[key].shape == partition.joined_shape(key, [array.shape for array in arrays])
    return joined


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_a_model_may_be_cut_where_one_tensor_goes_on(name):
    """Layers of both sides are connected by the last one before the cut alone."""
    spec = SPECS[name]
    layers = [row.layer for row in spec.rows]
    for number, layer in enumerate(layers[:-1]):
        inputs = {name for row in spec.rows[number + 1 :] for name in row.inputs}
        crossing = inputs & {one.name for one in layers[:number]}
        try:
            cut = cut_into_stages(spec, 2, after=layer.name)
        except UserError as error:
            assert crossing or layer.name == "flatten" or "needs a layer with weights" in str(error), layer.name
        else:
            assert not crossing and cut.parts[0].rows[-1].layer is layer
            assert cut.parts[1].input_shape == cut.parts[0].rows[-1].output_shape


def test_stages_are_as_even_as_they_can_be():
    spec = SPECS["resnet34"]
    work = [part.multiply_adds for part in cut_into_stages(spec, 4).parts]
    assert sum(work) == spec.multiply_adds and max(work) < 1.25 * spec.multiply_adds / 4
    # conv2 of the CNN has most of the work; before it the fewest values go on after pool1.
    for name, last in (("cnn", "pool1"), ("mlp", "fc1")):
        assert cut_into_stages(SPECS[name], 2).parts[0].rows[-1].layer.name == last


CUT, PARTS = "the model cannot be cut after this layer.", "3 stages need 2 layers to cut after, in order."


@pytest.mark.parametrize(
    ("name", "stages", "after", "message"),
    [  # more: `refusals/ranks.toml`
        ("mlp", 3, "auto", "mlp cannot be divided into 3 parts with weights. Received: --stages 3. Give fe"),
        ("cnn", 2, "flatten", f"{CUT} Received: --cut-after flatten"),
        ("cnn", 2, "fc2", f"{CUT} Received: --cut-after fc2"),
        ("resnet34", 2, "layer1.0.conv1", CUT),
        ("cnn", 3, "conv2", f"{PARTS} Received: --stages 3"),
        ("cnn", 3, "conv2,conv1", PARTS),
        ("cnn", 3, "conv1,pool1", "every stage needs a layer with weights. Received: --cut-after conv1,pool1"),
        ("cnn", 4, None, "conv1 has 10 outputs, which cannot be split equally. Received: --model-ranks 4."),
    ],
)
def test_what_cannot_be_cut_or_split_is_refused(name, stages, after, message):
    with pytest.raises(UserError) as refused:
        if after is None:
            split_layers(SPECS[name], stages)
        else:
            cut_into_stages(SPECS[name], stages, after=after)
    assert message in str(refused.value)
