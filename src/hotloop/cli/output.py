"""Where a command's `--json FILE` goes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click

from hotloop.core.errors import UsageError


def write_object(value: dict[str, Any], file: str) -> None:
    """Write one object to a file, atomically, or to stdout for `-`.

    A loss that is not finite becomes null: strict JSON has no word for it.
    """
    plain = _finite(value)
    if file == "-":
        click.echo(json.dumps(plain, indent=1, allow_nan=False))
        return
    from hotloop.core.files import storage_error, write_json

    path = Path(file)
    if not path.parent.is_dir():
        raise UsageError(
            "no such directory", where=str(path.parent), do="make it, or choose another file"
        )
    if path.exists() and not path.is_file():
        # A device, a pipe or `/dev/fd/N`: written into. Renaming a file over it would destroy it.
        try:
            path.write_text(json.dumps(plain, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise storage_error(error, path, "write") from error
        return
    write_json(path.resolve(), plain)  # resolved: a symbolic link stays one


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
