"""Records in JSON: one reader, which is strict, and one writer, whose files are seen whole or not at all."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from common.errors import UserError, first_problem
from common.utils.atomic import write_atomically
from common.utils.whole_files import parse_json, read_text

SCHEMA_VERSION: Literal[1] = 1  # of all records that have a field `schema_version`
Kind = TypeVar("Kind")


class Record:
    """Base of dataclasses that are read from JSON or TOML: fields that they do not have are errors."""

    __pydantic_config__ = ConfigDict(extra="forbid")


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Return what validates a dataclass; building it takes longer than all that it validates."""
    return TypeAdapter(kind)


def validated(kind: type[Kind], table: Any, *, place: object, what: str, remedy: str) -> Kind:
    """Return a table of a TOML file as a record; its place, what it should be and the remedy are for the message.

    Raises:
        UserError: it does not follow the schema.
    """
    try:
        # Through JSON: only there does pydantic's strict mode accept tables for dataclasses and dates as text.
        adapter: TypeAdapter[Kind] = adapter_of(kind)  # type: ignore[arg-type]  # a class is hashable
        return adapter.validate_json(json.dumps(table, default=str), strict=True)
    except ValidationError as error:
        raise UserError(f"{place} is not {what}: {first_problem(error)}. {remedy}") from None


@dataclass(frozen=True, kw_only=True)
class RecordFile(Generic[Kind]):
    """A kind of JSON file, with a record or one in each line.

    Attributes:
        kind: dataclass of a record.
        what: the file is, for the message about one that is not.
        missing: what is wrong where there is no such file.
        source: where to get one.
        remedy: where it is damaged.
    """

    kind: type[Kind]
    what: str
    missing: str
    source: str
    remedy: str = "Restore the file"

    @cached_property
    def _adapter(self) -> TypeAdapter[Kind]:
        return adapter_of(self.kind)  # type: ignore[arg-type]  # a class is hashable

    @cached_property
    def _has_version(self) -> bool:
        return "schema_version" in self.kind.__annotations__

    def read(self, file: Path) -> Kind:
        """Read and validate a file.

        Raises:
            UserError: it cannot be read, or does not follow the schema.
        """
        return self.parse(self._text(file), place=file)

    def read_lines(self, file: Path) -> list[Kind]:
        """Read and validate a file with a record in each line; errors as of `read`."""
        return [self.parse(line, place=file) for line in self._text(file).splitlines()]

    def parse(self, text: str | bytes, *, place: object) -> Kind:
        """Return the record in a text, whose place is for messages.

        Raises:
            UserError: it does not follow the schema.
        """
        try:
            record = self._adapter.validate_json(text, strict=True)
        except ValidationError as error:
            # Parsed a second time only after an error: reading thousands of runs has to be fast.
            if self._has_version:
                self._check_version(_parsed(text), place)
            raise self.invalid(place, first_problem(error)) from None
        if self._has_version:
            self._check_version(vars(record), place)
        return record

    def invalid(self, place: object, problem: object) -> UserError:
        """Return the error for a file with a problem."""
        return UserError(f"{place} is not {self.what}: {problem}. {self.remedy}")

    def write(self, file: Path, record: Kind) -> None:
        """Write a file.

        Raises:
            OSError: full disk, missing permission.
        """
        write_atomically(file, as_json(record, indent=1) + "\n")

    def write_lines(self, file: Path, records: Iterable[Kind]) -> None:
        """Write a file with a record in each line; errors as of `write`."""
        write_atomically(file, "".join(as_json(record) + "\n" for record in records))

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a record."""
        return self._adapter.json_schema()

    def _text(self, file: Path) -> str:
        try:
            return read_text(file)
        except OSError as error:
            raise UserError(f"{self.missing}: {error.strerror}. Received: {file}. {self.source}") from None
        except UnicodeDecodeError as error:
            raise self.invalid(file, error) from None

    def _check_version(self, content: Any, place: object) -> None:
        version = content.get("schema_version", SCHEMA_VERSION) if isinstance(content, dict) else SCHEMA_VERSION
        if version != SCHEMA_VERSION:
            raise UserError(
                f"unknown schema version. Received: {version} in {place}. This program reads {SCHEMA_VERSION}"
            )


def result_file(kind: type[Kind], *, command: str) -> RecordFile[Kind]:
    """Return the kind of file that a command writes as its result, such as `python -m launch parity`."""
    return RecordFile(
        kind=kind,
        what=f"a result of `{command}`",
        missing="cannot read the result",
        source=f"Give a file written by `{command}`",
        remedy="Restore it, or run it again",
    )


def as_json(record: Any, *, indent: int | None = None) -> str:
    """Return a record in JSON."""
    return json.dumps(asdict(record), indent=indent)


def _parsed(text: str | bytes) -> Any:
    """Return the content of a JSON document; None: it is none."""
    try:
        return parse_json(text)
    except ValueError:
        return None
