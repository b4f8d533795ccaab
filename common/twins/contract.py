"""The two models to compare: those of a file, or a call of a library's function on each side.

    INPUT, OUTPUTS = (32, 32, 3), 10      # (height, width, channels); (features,); or (length,) with VOCABULARY = 65
    def torch_model(): ...                # frameworks are imported inside the functions
    def keras_model(): ...
    WEIGHTS = {"lstm.weight_ih_l0": "lstm/lstm_cell/kernel"}    # optional: arrays that cannot be matched

A file is code that its user asked to run. Of the expressions on a command line, only the function is called.
"""

import ast
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from common.errors import UserError
from common.twins.records import SIDES

POSSESSIVE = {"torch": "PyTorch's", "keras": "Keras'"}
SAMPLES = 2  # of a batch: the fewest with which batch statistics vary
_DECORATION = re.compile(r"\x1b\[\d*m|\{\{function_node.*?\}\} ?|Arguments received by.*", re.DOTALL)  # of messages
_LONGEST_CAUSE = 300  # characters of an exception in a message


@dataclass(frozen=True, kw_only=True)
class PairSource:
    """What the command line asks for: a file, or an expression for each side with the shape of a sample."""

    file: str = ""
    torch: str = ""
    keras: str = ""
    input: list[int] = field(default_factory=list)
    vocabulary: int = 0

    @property
    def name(self) -> str:
        """A short name of the pair, for files and titles."""
        return Path(self.file).stem if self.file else self.torch.partition(":")[2].partition("(")[0]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two models that are meant to be the same.

    Attributes:
        input: shape of a sample: (height, width, channels), (features,) or (length,).
        vocabulary: number of token ids; 0: samples are floats.
        builders: framework -> function that returns its model.
        weights: PyTorch's name -> Keras' path of arrays that are not matched by what flows through them.
        place: the file, or the command line, for messages.
    """

    input: tuple[int, ...]
    vocabulary: int
    builders: dict[str, Callable[[], Any]]
    weights: dict[str, str]
    place: str

    def batch(self, number: int) -> np.ndarray:
        """Return samples, (2, *input) float64 or int64: always the same of a number."""
        generator = np.random.default_rng(5 + number)
        shape = (SAMPLES, *self.input)
        if not self.vocabulary:
            return generator.normal(size=shape)
        ids = generator.integers(0, self.vocabulary, shape)
        ids[0, -1] = 0  # the id that pads, where one does
        return ids

    def build(self, framework: str, kind: type, *, kind_name: str) -> Any:
        """Return a framework's model.

        Raises:
            UserError: its function fails, or returns another kind.
        """
        with users_code(f"{framework}_model()", self.place):
            model = self.builders[framework]()
        if not isinstance(model, kind):
            received = f"{type(model).__name__} from {self.place}"
            raise UserError(f"{framework}_model() returns {kind_name}. Received: {received}. Return one")
        return model

    def check_repeated(self, framework: str, *, is_equal: bool, random: Sequence[str]) -> None:
        """Raise UserError if two passes of a batch differ, with the functions or layers that draw random numbers."""
        if not is_equal:
            first = f": {random[0]}" if random else ""
            raise UserError(
                f"{POSSESSIVE[framework]} model draws random numbers outside dropout. Received: two passes of the same "
                f"batch that differ{first}, in {self.place}. Leave them out for the comparison"
            )


def check_output(output: Any, framework: str, *, tensor_kind: type) -> None:
    """Raise UserError unless a model's output is one tensor in float64."""
    side = f"from {POSSESSIVE[framework]} model"
    if not isinstance(output, tensor_kind):
        number = f" of {len(output)}" if isinstance(output, tuple | list | dict) else ""
        raise UserError(
            f"a model returns one tensor. Received: a {type(output).__name__}{number} {side}. "
            "Return the tensor that is compared, such as the logits"
        )
    dtype: Any = getattr(output, "dtype", None)
    name = getattr(dtype, "name", str(dtype))
    if not name.endswith("float64"):
        raise UserError(f"models are compared in float64. Received: {name} {side}. Leave out casts")


def targets(shape: tuple[int, ...], number: int) -> np.ndarray:
    """Return what the outputs of a batch are trained towards, in PyTorch's layout."""
    return np.random.default_rng(1000 + number).normal(size=shape)


def check_source(source: PairSource) -> None:
    """Raise UserError for a file that is not there and an expression that is none; run nothing."""
    if not source.file:
        load_pair(source)
    elif not Path(source.file).is_file() or not source.file.endswith(".py"):
        raise UserError(
            f"there is no such model file. Received: {source.file}. Name a Python file, or give --torch and --keras"
        )


def load_pair(source: PairSource) -> Pair:
    """Return the models that the command line names.

    Raises:
        UserError: the file or an expression cannot be used.
    """
    if source.file:
        return _from_file(Path(source.file))
    return Pair(
        input=_checked_shape(source.input, vocabulary=source.vocabulary, place="--input"),
        vocabulary=source.vocabulary,
        builders={framework: _builder(source, framework) for framework in SIDES},
        weights={},
        place="the command line",
    )


def _from_file(file: Path) -> Pair:
    """Run a user's file, which finds the modules beside it."""
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location("twins_model", file)
    assert spec and spec.loader
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules["twins_model"] = module
    with users_code("the file", str(file)):
        spec.loader.exec_module(module)
    for name in ("INPUT", "torch_model", "keras_model"):
        if not hasattr(module, name):
            raise UserError(
                f"a model file has INPUT, torch_model() and keras_model(). Received: {file} without {name}. Add it"
            )
    weights, vocabulary = getattr(module, "WEIGHTS", {}), getattr(module, "VOCABULARY", 0)
    if not isinstance(weights, dict) or not all(isinstance(name, str) for pair in weights.items() for name in pair):
        raise UserError(
            f"WEIGHTS is a dictionary of names. Received: {weights!r}. Write {{'torch.name': 'keras/path'}}"
        )
    return Pair(
        input=_checked_shape(module.INPUT, vocabulary=vocabulary, place="INPUT"),
        vocabulary=int(vocabulary or 0),
        builders={framework: getattr(module, f"{framework}_model") for framework in SIDES},
        weights=weights,
        place=str(file),
    )


def _checked_shape(shape: Any, *, vocabulary: Any, place: str) -> tuple[int, ...]:
    numbers = (shape,) if isinstance(shape, int) else shape
    valid = isinstance(numbers, tuple | list) and all(isinstance(n, int) and n > 0 for n in numbers)
    if not valid or len(numbers) not in ((1,) if vocabulary else (1, 3)):
        raise UserError(
            f"{place} is (height, width, channels), (features,), or (length,) with a vocabulary. Received: {shape!r}. "
            "Write the shape of one sample"
        )
    return tuple(numbers)


def _builder(source: PairSource, framework: str) -> Callable[[], Any]:
    """Return a function that calls `module:function(literals)`, without weights to download."""
    text = getattr(source, framework)
    module_name, _, expression = text.partition(":")
    try:
        node = ast.parse(expression.strip(), mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        path = ast.unparse(call.func)
        arguments = [ast.literal_eval(value) for value in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        valid = all(part.isidentifier() for part in [*module_name.split("."), *path.split(".")])
    except (SyntaxError, ValueError):
        valid = False
    if not valid:
        raise UserError(
            f"--{framework} is MODULE:FUNCTION, with literal arguments if it needs any. Received: {text!r}. "
            "Write it like torchvision.models:resnet50 or 'keras.applications:ResNet50(weights=None)'"
        )

    def build() -> Any:
        function: Any = importlib.import_module(module_name)
        for part in path.split("."):
            function = getattr(function, part)
        defaults = {"weights": None, "input_shape": tuple(source.input)}
        parameters = inspect.signature(function).parameters
        return function(*arguments, **{name: defaults[name] for name in defaults if name in parameters} | named)

    return build


@contextmanager
def users_code(what: str, place: str) -> Iterator[None]:
    """Turn whatever a user's code raises into a UserError that names its line."""
    try:
        yield
    except UserError:
        raise
    except ImportError as error:
        framework = error.name in ("torch", "keras", "tensorflow")
        remedy = "Import frameworks inside the functions" if framework else "Install it"
        raise UserError(f"{what} needs what is not installed. Received: {error} in {place}. {remedy}") from error
    except (Exception, SystemExit) as error:
        file = Path(place).resolve()
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file]
        where = f"{place}, line {lines[-1]}" if lines else place
        raise UserError(f"{what} ended with {_cause(error)}. Received: {where}. Correct the model") from error


def _cause(error: BaseException) -> str:
    """Return type and first sentences of an exception, on one line."""
    text = " ".join(_DECORATION.sub("", str(error)).split())
    shown = text if len(text) <= _LONGEST_CAUSE else f"{text[:_LONGEST_CAUSE]}..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


def forbid_downloads() -> None:
    """Let whatever asks for a host on the network fail, in this process: weights are filled with random numbers."""

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.getaddrinfo" and arguments[0] not in (None, "localhost", "127.0.0.1", "::1"):
            raise UserError(
                f"the model asks the network for something, which is not needed: all its arrays get random numbers. "
                f"Received: {arguments[0]}. Build it without weights, such as weights=None"
            )

    sys.addaudithook(refuse)
