"""Arrays that a model file names in WEIGHTS, because they cannot be matched by what flows through them."""

from typing import Any

from common.errors import UserError
from common.twins.contract import Pair
from common.twins.trace import TorchTrace
from common.utils.printable import suggestion
from keras_impl.twins.kernels import Place, fits_bare


def name_weights(model: Any, trace: TorchTrace, pair: Pair) -> dict[int, tuple[Any, Place]]:
    """Return id of a Keras variable -> variable, and where its numbers come from.

    A kernel is turned; "a + b" is the sum of two arrays, as of the two biases of a recurrent layer.

    Raises:
        UserError: a name is unknown, or shapes do not fit.
    """
    variables, found = {one.path: one for one in model.variables}, dict[int, tuple[Any, Place]]()
    for name, path in pair.weights.items():
        names = tuple(part.strip() for part in name.split("+"))
        for known, one in ((trace.arrays, each) for each in names):
            if one not in known:
                raise UserError(
                    f"WEIGHTS names no array of PyTorch's model. Received: {one!r}. {suggestion(one, known)}Correct it"
                )
        if path not in variables:
            raise UserError(
                "WEIGHTS names no variable of Keras' model. "
                f"Received: {path!r}. {suggestion(path, variables)}Correct it"
            )
        variable = variables[path]
        shape = trace.arrays[names[0]]
        turned = len(shape) == 2 and "kernel" in variable.name
        fits = shape[::-1] == list(variable.shape) if turned else fits_bare(shape, variable.shape) is not None
        if not fits:
            raise UserError(
                f"WEIGHTS pairs arrays that do not fit. Received: {name} {tuple(shape)} and {path} "
                f"{tuple(variable.shape)}. Correct it"
            )
        turned = turned or bool(fits_bare(shape, variable.shape))
        found[id(variable)] = (variable, Place(names, transposed=turned, bare=True))
    return found
