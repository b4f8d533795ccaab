"""Initial weights, drawn by NumPy from the seed, and the framework-neutral weights file (safetensors).

The file has PyTorch's names and layout (see `common.model.specs`); hashes are of the arrays in the file.
"""

import errno
import hashlib
import os
import re
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from common.errors import UserError
from common.model.specs import ModelSpec, WeightSpec
from common.utils.atomic import atomic_file

Weights = dict[str, np.ndarray]


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


def save_weights(path: Path, weights: Weights, *, durable: bool = True) -> None:
    """Write arrays atomically; the same arrays give the same bytes.

    Args:
        durable: wait until the data is on disk, so that it survives a crash of the machine.
    """
    try:
        with atomic_file(path, durable=durable) as temporary:
            save_file({name: np.ascontiguousarray(weights[name]) for name in sorted(weights)}, temporary)
    except SafetensorError as error:  # e.g. a full disk: "... (os error 28)"
        number = re.search(r"os error (\d+)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code) if number else str(error), str(path)) from error


def load_weights(path: Path, *, spec: ModelSpec | None = None) -> Weights:
    """Return the arrays of a weights file.

    Raises:
        UserError: the file is missing or damaged, or its names and shapes are not those of `spec`.
    """
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read the weights. Received: {path} ({error}). Name a run that has them") from None
    if spec is not None:
        check_weights(weights, spec, source=str(path))
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


def weights_hash(weights: Weights) -> str:
    """Return one hex hash of all arrays: runs with equal hashes have the same weights, bit for bit."""
    whole = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        whole.update(_digest(name, weights[name]))
    return whole.hexdigest()


def _digest(name: str, array: np.ndarray) -> bytes:
    digest = hashlib.blake2b(f"{name} {array.dtype} {array.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.digest()
