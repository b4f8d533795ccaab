"""Runs as TensorBoard shows them: a folder of events per run, with settings for its HParams tab."""

from collections.abc import Iterable
from pathlib import Path

from analysis.export.exported import ExportedRun
from common.run_folder.tensorboard_events import EVENTS_FILE, append_event, scalars


def write_events(runs: Iterable[ExportedRun], folder: Path) -> None:
    """Write runs into an existing folder: figures of epochs at step = epoch, totals named "run/...", settings."""
    # Its summaries are made without TensorFlow, which the other ways of TensorBoard import where it is installed.
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    for run in runs:
        file = folder / run.name / EVENTS_FILE
        file.parent.mkdir(parents=True)
        settings = hparams_pb(dict(run.settings), trial_id=run.name, start_time_secs=run.started_at)
        append_event(file, settings, step=0, seconds=run.started_at)
        for epoch in run.epochs:
            append_event(file, scalars(epoch.figures), step=epoch.number, seconds=epoch.ended_at)
        append_event(file, scalars(run.totals), step=len(run.epochs), seconds=run.ended_at)
