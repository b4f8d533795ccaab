"""A model in parts, one for each rank of a copy of it: which weights each holds, and where the model may be cut."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import pairwise

import numpy as np

from common.errors import UserError
from common.model.layers import Flatten
from common.model.specs import LayerRow, ModelSpec
from common.model.weights import Weights


@dataclass(frozen=True)
class Partition:
    """A model and its parts.

    Attributes:
        whole: the model.
        parts: the layers, or the parts of layers, of each rank.
        axes: weight -> the axis along which the ranks hold equal pieces of it; another weight is whole wherever it is.
    """

    whole: ModelSpec
    parts: tuple[ModelSpec, ...]
    axes: Mapping[str, int] = field(default_factory=dict)

    def cut(self, arrays: Weights, part: int) -> Weights:
        """Return what one part holds of the weights of the model, or of an optimizer's state.

        Args:
            arrays: "<weight>" or "<weight>.<slot>" -> array; another key, such as "step", belongs to all parts.
        """
        held = {weight.name for weight in self.parts[part].weights} | {""}
        return {key: self._piece(key, array, part) for key, array in arrays.items() if self._weight_of(key) in held}

    def join(self, key: str, pieces: Sequence[np.ndarray]) -> np.ndarray:
        """Return an array of the model from those of the parts that hold it, in their order, the inverse of `cut`."""
        axis = self._axis(key)
        return pieces[0] if axis is None else np.concatenate(pieces, axis)

    def joined_shape(self, key: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return the shape of what `join` returns for pieces of these shapes."""
        axis, shape = self._axis(key), list(shapes[0])
        if axis is not None:
            shape[axis] = sum(piece[axis] for piece in shapes)
        return tuple(shape)

    def _piece(self, key: str, array: np.ndarray, part: int) -> np.ndarray:
        axis = self._axis(key)
        return array if axis is None else np.split(array, len(self.parts), axis)[part].copy()  # without the rest

    def _axis(self, key: str) -> int | None:
        return self.axes.get(self._weight_of(key))

    def _weight_of(self, key: str) -> str:
        """Return the weight to which an array belongs; "": to none."""
        return next((name for name in (key, key.rpartition(".")[0]) if name in self._names), "")

    @cached_property
    def _names(self) -> set[str]:
        return {weight.name for weight in self.whole.weights}


def cut_into_stages(spec: ModelSpec, stages: int, *, after: str = "auto") -> Partition:
    """Return the model in stages, each of which gets the output of the one before.

    Args:
        after: names of layers, separated by commas: the last ones of all stages but the last; auto: stages whose
            multiply-adds are as even as they can be, and among those the ones that exchange the fewest values.

    Raises:
        UserError: the model has no such layers, or cannot be cut there.
    """
    places = list(_places(spec))
    cuts = _even_cuts(spec, stages, places) if after == "auto" else _named_cuts(spec, stages, places, after=after)
    parts = _stages(spec, cuts)
    if not all(part.weights for part in parts):
        raise UserError(
            f"every stage needs a layer with weights. Received: --cut-after {after}. Cut elsewhere, or give auto"
        )
    return Partition(spec, parts)


def single_layers(spec: ModelSpec) -> tuple[ModelSpec, ...]:
    """Return the smallest parts of a model: layers, or several with a shortcut around them, or with a `Flatten`."""
    return _stages(spec, list(_places(spec)))


def part_name(part: ModelSpec) -> str:
    """Return the name of such a part: that of its layer, or of the first and the last one."""
    first, last = part.rows[0].layer.name, part.rows[-1].layer.name
    return first if len(part.rows) == 1 else f"{first} to {last}"


def _stages(spec: ModelSpec, cuts: Sequence[int]) -> tuple[ModelSpec, ...]:
    bounds = pairwise([0, *(cut + 1 for cut in cuts), len(spec.rows)])
    rows = [spec.rows[start:stop] for start, stop in bounds]
    return tuple(replace(spec, input_shape=part[0].input_shape, rows=part, torchvision="") for part in rows)


def _places(spec: ModelSpec) -> Iterator[int]:
    """Yield the rows after which one tensor crosses a cut, that of the row itself.

    Not after `Flatten`: images cross in the layout of their framework, and the dense layer has to know of it.
    """
    numbers = {row.layer.name: number for number, row in enumerate(spec.rows)}
    first_read = [min(numbers.get(name, -1) for name in row.inputs) for row in spec.rows]
    for number, row in enumerate(spec.rows[:-1]):
        if min(first_read[number + 1 :]) == number and not isinstance(row.layer, Flatten):
            yield number


def _named_cuts(spec: ModelSpec, stages: int, places: Sequence[int], *, after: str) -> list[int]:
    numbers = {row.layer.name: number for number, row in enumerate(spec.rows)}
    names = after.split(",")
    possible = ", ".join(spec.rows[place].layer.name for place in places)
    for name in names:
        if numbers.get(name) not in places:
            problem = "the model cannot be cut after this layer" if name in numbers else "there is no such layer"
            raise UserError(f"{problem}. Received: --cut-after {name} for {spec.name}. Choose from {possible}")
    cuts = [numbers[name] for name in names]
    if len(cuts) != stages - 1 or cuts != sorted(set(cuts)):
        raise UserError(
            f"{stages} stages need {stages - 1} layers to cut after, in order. Received: --stages {stages} "
            f"--cut-after {after}. Give this number of layers"
        )
    return cuts


def _even_cuts(spec: ModelSpec, stages: int, places: Sequence[int]) -> list[int]:
    work = np.cumsum([0, *(row.multiply_adds for row in spec.rows)])

    @cache
    def best(start: int, left: int) -> tuple[float, int, tuple[int, ...]]:
        """Return the most work of a stage, the values exchanged and the cuts, for stages from a row on."""
        if left == 1:
            return float(work[-1] - work[start]) if _has_weights(spec.rows[start:]) else np.inf, 0, ()
        choice: tuple[float, int, tuple[int, ...]] = (np.inf, 0, ())
        for place in places:
            if place >= start and _has_weights(spec.rows[start : place + 1]):
                most, values, cuts = best(place + 1, left - 1)
                most = max(most, float(work[place + 1] - work[start]))
                choice = min(choice, (most, values + int(np.prod(spec.rows[place].output_shape)), (place, *cuts)))
        return choice

    most, _, cuts = best(0, stages)
    if most == np.inf:
        raise UserError(
            f"{spec.name} cannot be divided into {stages} parts with weights. Received: --stages {stages}. "
            "Give fewer stages"
        )
    return list(cuts)


def _has_weights(rows: Sequence[LayerRow]) -> bool:
    return any(row.weights for row in rows)
