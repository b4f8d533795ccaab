"""What the Keras process hands over: the layers beside each other, where they part, and what the whole models do."""

from dataclasses import dataclass, field

from common.twins.trace import Event

SIDES = {"torch": "PyTorch", "keras": "Keras"}
LEVELS = ("equal", "training", "numbers", "work", "undecided")  # of what two models have in common, the best first


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why two models differ.

    Attributes:
        kind: epsilon, strides, padding, activation, dropout, ...
        text: what each side has.
        remedy: a line that would make them equal; empty: none is known.
        level: of LEVELS, which it allows at best.
    """

    kind: str
    text: str
    remedy: str = ""
    level: str = "numbers"


@dataclass(frozen=True, kw_only=True)
class Parting:
    """A place where the models part, although PyTorch's numbers came in.

    Attributes:
        where: "before" a layer (its input differs), "inside" (its output), "after" the last layer.
        mode: "inference" or "training".
        torch, keras: the layer that both have; None after the last layer.
        difference: relative; infinite: of other shapes, which are then given.
    """

    where: str
    mode: str
    torch: Event | None
    keras: Event | None
    difference: float
    shapes: str = ""
    causes: list[Cause] = field(default_factory=list)

    @property
    def place(self) -> str:
        """Where it is, in words: "before PyTorch's layer / Keras' layer"."""
        if self.torch is None or self.keras is None:
            return "after the last layer"
        return f"{self.where} {self.torch.place} / {self.keras.place}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A layer of both models, or of one: differences of inputs and outputs, infinite if of other shapes."""

    torch: Event | None
    keras: Event | None
    before: float = 0.0
    inside: float = 0.0

    @property
    def both(self) -> bool:
        """Whether both sides have the layer."""
        return self.torch is not None and self.keras is not None


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
class Side:
    """What was counted and measured of one model and its process.

    Attributes:
        arrays, matched: number of arrays, and of those that are matched.
        parameters: number of trainable entries.
        lone: arrays without a counterpart: name -> shape.
        multiply_adds: of layers with arrays, per sample.
    """

    arrays: int
    matched: int
    parameters: int
    lone: dict[str, list[int]]
    multiply_adds: int
    seconds: float
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All that the two processes found.

    Attributes:
        sides: of SIDES.
        rows: in Keras' order, then layers that PyTorch alone has.
        training: what differs in training alone.
        unsupported: layers that cannot be matched -> why.
        guessed: arrays matched by shape alone.
        tied: arrays that are one in PyTorch and several in Keras.
        tried: other choices between layers with equal inputs.
        stopped_after: Keras' layer after which shapes did not allow to compare more; empty: all was compared.
    """

    sides: dict[str, Side]
    rows: list[Row]
    partings: list[Parting]
    training: list[Cause]
    whole: Whole
    unsupported: dict[str, str] = field(default_factory=dict)
    guessed: list[str] = field(default_factory=list)
    tied: list[str] = field(default_factory=list)
    tried: int = 0
    stopped_after: str = ""
