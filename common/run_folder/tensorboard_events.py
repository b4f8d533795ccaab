"""TensorBoard event files (`--tensorboard`): the numbers of `epochs.jsonl`, one event per epoch."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.run_folder.records import EpochRecord

EVENTS_FILE = "events.out.tfevents.run"


def require_tensorboard(option: str = "--tensorboard") -> None:
    """Raise UserError unless events can be written; called before the run, not after its first epoch.

    Args:
        option: that asks for them.
    """
    try:
        # Not tensorboard's own writer of event files, which imports TensorFlow where it is installed.
        from tensorboard.compat.proto import event_pb2, summary_pb2  # noqa: F401
        from tensorboard.summary.writer import record_writer  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"TensorBoard events need the tensorboard package ({error}). Received: {option}. "
            f"Run `pip install tensorboard`, or leave {option} out"
        ) from None


def write_scalars(run_folder: Path, record: EpochRecord) -> None:
    """Append the numbers of an epoch to the event file of a run, one scalar each, at step = epoch.

    Raises:
        OSError: full disk, missing permission.
    """
    append_event(run_folder / EVENTS_FILE, scalars(vars(record)), step=record.epoch, seconds=time.time())


def scalars(values: Mapping[str, Any]) -> Any:
    """Return a summary with a scalar for each value that is a float."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(
        value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items() if isinstance(value, float)]
    )


def append_event(file: Path, summary: Any, *, step: int, seconds: float) -> None:
    """Append a summary to an event file, which begins with its version.

    Args:
        seconds: time of the event, since 1970.

    Raises:
        OSError: full disk, missing permission.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    events = [Event(wall_time=seconds, step=step, summary=summary)]
    if not file.exists():
        events.insert(0, Event(wall_time=seconds, file_version="brain.Event:2"))
    with file.open("ab") as stream:
        for event in events:
            RecordWriter(stream).write(event.SerializeToString())
