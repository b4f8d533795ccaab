"""Initial weights, drawn by NumPy from the seed, and the framework-neutral weights file (safetensors).

The file has PyTorch's names and layout (see `common.model.specs`); hashes are of the arrays in the file.
"""

import hashlib
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from common.errors import UserError
from common.model.safetensors_file import ArrayKind, header_bytes, header_of
from common.model.specs import ModelSpec, WeightSpec
from common.utils.atomic import atomic_file

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class ArrayStream:
    """Arrays that come one after the other, so that not all of them are in memory at once; to be read once.

    Attributes:
        kinds: name -> shape and type of each array, in the order in which they come, see `in_file_order`.
        arrays: name and array.
    """

    kinds: Mapping[str, ArrayKind]
    arrays: Iterator[tuple[str, np.ndarray]]


def in_file_order(kinds: Mapping[str, ArrayKind]) -> dict[str, ArrayKind]:
    """Return the arrays in the order of a weights file: wide types first, so that each array is aligned to its type."""
    return {name: kinds[name] for name in sorted(kinds, key=lambda name: (-kinds[name][1].itemsize, name))}


def stream_of(weights: Weights) -> ArrayStream:
    """Return arrays that are in memory as a stream."""
    kinds = in_file_order({name: (array.shape or (1,), array.dtype) for name, array in weights.items()})
    return ArrayStream(kinds, ((name, weights[name]) for name in kinds))


def draw_initial_weights(
    spec: ModelSpec, *, seed: int, dtype: str = "float32", names: Collection[str] | None = None
) -> Weights:
    """Return the initial weights of a model: the same in both frameworks, on all ranks, for any number of ranks.

    Each array has its own generator, keyed by the seed and the name of the array. It is drawn in float64 and then
    cast, so that float32 and float64 runs start from the same point.

    Args:
        names: of those that are wanted; None: all.
    """
    wanted = [weight for weight in spec.weights if names is None or weight.name in names]
    return {weight.name: _draw(weight, seed).astype(dtype) for weight in wanted}


def _draw(weight: WeightSpec, seed: int) -> np.ndarray:
    generator = np.random.Generator(np.random.Philox([seed, zlib.crc32(weight.name.encode())]))
    if weight.initializer == "uniform_fan_in":
        bound = weight.fan**-0.5  # torch.nn.Linear and Conv2d: Kaiming uniform with a = sqrt(5)
        return generator.uniform(-bound, bound, weight.shape)
    if weight.initializer == "normal_fan_out":
        return generator.normal(0.0, (2.0 / weight.fan) ** 0.5, weight.shape)  # He et al. 2015, as torchvision
    return np.ones(weight.shape) if weight.initializer == "ones" else np.zeros(weight.shape)


def save_weights(path: Path, weights: Weights | ArrayStream, *, durable: bool = True) -> str:
    """Write arrays atomically, one after the other; return their `weights_hash`.

    The same arrays give the same bytes, in any order.

    Args:
        durable: wait until the data is on disk, so that it survives a crash of the machine.

    Raises:
        OSError: full disk, missing permission.
    """
    stream = weights if isinstance(weights, ArrayStream) else stream_of(weights)
    digests: dict[str, bytes] = {}
    with atomic_file(path, durable=durable) as temporary, temporary.open("wb") as file:
        file.write(header_bytes(header_of(stream.kinds)))
        for name, array in stream.arrays:
            digests[name] = _digest(name, array)
            file.write(_bytes(array))
    return _joined(digests)


def load_weights(path: Path, *, spec: ModelSpec | None = None, hashed: str | None = None) -> Weights:
    """Return the arrays of a weights file.

    Args:
        hashed: the `weights_hash` that was recorded when it was written.

    Raises:
        UserError: the file is missing or damaged, or its names and shapes are not those of `spec`.
    """
    try:
        weights = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"cannot read the weights. Received: {path} ({error}). Name a run that has them") from None
    if spec is not None:
        check_weights(weights, spec, source=str(path))
    if hashed is not None and weights_hash(weights) != hashed:
        raise UserError(
            f"the weights differ from those written: the disk has changed them. Received: {path}. Restore the "
            "file or, for a checkpoint, remove its folder to resume from the previous one, if there is one"
        )
    return weights


def check_weights(weights: Weights, spec: ModelSpec, *, source: str) -> None:
    """Raise UserError unless the arrays have the names and shapes of the model."""
    expected = {weight.name: weight.shape for weight in spec.weights}
    for name in [*expected, *weights]:
        wanted = expected.get(name, "none")
        found = weights[name].shape if name in weights else "none"
        if wanted != found:
            raise UserError(
                f"these weights do not belong to {spec.name} for {' x '.join(map(str, spec.input_shape))} "
                f"images and {spec.outputs} outputs: {name} should have shape {wanted}. Received: {found} in {source}. "
                "Name a run of the same model, data set and outputs"
            )


def tensor_hashes(weights: Weights) -> np.ndarray:
    """Return (arrays,) int64: a hash of name, dtype, shape and bytes of each array, in the order of sorted names."""
    digests = [_digest(name, weights[name])[:8] for name in sorted(weights)]
    return np.array([int.from_bytes(digest, "little", signed=True) for digest in digests], dtype=np.int64)


def weights_hash(weights: Weights | Iterable[tuple[str, np.ndarray]]) -> str:
    """Return one hex hash of all arrays: runs with equal hashes have the same weights, bit for bit.

    Args:
        weights: or name and array of each, in any order, so that they need not all be in memory at once.
    """
    arrays = weights.items() if isinstance(weights, dict) else weights
    return _joined({name: _digest(name, array) for name, array in arrays})


def _joined(digests: Mapping[str, bytes]) -> str:
    whole = hashlib.blake2b(digest_size=16)
    for name in sorted(digests):
        whole.update(digests[name])
    return whole.hexdigest()


def _digest(name: str, array: np.ndarray) -> bytes:
    shape = array.shape or (1,)  # as in a file
    digest = hashlib.blake2b(f"{name} {array.dtype} {shape}".encode(), digest_size=16)
    digest.update(_bytes(array))
    return digest.digest()


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).view(np.uint8).data
