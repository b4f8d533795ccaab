"""The layout of safetensors files, for arrays that are written and mapped one after the other.

8 bytes with the length of the header, the header in JSON, the arrays.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from common.utils.whole_files import parse_json, require_file

ArrayKind = tuple[tuple[int, ...], np.dtype]  # shape and type

LENGTH_BYTES = 8  # of the length of the header, which ends at a multiple of them
_MOST_HEADER_BYTES = 100_000_000  # safetensors' own limit
_LETTERS = {"f": "F", "i": "I", "u": "U"}  # NumPy's kind of a type -> safetensors'


def header_of(kinds: Mapping[str, ArrayKind], *, metadata: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the header of a file with these arrays, in this order."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    first = 0
    for name, (shape, dtype) in kinds.items():
        last = first + math.prod(shape) * dtype.itemsize
        type_name = "BOOL" if dtype.kind == "b" else f"{_LETTERS[dtype.kind]}{8 * dtype.itemsize}"
        header[name] = {"dtype": type_name, "shape": list(shape), "data_offsets": [first, last]}
        first = last
    return header


def header_bytes(header: Mapping[str, Any], *, length: int = 0) -> bytes:
    """Return the file up to its first array, of at least so many bytes."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(max(-(-len(text) // LENGTH_BYTES) * LENGTH_BYTES, length - LENGTH_BYTES))
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def read_header(path: Path) -> tuple[Any, int]:
    """Return what is in the place of the header, and the first byte behind it.

    Raises:
        ValueError: it is not JSON.
        OSError: the file cannot be read.
    """
    require_file(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        text = file.read(length) if length <= _MOST_HEADER_BYTES else b""
    return parse_json(text), LENGTH_BYTES + length
