"""`verify.json` in the folder of a rerun: which run it repeats, and how far its times may differ.

`python -m launch verify` writes it, `python -m analysis verify` judges the two runs.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from common.config import Config
from common.errors import UserError, first_problem
from common.run_folder.environment import Environment
from common.run_folder.records import DataRecord, Hashes, Run, Totals, World
from common.utils.atomic import write_atomically

VERIFY_FILE = "verify.json"


@dataclass(frozen=True, kw_only=True)
class VerifyRecord:
    """The run that a rerun repeats.

    Attributes:
        run: its folder, relative to that of the rerun.
        time_ratio: epochs of one may take at most this many times as long as those of the other.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    schema_version: int = 1
    run: str
    time_ratio: float


@dataclass(frozen=True)
class WholeRun:
    """A run whose record has all that a rerun needs."""

    run: Run
    config: Config
    environment: Environment
    world: World
    data: DataRecord
    hashes: Hashes
    totals: Totals


def whole_run(run: Run) -> WholeRun:
    """Return a run with the parts of its record.

    Raises:
        UserError: a part is not recorded.
    """
    record = run.record
    parts = (record.config, record.environment, record.world, record.data, record.hashes, record.totals)
    kinds = (Config, Environment, World, DataRecord, Hashes, Totals)
    if not all(isinstance(part, kind) for part, kind in zip(parts, kinds, strict=True)):
        raise UserError(f"the record lacks what a rerun needs. Received: {run.folder}. Give a run with a full record")
    return WholeRun(run, *parts)  # type: ignore[arg-type]


def write_verify(folder: Path, *, run: Path, time_ratio: float) -> None:
    """Write `verify.json` into the folder of a rerun."""
    record = VerifyRecord(run=os.path.relpath(run, folder), time_ratio=time_ratio)
    write_atomically(folder / VERIFY_FILE, json.dumps(asdict(record), indent=1) + "\n")


def read_verify(folder: Path) -> VerifyRecord:
    """Read `verify.json`.

    Raises:
        UserError: it is missing, or it does not follow the schema.
    """
    file = folder / VERIFY_FILE
    try:
        return TypeAdapter(VerifyRecord).validate_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"this is not a rerun: {error.strerror}. Received: {file}. Give a folder of `python -m launch verify`"
        ) from None
    except ValueError as error:  # not UTF-8, or pydantic's ValidationError
        reason = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise UserError(f"{file} cannot be read: {reason}. Run `python -m launch verify` again") from None
