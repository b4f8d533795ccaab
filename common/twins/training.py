"""What differs in training alone: dropout, running statistics, what is trained, what adds to the loss."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import numpy as np

from common.twins.arrays import EQUAL, alike
from common.twins.trace import Dropout, TorchTrace

_OF_BATCH = 1e-6  # by how much a batch's statistics may differ: they are worked out of the running ones
MOST_RATES = 3  # shown, of dropout
Difference = tuple[str, str, str]  # kind, text, the line that would make them equal


def training_differences(
    *,
    trace: TorchTrace,
    keras_dropouts: Sequence[Dropout],
    statistics: Mapping[str, tuple[float, float]],
    layers: Mapping[str, tuple[str, float, float]],
    frozen: Mapping[str, Sequence[str]],
    regularizers: Sequence[str],
) -> list[Difference]:
    """Return what differs, each cause once.

    Args:
        statistics: PyTorch's name -> difference after one batch, each layer given the same input; that of the batch.
        layers: PyTorch's name -> Keras layer, share of the old value kept in PyTorch and in Keras.
        frozen: side that does not train an array that the other trains -> names.
        regularizers: and constraints of Keras' layers.
    """
    found = dropout_differences(trace.dropouts, keras_dropouts)
    found += _statistics(statistics, layers)
    for side, names in frozen.items():
        if names:
            remedy = "Keras: layer.trainable = True" if side == "Keras" else "PyTorch: parameter.requires_grad_(True)"
            found.append(("frozen", f"{side} does not train {_listed(names)}", remedy))
    if regularizers:
        text = f"Keras has {_listed(regularizers)}; PyTorch's models have nothing like it"
        found.append(("regularizer", text, "Keras: leave it out, and use weight_decay of both optimizers"))
    return found


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _statistics(
    statistics: Mapping[str, tuple[float, float]], layers: Mapping[str, tuple[str, float, float]]
) -> list[Difference]:
    momenta: dict[tuple[float, float], list[str]] = {}
    biased = []
    for name, (difference, of_batch) in statistics.items():
        layer, kept, momentum = layers[name]
        if difference > EQUAL and abs(kept - momentum) > 1e-9:
            momenta.setdefault((kept, momentum), []).append(layer)
        if of_batch > _OF_BATCH:
            biased.append(layer)
    found: list[Difference] = []
    for (kept, momentum), names in momenta.items():
        text = (
            f"running statistics: PyTorch keeps {kept:g} of the old value (momentum={1 - kept:g}), Keras {momentum:g}, "
            f"at {_listed(list(dict.fromkeys(names)))}"
        )
        found.append(("momentum", text, f"Keras: BatchNormalization(momentum={kept:g})"))
    if biased:
        text = (
            "running variance: Keras averages the biased variance (divided by n), PyTorch the unbiased one (n - 1), at "
            f"{_listed(list(dict.fromkeys(biased)))}"
        )
        found.append(("variance", text, "Keras: keras_impl.batch_norm.BatchNormalization"))
    return found


def dropout_differences(torch: Sequence[Dropout], keras: Sequence[Dropout]) -> list[Difference]:
    """Return where rates differ: places are the same if the same numbers come in; the others are compared in order."""
    left = [one for one in keras if not one.always]
    lone, rates = list[Dropout](), dict[tuple[float, float], list[str]]()
    for one in torch:
        others = np.array([other.input for other in left]).reshape(-1, 6)
        same = np.flatnonzero(alike(others, one.input)) if not one.attention else np.array([], int)
        if not len(same):
            lone.append(one)
            continue
        other = left.pop(int(same[0]))
        rates.setdefault((one.rate, other.rate), []).append(one.layer)
    for attention in (True, False):
        sides = [[one for one in side if one.attention == attention] for side in (lone, left)]
        for here, there in zip_longest(*sides):
            pair = (here.rate if here else 0.0, there.rate if there else 0.0)
            rates.setdefault(pair, []).append(here.layer if here else there.layer)
    found: list[Difference] = []
    differ = {pair: places for pair, places in rates.items() if pair[0] != pair[1]}
    for number, ((torch_rate, keras_rate), places) in enumerate(differ.items(), 1):
        text = f"dropout: {torch_rate:g} in PyTorch, {keras_rate:g} in Keras, at {_listed(places)}"
        if number == MOST_RATES and len(differ) > MOST_RATES:
            text += f"; and {len(differ) - number} more rates"
        found.append(("dropout", text, f"Keras: Dropout({torch_rate:g})" if torch_rate else "Keras: leave it out"))
        if number == MOST_RATES:
            break
    always = {
        "PyTorch": [one.layer for one in torch if one.always],
        "Keras": [one.layer for one in keras if one.always],
    }
    remedies = {"PyTorch": "F.dropout(x, training=self.training)", "Keras": "Dropout without training=True"}
    for side, elsewhere in (("PyTorch", "Keras"), ("Keras", "PyTorch")):
        if always[side] and not always[elsewhere]:
            text = f"dropout: {side} drops in inference, too, at {_listed(always[side])}"
            found.append(("dropout", text, f"{side}: {remedies[side]}"))
    return found
