"""Arrays that a model file names in WEIGHTS, because they cannot be matched by what flows through them."""

from collections.abc import Iterable
from typing import Any

from common.errors import UserError
from common.twins.contract import Pair
from common.twins.trace import TorchTrace
from common.utils.printable import suggestion
from keras_impl.twins.kernels import Source, fits_bare


def name_weights(model: Any, trace: TorchTrace, pair: Pair) -> list[Source]:
    """Return where the numbers of Keras' variables come from that WEIGHTS names.

    A kernel is turned; "a + b" is the sum of two arrays, as of the two biases of a recurrent layer.

    Raises:
        UserError: a name is unknown, or shapes do not fit.
    """
    variables, sources = {variable.path: variable for variable in model.variables}, []
    for name, path in pair.weights.items():
        names = tuple(part.strip() for part in name.split("+"))
        for array in names:
            _check_name(array, trace.arrays, "array of PyTorch's model")
        _check_name(path, variables, "variable of Keras' model")
        variable, shape = variables[path], trace.arrays[names[0]]
        is_kernel = len(shape) == 2 and "kernel" in variable.name
        turned = fits_bare(shape, variable.shape)
        if is_kernel:
            turned = True if shape[::-1] == list(variable.shape) else None
        if turned is None:
            raise UserError(
                f"WEIGHTS pairs arrays that do not fit. Received: {name} {tuple(shape)} and {path} "
                f"{tuple(variable.shape)}. Correct it"
            )
        sources.append(Source(variable=variable, layer=None, names=names, transposed=turned, bare=True))
    return sources


def _check_name(name: str, names: Iterable[str], kind: str) -> None:
    if name not in names:
        raise UserError(f"WEIGHTS names no {kind}. Received: {name!r}. {suggestion(name, names)}Correct it")
