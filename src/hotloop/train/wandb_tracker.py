"""Weights & Biases. Without a login or a server the run is written into its directory, for `wandb sync`."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotloop.core.config import set_dotted
from hotloop.core.settings import Settings
from hotloop.train.tracker import Point, changed_origins, one_line, read_identity, store_identity

INIT_S = 15.0
"""Longest wait for the server before going on offline; points gather meanwhile."""
FINISH_S = 20.0
"""Longest wait for the upload at the end; W&B keeps what is left on the disk."""


class WandbTracker:
    def __init__(self, settings: Settings, directory: Path, warn: Callable[[str], None]) -> None:
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
