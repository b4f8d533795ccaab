"""TensorBoard event files (`--tensorboard`): the numbers of `epochs.jsonl`, one event per epoch."""

import time
from pathlib import Path

from common.errors import UserError
from common.run_folder.records import EpochRecord

EVENTS_FILE = "events.out.tfevents.run"


def require_tensorboard() -> None:
    """Raise UserError unless events can be written; called before the run, not after its first epoch."""
    try:
        # Not tensorboard's own writer of event files, which imports TensorFlow where it is installed.
        from tensorboard.compat.proto import event_pb2, summary_pb2  # noqa: F401
        from tensorboard.summary.writer import record_writer  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"TensorBoard events need the tensorboard package ({error}). Received: --tensorboard. "
            "Run `pip install tensorboard`, or leave --tensorboard out"
        ) from None


def write_scalars(run_folder: Path, record: EpochRecord) -> None:
    """Append the numbers of an epoch to the event file of a run, one scalar each, at step = epoch.

    Raises:
        OSError: full disk, missing permission.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    file = run_folder / EVENTS_FILE
    values = [
        Summary.Value(tag=tag, simple_value=value) for tag, value in vars(record).items() if isinstance(value, float)
    ]
    events = [Event(wall_time=time.time(), step=record.epoch, summary=Summary(value=values))]
    if not file.exists():
        events.insert(0, Event(wall_time=time.time(), file_version="brain.Event:2"))
    with file.open("ab") as stream:
        for event in events:
            RecordWriter(stream).write(event.SerializeToString())
