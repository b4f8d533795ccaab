"""TensorBoard event files, as an option (`--tensorboard`): the numbers of `epochs.jsonl`, an event an epoch."""

import time
from pathlib import Path

from common.errors import UserError
from common.records import EpochRecord


def write_scalars(run_folder: Path, record: EpochRecord) -> None:
    """Append the numbers of an epoch to the event file of a run, one scalar each, at step = epoch.

    Raises:
        UserError: the tensorboard package is not installed.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        raise UserError(
            "TensorBoard events need the tensorboard package. Received: --tensorboard. "
            "Run `pip install tensorboard`, or leave --tensorboard out"
        ) from None
    file = run_folder / "events.out.tfevents.run"
    values = [
        Summary.Value(tag=tag, simple_value=value)
        for tag, value in vars(record).items()
        if isinstance(value, float) and tag != "epoch"
    ]
    is_new = not file.exists()
    with file.open("ab") as stream:
        writer = RecordWriter(stream)
        if is_new:
            writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        writer.write(Event(wall_time=time.time(), step=record.epoch, summary=Summary(value=values)).SerializeToString())
