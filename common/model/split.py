"""Layers in pieces (`--strategy split`): every rank of a copy computes a part of each layer's outputs.

Dense layers are split in pairs: the first by its outputs (columns), the second by its inputs (rows), so that one sum
over the ranks follows, and one more in the backward pass (Shoeybi et al., Megatron-LM, arXiv 1909.08053). Convolutions
are split by their filters, whose images are gathered before the next layer that needs all channels.
"""

from collections.abc import Iterator
from dataclasses import replace

from common.errors import UserError
from common.model.layers import Activation, Convolution, Dense, Dropout, Flatten, GatherParts, Layer, MaxPooling
from common.model.partition import Partition
from common.model.specs import ModelSpec, spec_of_layers


def split_layers(spec: ModelSpec, ranks: int) -> Partition:
    """Return the model with every convolution and dense layer in equal pieces, one on each rank.

    A last dense layer without a partner stays whole: every rank computes it.

    Raises:
        UserError: the model has layers that cannot be split, or not equally.
    """
    layers = _pieces(spec, ranks)
    part = spec_of_layers(spec.name, layers, input_shape=spec.input_shape, outputs=spec.outputs)
    axes: dict[str, int] = {}
    for row in part.rows:
        if isinstance(row.layer, Convolution | Dense) and row.layer.split == "outputs":
            axes |= {weight.name: 0 for weight in row.weights}
        elif isinstance(row.layer, Dense) and row.layer.split == "inputs":
            axes[row.weights[0].name] = 1  # each rank has the whole bias
    return Partition(spec, (part,) * ranks, axes)


def _pieces(spec: ModelSpec, ranks: int) -> Iterator[Layer]:
    """Yield what each rank computes of the layers, which read each other in their order."""
    last_dense = [row.layer for row in spec.rows if isinstance(row.layer, Dense)][-1]
    has_piece = False  # whether a rank has some of the channels or units of the layer before, or all of them
    for row in spec.rows:
        layer = row.layer
        if has_piece and isinstance(layer, Convolution | Flatten) and len(row.input_shape) == 3:
            yield GatherParts(name=f"{layer.name}_gather", ranks=ranks)
            has_piece = False
        match layer:
            case Dense() if has_piece:
                yield replace(layer, split="inputs")
                has_piece = False
            case Dense() if layer is not last_dense:
                yield replace(layer, units=_equal(layer.units, ranks, layer), split="outputs")
                has_piece = True
            case Convolution():
                yield replace(layer, filters=_equal(layer.filters, ranks, layer), split="outputs")
                has_piece = True
            case Dropout() if not has_piece:
                raise UserError(
                    f"all ranks would have to draw the same masks in {layer.name}. Received: --strategy split with "
                    "dropout between undivided layers. Give --strategy layers"
                )
            case Dense() | Activation() | Dropout() | MaxPooling() | Flatten():
                yield layer
            case _:
                raise UserError(
                    f"{spec.name} has layers that cannot be split: {type(layer).__name__}. Received: --strategy split "
                    f"--model {spec.name}. Give --strategy layers, or a model of convolutions and dense layers"
                )


def _equal(outputs: int, ranks: int, layer: Layer) -> int:
    if outputs % ranks:
        raise UserError(
            f"{layer.name} has {outputs} outputs, which cannot be split equally. Received: --model-ranks {ranks}. "
            "Give a number that divides them"
        )
    return outputs // ranks
