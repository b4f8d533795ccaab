"""What the Keras process hands over: the layers beside each other, where they part, and what the whole models do."""

from dataclasses import dataclass, field

from common.twins.trace import Event

SIDES = {"torch": "PyTorch", "keras": "Keras"}
LEVELS = ("equal", "training", "numbers", "work", "undecided")  # of what two models have in common, the best first


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why two models differ."""

    kind: str  # epsilon, strides, padding, activation, arrays, dropout, ...
    text: str  # what each side has
    remedy: str = ""  # a line that would make them equal; empty: none is known
    level: str = "numbers"  # of LEVELS: the best that it allows
    names: list[str] = field(default_factory=list)  # listed after the text

    def line(self, *, most: int) -> str:
        """Return the text with at most so many names."""
        return f"{self.text}: {listed(self.names, most=most)}" if self.names else self.text


def listed(names: list[str], *, most: int) -> str:
    """Return the first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@dataclass(frozen=True, kw_only=True)
class Parting:
    """A place where the models part, although PyTorch's numbers came in."""

    where: str  # "before" a layer (its input differs), "inside" (its output), "after" the last layer
    mode: str  # "inference" or "training"
    torch: Event | None  # the layer that both have; None after the last
    keras: Event | None
    difference: float  # relative; infinite: of other shapes
    shapes: str = ""  # of both sides, in words, if that is why
    causes: list[Cause] = field(default_factory=list)

    @property
    def place(self) -> str:
        """Where it is, in words: "before PyTorch's layer / Keras' layer"."""
        if self.torch is None or self.keras is None:
            return "after the last layer"
        return f"{self.where} {self.torch.place} / {self.keras.place}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A layer of both models, or of one."""

    torch: Event | None
    keras: Event | None
    before: float = 0.0  # difference of inputs, infinite if of other shapes
    inside: float = 0.0  # of outputs

    @property
    def both(self) -> bool:
        """Whether both sides have the layer."""
        return self.torch is not None and self.keras is not None


@dataclass(frozen=True, kw_only=True)
class Whole:
    """How far the whole models are apart."""

    differences: dict[str, tuple[float, str]]  # name -> relative difference, array where it is largest
    updates: int = 0  # that were made
    zeros: int = 0  # arrays whose gradient is zero by construction, which are left out


@dataclass(frozen=True, kw_only=True)
class Side:
    """What was counted and measured of one model and its process."""

    arrays: int
    matched: int  # of the arrays
    parameters: int  # trainable entries
    multiply_adds: int  # of layers with arrays, per sample
    seconds: float
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All that the two processes found."""

    sides: dict[str, Side]  # of SIDES
    rows: list[Row]  # in Keras' order, then layers that PyTorch alone has
    partings: list[Parting]
    unmatched: list[Cause]  # what cannot be compared, or only one side has
    training: list[Cause]  # what differs in training alone
    whole: Whole
    guessed: list[str] = field(default_factory=list)  # arrays matched by shape alone
    tried: int = 0  # other choices between layers with equal inputs
