"""Writes a run folder, on rank 0."""

import errno
import os
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.errors import UserError, user_errors
from common.run_folder.records import EpochRecord, RunRecord, RunState, Status, now, write_epochs, write_record
from common.utils.atomic import remove_partial_files

HEARTBEAT_SECONDS = 5.0


def check_new_folder(folder: Path, *, remedy: str = "Give another --name, or --resume it") -> None:
    """Check that a run folder can be created, without creating it.

    Raises:
        UserError: it exists already, or its parent is not a writable folder.
    """
    with user_errors("making the run folder"):
        if folder.exists():
            raise _folder_exists(folder, remedy)
        parent = next(parent for parent in folder.absolute().parents if parent.exists())
        if not parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(parent))
        if not os.access(parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(parent))


def _folder_exists(folder: Path, remedy: str) -> UserError:
    return UserError(f"the run folder already exists and is not overwritten. Received: {folder}. {remedy}")


class RunWriter:
    """Writes a run folder on rank 0. A thread updates the heartbeat; every write is atomic.

    Attributes:
        record: the content of `run.json`.
        epochs: the content of `epochs.jsonl`.
    """

    def __init__(self, folder: Path, record: RunRecord, *, epochs: list[EpochRecord]) -> None:
        self.folder = folder
        self.record = record
        self.epochs = epochs
        self._lock = threading.Lock()
        self._ended = threading.Event()
        with user_errors("writing the run folder"):
            remove_partial_files(folder)
            self._write_run(record)
            write_epochs(folder, epochs)
        threading.Thread(target=self._keep_heartbeat, name="heartbeat", daemon=True).start()

    @classmethod
    def create(cls, folder: Path, record: RunRecord) -> "RunWriter":
        """Create a new run folder.

        Raises:
            UserError: it exists already, or cannot be created.
        """
        with user_errors("making the run folder"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                folder.mkdir()
            except FileExistsError:
                raise _folder_exists(folder, "Give another --name, or --resume it") from None
        return cls(folder, record, epochs=[])

    def add_epoch(self, epoch: EpochRecord) -> None:
        """Append a line to `epochs.jsonl`."""
        self.epochs.append(epoch)
        with user_errors("writing the epoch's record"):
            write_epochs(self.folder, self.epochs)

    def update(self, **changes: Any) -> None:
        """Replace fields of `run.json`."""
        with self._lock, user_errors("writing the run folder"):
            self._write_run(replace(self.record, **changes))

    def release(self) -> None:
        """Write nothing any more: another process goes on with the folder."""
        with self._lock:
            self._ended.set()

    def end(self, state: RunState, *, message: str | None = None, **changes: Any) -> None:
        """Write the final status, unless one has been written. `changes` replace fields of the record.

        Raises:
            OSError: full disk, missing permission.
        """
        with self._lock:
            if self._ended.is_set():
                return
            status = replace(self._status(), state=state, ended_at=now(), heartbeat_at=now(), message=message)
            self._write_run(replace(self.record, status=status, **changes))
            self._ended.set()

    def _status(self) -> Status:
        assert isinstance(self.record.status, Status), "a measured run has a status"
        return self.record.status

    def _keep_heartbeat(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            with self._lock:
                if self._ended.is_set():
                    return
                # With a full disk the run ends, with a message, at the next checkpoint.
                with suppress(OSError):
                    self._write_run(replace(self.record, status=replace(self._status(), heartbeat_at=now())))

    def _write_run(self, record: RunRecord) -> None:
        write_record(self.folder, record)
        self.record = record
