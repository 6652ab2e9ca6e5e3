"""MLflow: the server that MLFLOW_TRACKING_URI names, or MLflow's own local store."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from hotloop.core.errors import ExitCode
from hotloop.core.settings import Settings
from hotloop.train.tracker import Point, changed_origins, read_identity, store_identity

MAX_PER_REQUEST = 100
"""Parameters and tags that MLflow takes at once."""


IMPATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "15"}
"""MLflow itself tries for minutes before it says what is wrong; here it is tried again anyway."""


class MlflowTracker:
    def __init__(self, settings: Settings, directory: Path) -> None:
        self._settings = settings
        self._directory = directory
        self._client: Any = None
        self._run_id = ""

    def open(self) -> None:
        for name, value in IMPATIENCE.items():
            os.environ.setdefault(name, value)
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells of its tables
        from mlflow import MlflowClient

        config = self._settings.config
        client = MlflowClient()
        project = config.logging.project
        experiment = client.get_experiment_by_name(project)
        where = experiment.experiment_id if experiment else client.create_experiment(project)
        self._run_id = self._continued(client, where) or self._begun(client, where)
        self._describe(client)
        self._client = client

    def _continued(self, client: Any, experiment_id: str) -> str | None:
        """The run of this directory, open again; `None` when the server does not know it (any more)."""
        from mlflow.exceptions import MlflowException

        known = read_identity(self._directory, "mlflow")
        if known.get("experiment_id") != experiment_id or not known.get("run_id"):
            return None
        try:
            if client.get_run(known["run_id"]).info.lifecycle_stage != "active":
                return None
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        client.update_run(known["run_id"], status="RUNNING")
        return known["run_id"]

    def _begun(self, client: Any, experiment_id: str) -> str:
        config = self._settings.config
        run = client.create_run(experiment_id, run_name=config.logging.run_name or config.name)
        identity = {"experiment_id": experiment_id, "run_id": str(run.info.run_id)}
        store_identity(self._directory, "mlflow", identity)
        return identity["run_id"]

    def _describe(self, client: Any) -> None:
        """Settings as parameters, which MLflow never changes again, and their origins as tags."""
        from mlflow.entities import Param, RunTag

        told = client.get_run(self._run_id).data.params
        params = [
            Param(key, str(value))
            for key, value in self._settings.config.flat().items()
            if key not in told
        ]
        tags = [
            RunTag(f"origin.{key}", origin)
            for key, origin in changed_origins(self._settings).items()
        ]
        for start in range(0, max(len(params), len(tags)), MAX_PER_REQUEST):
            part = slice(start, start + MAX_PER_REQUEST)
            client.log_batch(self._run_id, params=params[part], tags=tags[part])

    def send(self, points: list[Point]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        # At most 20 numbers a point: 50 points are within the 1000 that a request may hold.
        metrics = [
            Metric(name, value, now, point.step)
            for point in points
            for name, value in point.values.items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self, exit_code: int) -> None:
        interrupted = exit_code == ExitCode.RESUMABLE
        status = "KILLED" if interrupted else "FINISHED" if exit_code == 0 else "FAILED"
        self._client.set_terminated(self._run_id, status)
