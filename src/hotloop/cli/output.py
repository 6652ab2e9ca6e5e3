"""The file that a command's `--json FILE` names."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from hotloop.cli.console import refuse_lost_output
from hotloop.core.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


def json_option(help: str) -> Callable[[F], F]:
    """`--json FILE` of a command, refused before its work where FILE could not be written after it."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def checked(*args: Any, json_file: str | None, **options: Any) -> Any:
            refuse_unwritable(json_file, made=options.get("out"))
            return command(*args, json_file=json_file, **options)

        return cast(F, click.option("--json", "json_file", metavar="FILE", help=help)(checked))

    return decorate


def refuse_unwritable(file: str | None, *, made: Path | None, option: str = "--json") -> None:
    """Raises what `write_object` would raise later. The directory `made` comes with the work."""
    if file is None or file == "-":
        return
    from hotloop.core.errors import EnvironmentFailed

    path = Path(file)
    if path.is_dir():
        raise UsageError("a directory, not a file", where=file, do=f"name a file for {option}")
    if not path.parent.is_dir():
        if made is None or made.absolute() not in path.absolute().parents:
            raise _no_directory(path, option)
    elif not os.access(path if path.exists() and not path.is_file() else path.parent, os.W_OK):
        raise EnvironmentFailed(
            "cannot write: permission denied", where=file, do=f"choose another file for {option}"
        )


def _no_directory(path: Path, option: str = "--json") -> UsageError:
    return UsageError(
        "no such directory",
        where=str(path.parent),
        do=f"make it, or choose another file for {option}",
    )


def write_object(value: dict[str, Any], file: str) -> None:
    """Write one object to a file, atomically, or to stdout for `-`.

    A loss that is not finite becomes null: strict JSON has no word for it.
    """
    plain = _finite(value)
    if file == "-":
        click.echo(json.dumps(plain, indent=1, allow_nan=False))
        refuse_lost_output()
        return
    from hotloop.core.files import storage_error, write_json

    path = Path(file)
    if not path.parent.is_dir():
        raise _no_directory(path)
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
