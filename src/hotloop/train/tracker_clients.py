"""The clients of TensorBoard, Weights & Biases and MLflow, and what a run is called by them.

W&B without a login or a server writes the run into its directory, for `wandb sync`. MLflow uses the server that
MLFLOW_TRACKING_URI names, or its own local store.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hotloop.core.config import set_dotted
from hotloop.core.errors import ExitCode, first_line
from hotloop.core.files import write_atomically
from hotloop.core.settings import Settings
from hotloop.core.untrusted import parse_object, read_bytes

EXTRAS = {"tensorboard": "TensorBoard", "wandb": "Weights & Biases", "mlflow": "MLflow"}
"""Key below `logging.`, extra and module, all of one name; and what people call it."""
AUTO = "auto"
"""Value of a key: where it is installed."""
SECONDS = "seconds/step"
"""In what is told of every step, and of nothing else."""
IDENTITIES = "trackers.json"
"""In the run directory: what the run is called by each tracker, so that a resumed one continues there."""


@dataclass(frozen=True, slots=True)
class Point:
    step: int
    values: dict[str, float]


class Tracker(Protocol):
    """The client of one tracker. All of it is called from one thread, and may raise anything."""

    def open(self) -> None:
        """Begin the run there, or continue it. Called again when it raised."""

    def send(self, points: list[Point]) -> None: ...

    def close(self, exit_code: int) -> None:
        """`exit_code` is that of training: 0 for a finished run."""


def one_line(error: BaseException) -> str:
    """The first line of an error, cut to what fits on a terminal."""
    text = first_line(error).rstrip(":. ")
    return text if len(text) <= 200 else f"{text[:199]}…"


def read_identity(directory: Path, name: str) -> dict[str, str]:
    """What `IDENTITIES` says of a tracker; empty when it says nothing that can be read."""
    try:
        found = parse_object(read_bytes(directory / IDENTITIES))[name]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


_identities = threading.Lock()
"""Two trackers begin at the same time, each in its thread, and write one file."""


def store_identity(directory: Path, name: str, identity: dict[str, str]) -> None:
    with _identities:
        known = {other: read_identity(directory, other) for other in EXTRAS if other != name}
        known = {other: found for other, found in known.items() if found}
        content = json.dumps({**known, name: identity}, indent=1)
        write_atomically(directory / IDENTITIES, content.encode())


def changed_origins(settings: Settings[Any]) -> dict[str, str]:
    """The origins of the values that are not defaults, by dotted key."""
    return {
        key: settings.origin(key)
        for key in settings.config.flat()
        if settings.origin(key) != "default"
    }


EVENTS = "tensorboard"
"""Directory of the event files."""


class TensorboardTracker:
    def __init__(self, directory: Path, *, first_step: int) -> None:
        self._path = str(directory / EVENTS)
        self._newest = first_step - 1
        self._writer: Any = None

    def open(self) -> None:
        self._begin(self._newest + 1)

    def send(self, points: list[Point]) -> None:
        for point in points:
            if SECONDS in point.values:  # a step; an evaluation has the number of the one before it
                if point.step <= self._newest:
                    self._writer.close()
                    self._begin(point.step)
                self._newest = point.step
            for name, value in point.values.items():
                self._writer.add_scalar(name, value, point.step)

    def close(self, exit_code: int) -> None:
        self._writer.close()

    def _begin(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Steps that are made once more, after a kill or a rollback, replace those drawn before.
        self._writer = writer = SummaryWriter(self._path, purge_step=step)
        # What ends its thread, as a full disk, is raised by the next call, too: there it is said in one line.
        with contextlib.suppress(AttributeError):
            thread = writer._get_file_writer().event_writer._async_writer._worker  # type: ignore[no-untyped-call]
            thread._invoke_excepthook = lambda _: None


INIT_S = 15.0
"""Longest wait for the server before going on offline; points gather meanwhile."""
FINISH_S = 20.0
"""Longest wait for the upload at the end; W&B keeps what is left on the disk."""


class WandbTracker:
    def __init__(
        self, settings: Settings[Any], directory: Path, warn: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._warn = warn
        self._run: Any = None

    def open(self) -> None:
        import wandb

        logging = self._settings.config.logging
        silent: dict[str, Any] = {"silent": True, "console": "off"}
        wandb.setup(settings=wandb.Settings(**silent))
        # What WANDB_MODE says comes first, as everywhere with W&B.
        mode = "offline" if logging.wandb == "offline" else os.environ.get("WANDB_MODE", "online")
        why = None
        if mode == "online":
            try:
                # Asked first: `init` would ask for a key on the terminal of the training.
                if wandb.login(prompt=False):
                    self._run = self._begin(wandb, mode, silent)
                else:
                    mode, why = "offline", "nobody is logged in (`wandb login`)"
            except Exception as error:  # noqa: BLE001 - CommError, AuthenticationError, UsageError, ...
                mode, why = "offline", one_line(error)
        if self._run is None:
            self._run = self._begin(wandb, mode, silent)
        if why is not None:
            self._warn(
                f"Weights & Biases is used offline: {why}; "
                f"`wandb sync {Path(self._run.dir).parent}` uploads the run later"
            )
        elif mode == "online":
            self._warn(f"Weights & Biases shows this run at {self._run.url}")  # it is silent itself
        self._run.define_metric("*", step_metric="step")

    def _begin(self, wandb: Any, mode: str, silent: dict[str, Any]) -> Any:
        config = self._settings.config
        origins: dict[str, Any] = {}
        for key, origin in changed_origins(self._settings).items():
            set_dotted(origins, key, origin)
        run = wandb.init(
            project=config.logging.project,
            name=config.logging.run_name or config.name,
            id=self._identity(),
            resume="allow" if mode == "online" else None,
            dir=str(self._directory.resolve()),
            config={**config.model_dump(mode="json"), "origins": origins},
            allow_val_change=True,
            mode=mode,
            reinit="create_new",
            settings=wandb.Settings(init_timeout=INIT_S, finish_timeout=FINISH_S, **silent),
        )
        return run

    def _identity(self) -> str:
        """The run's id there, the same whenever it is continued in this directory."""
        known = read_identity(self._directory, "wandb")
        project = self._settings.config.logging.project
        if known.get("project") == project and known.get("id"):
            return known["id"]
        new = uuid.uuid4().hex[:12]
        store_identity(self._directory, "wandb", {"project": project, "id": new})
        return new

    def send(self, points: list[Point]) -> None:
        # A step of its own, not W&B's counter: that one refuses to go back, which a resumed run does.
        for point in points:
            self._run.log({**point.values, "step": point.step})

    def close(self, exit_code: int) -> None:
        self._run.finish(exit_code=exit_code)


MAX_PER_REQUEST = 100
"""Parameters and tags that MLflow takes at once."""


IMPATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "15"}
"""MLflow itself tries for minutes before it says what is wrong; here it is tried again anyway."""


class MlflowTracker:
    def __init__(self, settings: Settings[Any], directory: Path) -> None:
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
