"""What the PyTorch process hands over: each call of a function with its inputs, and arrays, a file each."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from common.utils.atomic import write_atomically

_KEPT_BYTES = 1 << 20  # of an array that stays in memory once it was read


class ArrayFolder:
    """Arrays by name, a file each: what is not read takes no memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mapped: dict[str, np.ndarray] = {}
        folder.mkdir(exist_ok=True)

    def __setitem__(self, key: str, array: np.ndarray) -> None:
        np.save(self._file(key), array)

    def __getitem__(self, key: str) -> np.ndarray:
        if key in self._mapped:
            return self._mapped[key]
        array: np.ndarray = np.load(self._file(key), mmap_mode="r")
        if array.nbytes < _KEPT_BYTES:
            self._mapped[key] = array
        return array

    def __contains__(self, key: str) -> bool:
        return self._file(key).exists()

    def _file(self, key: str) -> Path:
        return self._folder / f"{quote(key, safe='')}.npy"


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of a PyTorch function.

    Attributes:
        order: its number.
        module: that called it.
        weights: role ("weight", "bias", ...) -> name of the array; of a function that takes arrays of its own accord
            ("bare0", ...). A name may end with rows, "[0:64]".
        numbers: its other arguments.
        sources: `order` of the calls whose results it takes; -1: the model's input.
        output: fingerprint.
        inputs: fingerprints of what it is given beside arrays.
        shapes: of input and output, if both are in the folder: KEY/ORDER/x and KEY/ORDER/y.
        flat: shape of a sample before it was flattened, if it was.
    """

    order: int
    function: str
    module: str
    weights: dict[str, str]
    numbers: dict[str, Any]
    sources: list[int]
    output: list[float]
    inputs: list[list[float]]
    shapes: list[list[int]] = field(default_factory=list)
    flat: list[int] | None = None
    transposed: bool = False
    multiply_adds: int = 0

    @property
    def layer(self) -> str:
        """The name of the arrays' module, or of the module that calls."""
        first = next(iter(self.weights.values()), "")
        return first.partition("[")[0].rpartition(".")[0] or first or self.module or self.function


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
    """What PyTorch's model did with a batch.

    Attributes:
        calls: mode ("inference", "training") -> its calls.
        results: mode -> number of the call that made the output.
        arrays: name -> shape, of parameters and floating buffers that calls used or that the model has.
        buffers: names of those that are none.
        trainable: names of those that are trained.
        aliases: further name -> name, of one array.
        losses: of the updates.
        seconds, memory_bytes: of the process.
    """

    calls: dict[str, list[Call]]
    results: dict[str, int]
    arrays: dict[str, list[int]]
    buffers: list[str]
    trainable: list[str]
    aliases: dict[str, str]
    dropouts: list[Dropout]
    losses: list[float]
    multiply_adds: int
    seconds: float
    memory_bytes: int

    def write(self, file: Path) -> None:
        """Write it as JSON; a reader sees all of it."""
        write_atomically(file, json.dumps(asdict(self), default=str))


def read_trace(file: Path) -> TorchTrace:
    """Read what `TorchTrace.write` wrote."""
    values = json.loads(file.read_text())
    values["calls"] = {mode: [Call(**one) for one in calls] for mode, calls in values["calls"].items()}
    values["dropouts"] = [Dropout(**one) for one in values["dropouts"]]
    return TorchTrace(**values)


def rows_of(name: str) -> tuple[str, slice]:
    """Return array and rows of a name such as "in_proj_weight[0:64]"."""
    base, bracket, part = name.removesuffix("]").partition("[")
    if not bracket:
        return name, slice(None)
    first, last = map(int, part.split(":"))
    return base, slice(first, last)


def worst(differences: dict[str, float]) -> tuple[float, str]:
    """Return the largest difference and its name."""
    name = max(differences, key=lambda one: differences[one], default="")
    return differences.get(name, 0.0), name
