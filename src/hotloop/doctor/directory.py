"""The one directory that a diagnosis writes."""

from __future__ import annotations

import os
from pathlib import Path

from hotloop.core.errors import UsageError
from hotloop.core.files import storage_error

MAX_NUMBER = 10_000

TRIALS = "trials"
"""Below a run directory: where fixes are tried."""


def make_run_directory(wanted: Path | None, name: str) -> Path:
    """A new directory: the one asked for, or `runs/doctor-NAME`, numbered where that exists.

    Absolute, because a script may change its directory. Raises `UsageError` where something is in the
    way, `EnvironmentFailed` when the disk refuses.
    """
    path = wanted if wanted is not None else Path("runs") / f"doctor-{name}"
    if os.pathsep in str(path.absolute()):
        raise UsageError(
            f"the name holds `{os.pathsep}`, which separates directories in PYTHONPATH",
            where=str(path.absolute()),
            do="name another directory with --out",
        )
    try:
        if wanted is not None:
            return _make_wanted(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, MAX_NUMBER):
            numbered = path if number == 1 else path.with_name(f"{path.name}-{number}")
            try:
                numbered.mkdir()
            except FileExistsError:
                continue
            return numbered.resolve()
    except (NotADirectoryError, FileExistsError) as error:
        raise UsageError(
            "cannot make the run directory: a part of its path is a file",
            where=str(path),
            do="name another one with --out",
        ) from error
    except OSError as error:
        raise storage_error(error, path, "make the run directory") from error
    raise UsageError("too many run directories", where=str(path), do="remove some, or name one with --out")  # fmt: skip


def _make_wanted(path: Path) -> Path:
    if path.exists() and not path.is_dir():
        raise UsageError("not a directory", where=str(path), do="name another one with --out")
    if path.is_dir() and any(path.iterdir()):
        raise UsageError(
            "this directory holds something already, and nothing is overwritten",
            where=str(path),
            do="name another one with --out, or remove it",
        )
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()
