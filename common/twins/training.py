"""What differs in training alone: dropout, running statistics, what is trained, what adds to the loss."""

from collections.abc import Mapping, Sequence

import numpy as np

from common.twins.arrays import EQUAL, alike
from common.twins.trace import Dropout, TorchTrace

Difference = tuple[str, str, str]  # kind, text, the line that would make them equal


def training_differences(
    *,
    trace: TorchTrace,
    keras_dropouts: Sequence[Dropout],
    statistics: Mapping[str, float],
    layers: Mapping[str, tuple[str, float, float]],
    frozen: Mapping[str, Sequence[str]],
    regularizers: Sequence[str],
) -> list[Difference]:
    """Return what differs, each cause once.

    Args:
        statistics: PyTorch's name -> difference after one batch, each layer given the same input.
        layers: PyTorch's name -> Keras layer, share of the old value kept in PyTorch and in Keras.
        frozen: side that does not train an array that the other trains -> names.
        regularizers: what Keras' layers add to the loss.
    """
    found = dropout_differences(trace.dropouts, keras_dropouts)
    found += _statistics(statistics, layers)
    for side, names in frozen.items():
        if names:
            remedy = "Keras: layer.trainable = True" if side == "Keras" else "PyTorch: parameter.requires_grad_(True)"
            found.append(("frozen", f"{side} does not train {_listed(names)}", remedy))
    if regularizers:
        text = f"Keras adds to the loss: {_listed(regularizers)}; PyTorch adds nothing"
        found.append(("regularizer", text, "Keras: leave it out, and use weight_decay of both optimizers"))
    return found


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _statistics(statistics: Mapping[str, float], layers: Mapping[str, tuple[str, float, float]]) -> list[Difference]:
    momenta: dict[tuple[float, float], list[str]] = {}
    biased = []
    for name, difference in statistics.items():
        layer, kept, momentum = layers.get(name, ("", 0.0, 0.0))
        if difference <= EQUAL or not layer:
            continue
        if abs(kept - momentum) > 1e-9:
            momenta.setdefault((kept, momentum), []).append(layer)
        else:
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
    """Return where rates differ: places are the same if the same numbers come in; attention is compared in order."""
    found: list[Difference] = []
    left = [one for one in keras if not one.attention and not one.always]
    attention = [[one for one in side if one.attention] for side in (torch, keras)]
    pairs: list[tuple[Dropout | None, Dropout | None]] = []
    for one in (each for each in torch if not each.attention):
        same = np.flatnonzero(alike(np.array([other.input for other in left]), one.input)) if left else np.array([])
        pairs.append((one, left.pop(int(same[0])) if len(same) else None))
    pairs, lone = [both for both in pairs if both[1]], [one for one, other in pairs if not other]
    for number in range(max(len(lone), len(left))):  # of other inputs, or at other places: in order
        pairs.append((lone[number] if number < len(lone) else None, left[number] if number < len(left) else None))
    count = max(map(len, attention), default=0)
    padded = [[*side, *[None] * (count - len(side))] for side in attention]
    pairs += list(zip(*padded, strict=True))
    rates: dict[tuple[float, float], list[str]] = {}
    for one, other in pairs:
        both = (one.rate if one else 0.0, other.rate if other else 0.0)
        if both[0] != both[1]:
            place = (one or other).layer  # type: ignore[union-attr]
            rates.setdefault(both, []).append(place)
    for (torch_rate, keras_rate), places in rates.items():
        where = _listed(places)
        text = f"dropout: {torch_rate:g} in PyTorch, {keras_rate:g} in Keras, at {where}"
        remedy = f"Keras: Dropout({torch_rate:g})" if torch_rate else "Keras: leave out the dropout"
        found.append(("dropout", text, remedy))
    for side, dropouts in (("PyTorch", torch), ("Keras", keras)):
        always = [one.layer for one in dropouts if one.always]
        other_always = [one for one in (keras if side == "PyTorch" else torch) if one.always]
        if always and not other_always:
            remedy = (
                "PyTorch: F.dropout(x, training=self.training)"
                if side == "PyTorch"
                else "Keras: leave out training=True"
            )
            found.append(("dropout", f"dropout: {side} drops in inference, too, at {_listed(always)}", remedy))
    return found
