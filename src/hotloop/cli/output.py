"""Where a command's `--json FILE` goes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click


def write_object(value: dict[str, Any], file: str) -> None:
    """Write one object to a file, atomically, or to stdout for `-`.

    A loss that is not finite becomes null: strict JSON has no word for it.
    """
    plain = _finite(value)
    if file == "-":
        click.echo(json.dumps(plain, indent=1, allow_nan=False))
        return
    from hotloop.core.files import write_json

    write_json(Path(file), plain)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
