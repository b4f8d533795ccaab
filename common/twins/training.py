"""What differs in training alone: dropout, running statistics, what is trained, what adds to the loss."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from common.twins.arrays import alike
from common.twins.comparison import Cause, listed
from common.twins.trace import Dropout

MOST_RATES = 3  # shown, of dropout


class Words(NamedTuple):
    """What is said of a difference with {places} and the numbers of both sides, and the line that makes both equal."""

    kind: str
    text: str
    remedy: str


RATES = "dropout: {torch:g} in PyTorch, {keras:g} in Keras, at {places}"
DROPOUT = Words("dropout", RATES, "Keras: Dropout({torch:g})")
DROPOUT_IN_KERAS = Words("dropout", RATES, "Keras: leave it out")
ALWAYS = {
    "PyTorch": Words(
        "dropout",
        "dropout: PyTorch drops in inference, too, at {places}",
        "PyTorch: F.dropout(x, training=self.training)",
    ),
    "Keras": Words(
        "dropout", "dropout: Keras drops in inference, too, at {places}", "Keras: Dropout without training=True"
    ),
}
MOMENTUM = Words(
    "momentum",
    "running statistics: PyTorch keeps {torch:g} of the old value (momentum={rest:g}), Keras {keras:g}, at {places}",
    "Keras: BatchNormalization(momentum={torch:g})",
)
VARIANCE = Words(
    "variance",
    "running variance: Keras averages the biased variance (divided by n), PyTorch the unbiased one (n - 1), "
    "at {places}",
    "Keras: keras_impl.batch_norm.BatchNormalization",
)
FROZEN = {
    "PyTorch": Words("frozen", "PyTorch does not train {places}", "PyTorch: parameter.requires_grad_(True)"),
    "Keras": Words("frozen", "Keras does not train {places}", "Keras: layer.trainable = True"),
}
REGULARIZER = Words(
    "regularizer",
    "Keras has {places}; PyTorch's models have nothing like it",
    "Keras: leave it out, and use weight_decay of both optimizers",
)


class Note(NamedTuple):
    """A place that differs, with the numbers of both sides where it has some."""

    words: Words
    place: str
    torch: float = 0.0
    keras: float = 0.0


def training_causes(notes: Iterable[Note]) -> list[Cause]:
    """Return what differs, each cause once."""
    groups: dict[Note, list[str]] = {}
    for note in notes:
        groups.setdefault(note._replace(place=""), []).append(note.place)
    rates = [note for note in groups if note.words in (DROPOUT, DROPOUT_IN_KERAS)]
    for note in rates[MOST_RATES:]:
        del groups[note]
    causes = []
    for note, places in groups.items():
        words, _, torch, keras = note
        shown = listed(list(dict.fromkeys(places)), most=2)
        text = words.text.format(torch=torch, keras=keras, rest=1 - torch, places=shown)
        if len(rates) > MOST_RATES and note == rates[MOST_RATES - 1]:
            text += f"; and {len(rates) - MOST_RATES} more rates"
        causes.append(Cause(kind=words.kind, text=text, remedy=words.remedy.format(torch=torch), level="training"))
    return causes


def dropout_notes(torch: Sequence[Dropout], keras: Sequence[Dropout]) -> Iterator[Note]:
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
    for here, there in pairs:
        layer, rates = here or there, (here.rate if here else 0.0, there.rate if there else 0.0)
        if layer and rates[0] != rates[1]:
            yield Note(DROPOUT if here else DROPOUT_IN_KERAS, layer.layer, *rates)
    both = {"PyTorch": torch, "Keras": keras}
    always = {side: [dropout for dropout in places if dropout.always] for side, places in both.items()}
    if not all(always.values()):
        yield from (Note(ALWAYS[side], dropout.layer) for side, places in always.items() for dropout in places)
