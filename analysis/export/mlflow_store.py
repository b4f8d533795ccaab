"""Runs in a store of MLflow: an SQLite file that `mlflow ui` and MLflow's client open."""

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from analysis.export.exported import ExportedRun
from common.errors import HOW_TO_GET_EXTRAS, UserError
from common.run_folder.records import RunState

EXPERIMENT = "horovod-twins"
DATABASE, ARTIFACTS = "mlflow.db", "artifacts"
METRICS_AT_ONCE = 1000  # MLflow's own limit
_STATUS: dict[RunState, str] = {
    "finished": "FINISHED",
    "failed": "FAILED",
    "interrupted": "KILLED",
    "killed": "KILLED",
    "running": "RUNNING",
}


def require_mlflow() -> None:
    """Raise UserError unless MLflow and its SQLite store are there."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # exporting runs sends nothing anywhere
    try:
        import alembic  # noqa: F401
        import mlflow  # noqa: F401
        import sqlalchemy  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"MLflow's store needs its packages ({error}). Received: --to mlflow. {HOW_TO_GET_EXTRAS}"
        ) from None


def write_store(runs: Iterable[ExportedRun], folder: Path) -> None:
    """Write runs into `mlflow.db` in an existing folder, and their files into `artifacts/` beside it.

    Settings are parameters; figures of epochs are metrics at step = epoch; totals are metrics named "run/...".
    """
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)  # not a line per table that it creates
    logging.getLogger("alembic").setLevel(logging.WARNING)
    client = MlflowClient(tracking_uri=f"sqlite:///{(folder / DATABASE).absolute()}")
    experiment = client.create_experiment(EXPERIMENT, artifact_location=(folder / ARTIFACTS).absolute().as_uri())
    for run in runs:
        _add(run, client, experiment)


def _add(run: ExportedRun, client: Any, experiment: str) -> None:
    from mlflow.entities import Metric, Param

    tags = {"folder": str(run.folder), "framework": str(run.settings["framework"])}
    created = client.create_run(experiment, start_time=_milliseconds(run.started_at), run_name=run.name, tags=tags)
    identity = created.info.run_id
    metrics = [
        Metric(name, value, _milliseconds(epoch.ended_at), epoch.number)
        for epoch in run.epochs
        for name, value in epoch.figures.items()
    ]
    metrics += [Metric(name, value, _milliseconds(run.ended_at), len(run.epochs)) for name, value in run.totals.items()]
    client.log_batch(identity, params=[Param(name, str(value)) for name, value in run.settings.items()])
    for first in range(0, len(metrics), METRICS_AT_ONCE):
        client.log_batch(identity, metrics=metrics[first : first + METRICS_AT_ONCE])
    for file in run.files:
        client.log_artifact(identity, str(file))
    client.set_terminated(identity, status=_STATUS[run.state], end_time=_milliseconds(run.ended_at))


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)
