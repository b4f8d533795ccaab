"""Layers in pieces (`--strategy split`): every rank of a copy computes a part of each layer's outputs.

Dense layers are split in pairs: the first by its outputs (columns), the second by its inputs (rows), so that one sum
over the ranks follows, and one more in the backward pass (Shoeybi et al., Megatron-LM, arXiv 1909.08053). Convolutions
are split by their filters, whose images are gathered before the next layer that needs all channels.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from common.errors import UserError
from common.model.partition import Partition
from common.model.specs import (
    Activation,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    GatherParts,
    Layer,
    LayerRow,
    MaxPooling,
    ModelSpec,
    Shape,
    WeightSpec,
    output_shape,
)


def split_layers(spec: ModelSpec, ranks: int) -> Partition:
    """Return the model with every convolution and dense layer in equal pieces, one on each rank.

    A last dense layer without a partner stays whole: every rank computes it.

    Raises:
        UserError: the model has layers that cannot be split, or not equally.
    """
    part = _Part(ranks=ranks, shape=spec.input_shape)
    dense = [row.layer.name for row in spec.rows if isinstance(row.layer, Dense)]
    for row in spec.rows:
        if not isinstance(row.layer, Convolution | Dense | Activation | Dropout | MaxPooling | Flatten):
            raise UserError(
                f"{spec.name} has layers that cannot be split: {type(row.layer).__name__}. Received: --strategy split "
                f"--model {spec.name}. Give --strategy layers, or a model of convolutions and dense layers"
            )
        part.add(row, is_last=row.layer.name == dense[-1])
    own = replace(spec, rows=tuple(part.rows), is_part=True)
    return Partition(spec, (own,) * ranks, part.axes)


@dataclass
class _Part:
    """What one rank holds, layer by layer.

    Attributes:
        shape: of what the rank has of the last layer's outputs.
        has_piece: whether this is a piece of them, by channels or units.
    """

    ranks: int
    shape: Shape
    has_piece: bool = False
    rows: list[LayerRow] = field(default_factory=list)
    axes: dict[str, int] = field(default_factory=dict)

    def add(self, row: LayerRow, *, is_last: bool) -> None:
        """Add a layer, or the piece of it; `is_last`: the last dense layer, which gives the outputs of the model."""
        layer = row.layer
        if isinstance(layer, Dropout) and not self.has_piece:
            raise UserError(
                f"all ranks would have to draw the same masks in {layer.name}. Received: --strategy split with dropout"
                " between undivided layers. Give --no-dropout"
            )
        if self.has_piece and len(self.shape) == 3 and isinstance(layer, Convolution | Flatten):
            self._append(GatherParts(name=f"{layer.name}.gather"), (self.shape[0] * self.ranks, *self.shape[1:]))
            self.has_piece = False
        if isinstance(layer, Dense) and self.has_piece:
            self._append(replace(layer, split="inputs"), row.output_shape, self._pieces(row.weights[:1], axis=1))
            self.rows[-1] = replace(self.rows[-1], weights=(*self.rows[-1].weights, *row.weights[1:]))
            self.has_piece = False
        elif isinstance(layer, Convolution) or (isinstance(layer, Dense) and not is_last):
            own = self._outputs_split(layer)
            self._append(own, output_shape(own, self.shape), self._pieces(row.weights, axis=0))
            self.has_piece = True
        else:
            self._append(layer, output_shape(layer, self.shape), row.weights)

    def _outputs_split(self, layer: Convolution | Dense) -> Convolution | Dense:
        if isinstance(layer, Convolution):
            return replace(layer, filters=self._equal(layer.filters, layer.name), split="outputs")
        return replace(layer, units=self._equal(layer.units, layer.name), split="outputs")

    def _pieces(self, weights: Iterable[WeightSpec], *, axis: int) -> tuple[WeightSpec, ...]:
        pieces = []
        for weight in weights:
            self.axes[weight.name] = axis
            sides = list(weight.shape)
            sides[axis] //= self.ranks
            pieces.append(replace(weight, shape=tuple(sides)))
        return tuple(pieces)

    def _append(self, layer: Layer, shape: Shape, weights: tuple[WeightSpec, ...] = ()) -> None:
        self.rows.append(LayerRow(layer, self.shape, shape, weights))
        self.shape = shape

    def _equal(self, outputs: int, name: str) -> int:
        if outputs % self.ranks:
            raise UserError(
                f"{name} has {outputs} outputs, which cannot be split equally. Received: --model-ranks {self.ranks}. "
                "Give a number that divides them"
            )
        return outputs // self.ranks
