"""What a training step computes and moves: FLOPs and bytes of every operation of one rank, from the model's spec.

Counted as by Williams, Waterman and Patterson (2009): an operation reads its inputs from memory and writes its outputs
to it, once each. A convolution or dense layer has one product forward and two backward: by the weights and by its
input, the latter not in the first of them. Optimizers read the weight, its gradient and their state and write weight
and state. Operations that have no FLOPs to speak of (activations, pooling, BatchNorm) have 1 per value.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from common.model.layers import Add, BatchNorm, Convolution, Dense, Flatten
from common.model.specs import LayerRow, ModelSpec

Part = Literal["input", "forward", "backward", "update"]
PARTS: tuple[Part, ...] = ("input", "forward", "backward", "update")
FLOAT32 = 4  # bytes of a value
# Values that an optimizer keeps for each weight: velocity; first and second moment; mean squared gradient.
OPTIMIZER_STATES = {"sgd": 1, "adam": 2, "adamw": 2, "rmsprop": 1}


@dataclass(frozen=True)
class Operation:
    """A part of a step of one rank.

    Attributes:
        layer: its name; of the update and the input: "".
        flops: additions and multiplications, one each.
        bytes: read and written.
        smallest: side of the matrix of weights of a convolution (filters, channels x kernel) or dense layer (units,
            inputs); infinite for other operations.
        is_dense: a product of a dense layer; libraries compute it another way than convolutions.
    """

    part: Part
    layer: str
    flops: float
    bytes: float
    smallest: float = math.inf
    is_dense: bool = False


def step_operations(
    spec: ModelSpec, *, batch: int, value_bytes: int = FLOAT32, optimizer: str = "sgd"
) -> tuple[Operation, ...]:
    """Return the operations of a step of one rank.

    Args:
        spec: the model.
        batch: images of the step on this rank.
        value_bytes: of an activation, and of a weight as layers read it: 2 in mixed precision.
        optimizer: as in the settings; sgd with momentum.
    """
    products = [row for row in spec.rows if _is_product(row)]
    operations = [_input(spec, batch=batch)]
    for row in spec.rows:
        if not isinstance(row.layer, Flatten):
            operations += _of_layer(row, batch=batch, size=value_bytes, is_first=row is products[0])
    return (*operations, _update(spec, optimizer=optimizer))


def _is_product(row: LayerRow) -> bool:
    return isinstance(row.layer, Convolution | Dense)


def _input(spec: ModelSpec, *, batch: int) -> Operation:
    """Pixels are gathered (read and written as bytes) and become normalized float32."""
    values = batch * math.prod(spec.input_shape)
    return Operation("input", "", values, values * (3 + FLOAT32))


def _of_layer(row: LayerRow, *, batch: int, size: int, is_first: bool) -> Iterator[Operation]:
    name = row.layer.name
    taken, given = (batch * math.prod(shape) for shape in (row.input_shape, row.output_shape))
    if _is_product(row):
        outputs, *summed = row.weights[0].shape
        sides = batch * math.prod(row.output_shape[1:]), outputs, math.prod(summed)
        moved = size * (taken + given + row.parameters)
        product = 2.0 * math.prod(sides), moved, min(sides[1:]), isinstance(row.layer, Dense)
        yield Operation("forward", name, *product)
        yield Operation("backward", f"{name}, by weights", *product)
        if not is_first:
            yield Operation("backward", f"{name}, by input", *product)
        return
    # BatchNorm reads its input twice, for the statistics and to apply them; an addition has two inputs. Backward, the
    # gradient takes the place of the output and what was saved is read again.
    reads = 2 if isinstance(row.layer, BatchNorm | Add) else 1
    yield Operation("forward", name, given, size * (reads * taken + given))
    if not isinstance(row.layer, Add):  # its gradient is that of the sum
        yield Operation("backward", name, given, size * (reads * (taken + given) + taken))


def _update(spec: ModelSpec, *, optimizer: str) -> Operation:
    states = OPTIMIZER_STATES[optimizer]
    # Gradients are set to zero, written by the backward pass (counted there), read; weight and states read and written.
    return Operation(
        "update", "", 2.0 * (1 + states) * spec.parameters, FLOAT32 * (2 + 2 * (1 + states)) * spec.parameters
    )
