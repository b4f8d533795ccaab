"""What the two processes hand over.

PyTorch's writes a trace: the functions that a model calls, and arrays, a file each. Keras' writes the comparison.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
from pydantic import TypeAdapter

SIDES = {"torch": "PyTorch", "keras": "Keras"}
LEVELS = ("equal", "training", "numbers", "work", "undecided")  # of what two models have in common, the best first
_KEPT_BYTES = 1 << 20  # of an array that stays in memory once it was read
Record = TypeVar("Record")


def write_record(file: Path, record: Any) -> None:
    """Write a dataclass as JSON."""
    file.write_text(json.dumps(asdict(record), default=str))


def read_record(file: Path, kind: type[Record]) -> Record:
    """Read what `write_record` wrote."""
    return TypeAdapter(kind).validate_json(file.read_bytes())


class ArrayFolder:
    """Arrays by kind and name, a file each: what is not read takes no memory.

    A name may end with rows: "weights/in_proj_weight[0:64]".
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mapped: dict[str, np.ndarray] = {}
        folder.mkdir(exist_ok=True)

    def __setitem__(self, key: str, array: np.ndarray) -> None:
        np.save(self._file(key), array)

    def __getitem__(self, key: str) -> np.ndarray:
        base, _, rows = key.removesuffix("]").partition("[")
        array = self._mapped.get(base)
        if array is None:
            array = np.load(self._file(base), mmap_mode="r")
            if array.nbytes < _KEPT_BYTES:
                self._mapped[base] = array
        return array[slice(*map(int, rows.split(":")))] if rows else array

    def __contains__(self, key: str) -> bool:
        return self._file(base_name(key)).exists()

    def _file(self, key: str) -> Path:
        return self._folder / f"{quote(key, safe='')}.npy"


def base_name(name: str) -> str:
    """Return the name of an array without its rows."""
    return name.partition("[")[0]


@dataclass(frozen=True, kw_only=True)
class Event:
    """A function or layer that a model calls."""

    number: int = 0  # in order; 0 is the model's input
    name: str  # "conv2d", "LayerNormalization"
    place: str = ""  # the layer, by its module in PyTorch and its path in Keras
    numbers: dict[str, Any] = field(default_factory=dict)  # its arguments
    sources: list[int] = field(default_factory=list)  # numbers of the events whose results it takes
    output: list[float] = field(default_factory=list)  # fingerprint of its result
    # PyTorch's functions that are given arrays have in addition:
    weights: dict[str, str] = field(default_factory=dict)  # role ("weight", ...; "bare0", ...: none) -> name, with rows
    inputs: list[list[float]] = field(default_factory=list)  # fingerprints of what they are given beside them
    shapes: list[list[int]] = field(default_factory=list)  # of input and output, if MODE/NUMBER/x and /y are kept
    flat: list[int] | None = None  # shape of a sample before it was flattened, if it was
    transposed: bool = False  # whether the weight is (inputs, outputs)
    multiply_adds: int = 0

    def __str__(self) -> str:
        numbers = (f"{name.replace('argument ', 'arg')}={_short(value)}" for name, value in self.numbers.items())
        return f"{self.name}({', '.join(numbers)})"

    @property
    def result(self) -> str:
        """What it hands on, in words."""
        return "the model's input" if self.name == "input" else f"the result of {self.name} ({self.place or 'call'})"


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(tuple(value) if isinstance(value, list) else value)


@dataclass(frozen=True, kw_only=True)
class Dropout:
    """A place where entries are dropped, by the fingerprint of what comes in."""

    layer: str
    rate: float
    input: list[float]
    attention: bool = False
    always: bool = False  # in inference, too


@dataclass(frozen=True, kw_only=True)
class TorchTrace:
    """What PyTorch's model did with a batch."""

    events: dict[str, list[Event]]  # mode ("inference", "training") -> what it called
    results: dict[str, int]  # mode -> number of the event that made the output
    arrays: dict[str, list[int]]  # name -> shape, of parameters and floating buffers
    buffers: list[str]  # names of those that are none
    trainable: list[str]  # names of those that are trained
    dropouts: list[Dropout]
    losses: list[float]  # of the updates
    seconds: float  # of the process
    memory_bytes: int


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
