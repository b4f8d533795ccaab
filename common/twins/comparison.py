"""What the Keras process hands over: the layers beside each other, where they part, and what the whole models do."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Step:
    """A function or layer, as a model calls it.

    Attributes:
        name: "relu", "LayerNormalization".
        place: module or path of the layer.
        numbers: its arguments.
    """

    name: str
    place: str
    numbers: dict[str, Any]

    def __str__(self) -> str:
        shown = ", ".join(f"{name.replace('argument ', 'arg')}={_short(value)}" for name, value in self.numbers.items())
        return f"{self.name}({shown})"


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(tuple(value) if isinstance(value, list) else value)


@dataclass(frozen=True, kw_only=True)
class Parting:
    """A place where the models part, although PyTorch's numbers came in.

    Attributes:
        where: "before" a layer (its input differs), "inside" (its output), "after" the last layer.
        mode: "inference" or "training".
        torch, keras: the layer that both have; None after the last layer.
        difference: relative; None: of other shapes.
        torch_steps, keras_steps: before the layer, the first that the other side does not compute.
        torch_later, keras_later: what follows them, up to the layer.
        reordered: the same numbers in another order.
        torch_source, keras_source: what hands the layer its input.
        torch_inputs, keras_inputs: what the first of the steps takes; same_inputs: whether that is the same.
        facts: what else is known: "pads" around a Keras input, the "lone" side that has a bias, "shapes".
    """

    where: str
    mode: str
    torch: Step | None
    keras: Step | None
    difference: float | None
    torch_steps: list[Step] = field(default_factory=list)
    keras_steps: list[Step] = field(default_factory=list)
    torch_later: list[Step] = field(default_factory=list)
    keras_later: list[Step] = field(default_factory=list)
    reordered: bool = False
    torch_source: str = ""
    keras_source: str = ""
    torch_inputs: list[str] = field(default_factory=list)
    keras_inputs: list[str] = field(default_factory=list)
    same_inputs: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A layer of both models: differences of inputs and outputs; None: of other shapes, or not compared."""

    torch: Step | None
    keras: Step | None
    before: float | None = None
    inside: float | None = None


@dataclass(frozen=True, kw_only=True)
class Whole:
    """How far the whole models are apart: name -> (difference, where).

    Attributes:
        updates: that were made.
        zeros: arrays whose gradient is zero by construction, which are left out.
    """

    differences: dict[str, tuple[float, str]]
    updates: int = 0
    zeros: int = 0


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All that was found.

    Attributes:
        rows: in Keras' order.
        arrays, matched: framework -> number of arrays, and of those that are matched.
        parameters: framework -> number of trainable entries.
        only_torch, only_keras: arrays without a counterpart: name -> shape.
        unsupported: layers that cannot be matched -> why.
        guessed: arrays matched by shape alone.
        tied: arrays that are one in PyTorch and several in Keras.
        training: what differs in training alone: (kind, text, remedy).
        multiply_adds: framework -> those of layers with arrays, per sample.
        tried: other choices between layers with equal inputs.
        stopped_after: Keras' layer after which shapes did not allow to compare more; empty: all was compared.
        seconds, memory_bytes: framework -> those of its process.
    """

    rows: list[Row]
    partings: list[Parting]
    arrays: dict[str, int]
    matched: dict[str, int]
    parameters: dict[str, int]
    only_torch: dict[str, list[int]]
    only_keras: dict[str, list[int]]
    unsupported: dict[str, str]
    guessed: list[str]
    tied: list[str]
    training: list[tuple[str, str, str]]
    whole: Whole
    multiply_adds: dict[str, int]
    tried: int
    stopped_after: str
    seconds: dict[str, float]
    memory_bytes: dict[str, int]

    def write(self, file: Path) -> None:
        """Write it as JSON."""
        file.write_text(json.dumps(asdict(self), default=str))


def read_comparison(file: Path) -> Comparison:
    """Read what `Comparison.write` wrote."""
    values = json.loads(file.read_text())
    for key, kind in (("rows", Row), ("partings", Parting)):
        values[key] = [kind(**{name: _steps(one) for name, one in each.items()}) for each in values[key]]
    values["whole"] = Whole(**values["whole"])
    return Comparison(**values)


def _steps(value: Any) -> Any:
    """Turn dictionaries that were steps into steps again."""
    if isinstance(value, list):
        return [_steps(one) for one in value]
    return Step(**value) if isinstance(value, dict) and value.keys() == {"name", "place", "numbers"} else value
