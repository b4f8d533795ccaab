"""Run folders for tests of jobs and transfers."""

import os
from pathlib import Path
from typing import Any

from example_runs import make_epoch, make_record, make_status

from common.run_folder.records import Hashes, write_epochs, write_record

HASHES = Hashes(initial_weights="ab", sample_order="cd")


def make_run(folder: Path, *, epochs: int = 2, state: str = "finished", big: int = 0, **status: Any) -> Path:
    """Write a run folder; two of the same arguments but the number of epochs are one run at two times."""
    folder.mkdir(parents=True)
    moments = {"started_at": "2026-01-01T12:00:00.000+00:00", "heartbeat_at": f"2026-01-01T12:00:{epochs:02}.000+00:00"}
    write_record(folder, make_record(status=make_status(state=state, **{**moments, **status}), hashes=HASHES))
    write_epochs(folder, [make_epoch(number) for number in range(1, epochs + 1)])
    checkpoint = folder / f"checkpoints/epoch-{epochs:04}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights.safetensors").write_bytes(bytes(range(256)) * 8 + bytes([epochs]) + os.urandom(big))
    return folder
