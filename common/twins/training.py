"""What differs in training alone: dropout, running statistics, what is trained, what adds to the loss.

Until `training_causes` groups them, causes have a place each, in `names`, and "{places}" in their text.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from common.twins.arrays import alike
from common.twins.records import Cause, Dropout, listed

MOST_RATES = 3  # shown, of dropout
ALWAYS = {"PyTorch": "PyTorch: F.dropout(x, training=self.training)", "Keras": "Keras: Dropout without training=True"}
FROZEN = {"PyTorch": "PyTorch: parameter.requires_grad_(True)", "Keras": "Keras: layer.trainable = True"}


def _cause(kind: str, text: str, remedy: str, *places: str) -> Cause:
    return Cause(kind=kind, text=text, remedy=remedy, level="training", names=list(places))


def momentum_cause(torch: float, keras: float, place: str) -> Cause:
    """Return that running statistics keep other shares of their old values."""
    text = f"PyTorch keeps {torch:g} of the old value (momentum={1 - torch:g}), Keras {keras:g}, at {{places}}"
    return _cause("momentum", f"running statistics: {text}", f"Keras: BatchNormalization(momentum={torch:g})", place)


def variance_cause(place: str) -> Cause:
    """Return that running statistics are of other statistics of a batch."""
    text = "Keras averages the biased variance (divided by n), PyTorch the unbiased one (n - 1), at {places}"
    return _cause("variance", f"running variance: {text}", "Keras: keras_impl.batch_norm.BatchNormalization", place)


def frozen_cause(side: str, array: str) -> Cause:
    """Return that one side ("PyTorch", "Keras") does not train an array."""
    return _cause("frozen", f"{side} does not train {{places}}", FROZEN[side], array)


def regularizer_cause(place: str) -> Cause:
    """Return that Keras adds to the loss, or holds arrays within bounds."""
    text = "Keras has {places}; PyTorch's models have nothing like it"
    return _cause("regularizer", text, "Keras: leave it out, and use weight_decay of both optimizers", place)


def dropout_causes(torch: Sequence[Dropout], keras: Sequence[Dropout]) -> Iterator[Cause]:
    """Yield where rates differ: places are the same if the same numbers come in; the others are compared in order."""
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
    places: dict[tuple[float, float], list[str]] = {}  # rates -> layers
    for here, there in pairs:
        layer, rates = here or there, (here.rate if here else 0.0, there.rate if there else 0.0)
        if layer and rates[0] != rates[1]:
            places.setdefault(rates, []).append(layer.layer)
    for number, (rates, layers) in enumerate(list(places.items())[:MOST_RATES], 1):
        more = f"; and {len(places) - number} more rates" if number == MOST_RATES < len(places) else ""
        text = f"dropout: {rates[0]:g} in PyTorch, {rates[1]:g} in Keras, at {{places}}{more}"
        yield _cause("dropout", text, f"Keras: Dropout({rates[0]:g})" if rates[0] else "Keras: leave it out", *layers)
    always = {"PyTorch": [drop.layer for drop in torch if drop.always]}
    always["Keras"] = [drop.layer for drop in keras if drop.always]
    if not all(always.values()):
        for side, layers in always.items():
            if layers:
                text = f"dropout: {side} drops in inference, too, at {{places}}"
                yield _cause("dropout", text, ALWAYS[side], *layers)


def training_causes(causes: Iterable[Cause]) -> list[Cause]:
    """Return each cause once, with its places in its text."""
    groups: dict[str, list[Cause]] = {}
    for cause in causes:
        groups.setdefault(cause.text, []).append(cause)
    grouped = []
    for text, same in groups.items():
        places = dict.fromkeys(place for cause in same for place in cause.names)
        grouped.append(replace(same[0], text=text.replace("{places}", listed(list(places), most=2)), names=[]))
    return grouped
