"""What every tracker is: a client that gets points, and what the run is called by it."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hotloop.core.files import write_atomically
from hotloop.core.settings import Settings
from hotloop.core.untrusted import parse_object, read_bytes

EXTRAS = {"tensorboard": "TensorBoard", "wandb": "Weights & Biases", "mlflow": "MLflow"}
"""Key below `logging.`, extra and module, all of one name; and what people call it."""
AUTO = "auto"
"""Value of a key: where it is installed."""
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
    text = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(":. ")
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


def changed_origins(settings: Settings) -> dict[str, str]:
    """The origins of the values that are not defaults, by dotted key."""
    return {
        key: settings.origin(key)
        for key in settings.config.flat()
        if settings.origin(key) != "default"
    }
