"""Commands that begin in the launcher, and what it says where it fails."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import hotloop
from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.files import storage_error
from hotloop.trial.process import Finished
from hotloop.trial.sandbox.launcher import FAILED, NOT_RUN

_FAILURE_FILE = "failure"
_FULL_BYTES = 1 << 20
"""A disk with less free space is full."""


def launched(command: Sequence[str], spec: Mapping[str, Any], place: Path) -> list[str]:
    """The command that becomes `command` as `spec` says; `place`: a directory for what is said about it."""
    # A file, not an argument: those are bounded, and shown to everyone.
    file = place / "spec.json"
    content = {**spec, "failure": str(place / _FAILURE_FILE)}
    try:
        place.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content), encoding="utf-8")
    except OSError as error:
        raise storage_error(error, file, "prepare a trial") from error
    packages = str(Path(hotloop.__file__).resolve().parent.parent)
    start = (
        f"import sys; sys.path.append({packages!r}); "
        "from hotloop.trial.sandbox.launcher import main; main()"
    )
    # -I -S: nothing of the user's environment is loaded.
    return [sys.executable, "-I", "-S", "-c", start, str(file), *command]


def run_restricted(
    command: Sequence[str],
    *,
    place: Path,
    writable: Sequence[Path],
    network: bool,
    process: Callable[[Sequence[str]], Finished],
) -> Finished:
    """Run `command` where the kernel refuses it to write but below `writable`. Raises as `refuse_failed`."""
    spec = {"writable": [str(path) for path in writable], "network": network}
    try:
        finished = process(launched(command, spec, place))
        if finished.returncode:
            refuse_failed(finished.returncode, command, place)
        return finished
    finally:
        shutil.rmtree(place, ignore_errors=True)


def refuse_failed(returncode: int, command: Sequence[str], place: Path) -> None:
    """Where it was not the command that failed."""
    failure = place / _FAILURE_FILE
    why = failure.read_text(encoding="utf-8", errors="replace") if failure.is_file() else ""
    if why and returncode == NOT_RUN:
        raise UsageError(
            f"cannot run `{command[0]}`: {why}",
            do="check the command, and that its program may be executed",
        )
    if why and returncode == FAILED:
        raise EnvironmentFailed(
            f"the sandbox of a trial could not be set up: {why}",
            where=str(place),
            do="make sure that this disk has space, or name a run directory on another one with --out",
        )
    if shutil.disk_usage(place).free < _FULL_BYTES:
        raise EnvironmentFailed(
            "the disk is full: what a trial writes is kept beside what it records until it ends",
            where=str(place),
            do="free some space, or name a run directory on another disk with --out",
        )
