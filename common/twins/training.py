"""What differs in training alone: dropout, running statistics, what is trained, what adds to the loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from common.twins.arrays import EQUAL, alike
from common.twins.comparison import Cause, listed
from common.twins.trace import Dropout

_OF_BATCH = 1e-6  # by how much a batch's statistics may differ: they are worked out of the running ones
MOST_RATES = 3  # shown, of dropout


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """A running statistic of both sides, after one batch for which each layer was given the same input."""

    layer: str  # of Keras
    kept_by_torch: float  # share of the old value
    kept_by_keras: float
    difference: float  # relative
    batch_difference: float  # of that of the batch alone


def _difference(kind: str, text: str, remedy: str) -> Cause:
    return Cause(kind=kind, text=text, remedy=remedy, level="training")


def frozen_causes(frozen: Mapping[str, list[str]]) -> list[Cause]:
    """Return which side (PyTorch, Keras) does not train arrays that the other trains."""
    remedies = {"PyTorch": "PyTorch: parameter.requires_grad_(True)", "Keras": "Keras: layer.trainable = True"}
    return [
        _difference("frozen", f"{side} does not train {listed(names, most=2)}", remedies[side])
        for side, names in frozen.items()
        if names
    ]


def regularizer_causes(regularizers: list[str]) -> list[Cause]:
    """Return that Keras' layers have regularizers or constraints."""
    if not regularizers:
        return []
    text = f"Keras has {listed(regularizers, most=2)}; PyTorch's models have nothing like it"
    return [_difference("regularizer", text, "Keras: leave it out, and use weight_decay of both optimizers")]


def statistics_causes(statistics: Sequence[Statistic]) -> list[Cause]:
    """Return where running statistics differ, by what is kept of them and by what is added."""
    layers: dict[tuple[float, float], list[str]] = {}
    for statistic in statistics:
        shares = statistic.kept_by_torch, statistic.kept_by_keras
        if statistic.difference > EQUAL and abs(shares[0] - shares[1]) > 1e-9:
            layers.setdefault(shares, []).append(statistic.layer)
    causes = []
    for (torch, keras), names in layers.items():
        text = (
            f"running statistics: PyTorch keeps {torch:g} of the old value (momentum={1 - torch:g}), Keras {keras:g}, "
            f"at {listed(list(dict.fromkeys(names)), most=2)}"
        )
        causes.append(_difference("momentum", text, f"Keras: BatchNormalization(momentum={torch:g})"))
    biased = dict.fromkeys(statistic.layer for statistic in statistics if statistic.batch_difference > _OF_BATCH)
    if biased:
        text = (
            "running variance: Keras averages the biased variance (divided by n), PyTorch the unbiased one (n - 1), at "
            f"{listed(list(biased), most=2)}"
        )
        causes.append(_difference("variance", text, "Keras: keras_impl.batch_norm.BatchNormalization"))
    return causes


def dropout_causes(torch: Sequence[Dropout], keras: Sequence[Dropout]) -> list[Cause]:
    """Return where rates differ: places are the same if the same numbers come in; the others are compared in order."""
    left, lone = [dropout for dropout in keras if not dropout.always], list[Dropout]()
    pairs: list[tuple[Dropout | None, Dropout | None]] = []
    for dropout in torch:
        same = np.flatnonzero(alike([other.input for other in left], dropout.input))
        if dropout.attention or not len(same):
            lone.append(dropout)
        else:
            pairs.append((dropout, left.pop(int(same[0]))))
    for attention in (True, False):
        sides = [[dropout for dropout in side if dropout.attention == attention] for side in (lone, left)]
        pairs += zip_longest(sides[0], sides[1])
    places: dict[tuple[float, float], list[str]] = {}
    for here, there in pairs:
        rates = here.rate if here else 0.0, there.rate if there else 0.0
        layer = here or there
        if rates[0] != rates[1] and layer:
            places.setdefault(rates, []).append(layer.layer)
    causes = list[Cause]()
    for (torch_rate, keras_rate), layers in list(places.items())[:MOST_RATES]:
        text = f"dropout: {torch_rate:g} in PyTorch, {keras_rate:g} in Keras, at {listed(layers, most=2)}"
        if len(places) > MOST_RATES == len(causes) + 1:
            text += f"; and {len(places) - MOST_RATES} more rates"
        remedy = f"Keras: Dropout({torch_rate:g})" if torch_rate else "Keras: leave it out"
        causes.append(_difference("dropout", text, remedy))
    return causes + _inference_dropout(torch, keras)


def _inference_dropout(torch: Sequence[Dropout], keras: Sequence[Dropout]) -> list[Cause]:
    """Return that one side alone drops in inference, too."""
    always = [[dropout.layer for dropout in side if dropout.always] for side in (torch, keras)]
    if bool(always[0]) == bool(always[1]):
        return []
    side, remedy = "PyTorch", "F.dropout(x, training=self.training)"
    if always[1]:
        side, remedy = "Keras", "Dropout without training=True"
    text = f"dropout: {side} drops in inference, too, at {listed(always[0] or always[1], most=2)}"
    return [_difference("dropout", text, f"{side}: {remedy}")]
