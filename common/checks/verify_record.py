"""`verify.json` in the folder of a rerun: which run it repeats, and how far its times may differ.

`python -m launch verify` writes it, `python -m analysis verify` judges the two runs.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from common.config import Config
from common.errors import UserError
from common.json_records import SCHEMA_VERSION, Record, result_file
from common.run_folder.environment import Environment
from common.run_folder.records import DataRecord, Hashes, RecordedRun, Totals, World
from common.run_folder.sharing import with_measured

VERIFY_FILE = "verify.json"


@dataclass(frozen=True, kw_only=True)
class VerifyRecord(Record):
    """The run that a rerun repeats.

    Attributes:
        run: its folder, relative to that of the rerun.
        time_ratio: epochs of one may take at most this many times as long as those of the other.
    """

    schema_version: int = SCHEMA_VERSION
    run: str
    time_ratio: float


VERIFICATIONS = result_file(VerifyRecord, command="python -m launch verify")


@dataclass(frozen=True)
class WholeRun:
    """A run whose record has all that a rerun needs; its settings have what was measured in place of auto."""

    run: RecordedRun
    config: Config
    environment: Environment
    world: World
    data: DataRecord
    hashes: Hashes
    totals: Totals


def whole_run(run: RecordedRun) -> WholeRun:
    """Return a run with the parts of its record.

    Raises:
        UserError: a part is not recorded.
    """
    record = run.record
    parts = (record.config, record.environment, record.world, record.data, record.hashes, record.totals)
    kinds = (Config, Environment, World, DataRecord, Hashes, Totals)
    if not all(isinstance(part, kind) for part, kind in zip(parts, kinds, strict=True)):
        raise UserError(f"the record is incomplete. Received: {run.folder}. Give a run with a complete record")
    config = with_measured(record.config, record.groups)  # type: ignore[arg-type]
    return WholeRun(run, config, *parts[1:])  # type: ignore[arg-type]


def write_verify(folder: Path, *, run: Path, time_ratio: float) -> None:
    """Write `verify.json` into the folder of a rerun."""
    VERIFICATIONS.write(folder / VERIFY_FILE, VerifyRecord(run=os.path.relpath(run, folder), time_ratio=time_ratio))
