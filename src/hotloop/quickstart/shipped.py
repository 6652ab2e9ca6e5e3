"""Where the files that come with hotloop lie: beside the sources, or under the installation."""

from __future__ import annotations

import sys
from pathlib import Path

from hotloop.core.errors import EnvironmentFailed


def shipped(name: str) -> Path:
    """The path of `configs/...` or `examples/...`. Raises `EnvironmentFailed` when it is not there."""
    checkout = Path(__file__).resolve().parents[3]
    for root in (checkout, Path(sys.prefix) / "share" / "hotloop"):
        if (root / name).is_file():
            return root / name
    raise EnvironmentFailed(
        f"{name} is missing from this installation",
        do="install hotloop again, or run it from a clone",
    )
