"""The JSON files of parity, bench and verify: written by `python -m launch`, shown by `python -m analysis`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from common.errors import UserError, first_problem
from common.utils.atomic import write_atomically
from common.utils.whole_files import read_text

SCHEMA_VERSION = 1
Result = TypeVar("Result")


def write_result(file: Path, result: Any) -> None:
    """Write a dataclass as JSON, so that a reader sees the old file or the new one."""
    write_atomically(file, json.dumps(asdict(result), indent=1) + "\n")


def read_result(file: Path, kind: type[Result], *, command: str) -> Result:
    """Read and validate a file.

    Args:
        kind: dataclass with a `schema_version`.
        command: that writes such files, for messages.

    Raises:
        UserError: it is missing, or it does not follow the schema.
    """
    try:
        result = TypeAdapter(kind).validate_json(read_text(file), strict=True)
    except OSError as error:
        raise UserError(
            f"cannot read the result: {error.strerror}. Received: {file}. Give a file written by `{command}`"
        ) from None
    except ValueError as error:  # not UTF-8, or pydantic's ValidationError
        problem = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise UserError(f"{file} is not a result of `{command}`: {problem}. Restore it, or run it again") from None
    version = result.schema_version  # type: ignore[attr-defined]
    if version != SCHEMA_VERSION:
        raise UserError(f"unknown schema version. Received: {version} in {file}. This program reads {SCHEMA_VERSION}")
    return result
