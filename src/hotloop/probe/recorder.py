"""Writes `steps.jsonl`: one line per step, appended when the step's late values are known."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.step import StepRecord, read_steps
from hotloop.core.untrusted import MAX_LINES_BYTES, parse_object, read_bytes

Observer = Callable[[StepRecord], None]
"""Called after a record is closed; cannot touch training."""


class Recorder:
    """Appends records to a file and shows them to observers. Raises `EnvironmentFailed` on a full disk."""

    def __init__(self, path: Path, observers: tuple[Observer, ...] = ()) -> None:
        self._path = path
        self._observers = observers
        try:
            self._file: IO[bytes] = path.open("ab", buffering=0)
        except OSError as error:
            raise self._refused(error) from error

    def write(self, record: StepRecord) -> None:
        try:
            self._file.write(record.to_json().encode() + b"\n")
        except OSError as error:
            raise self._refused(
                error,
                do="free some space, then run the same command again: it continues from the last checkpoint",
            ) from error
        for observer in self._observers:
            observer(record)

    def flush(self) -> None:
        """Make what was written durable. Raises `EnvironmentFailed` when the disk refuses."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError, *, do: str | None = None) -> EnvironmentFailed:
        what = f"cannot write step records: {error.strerror}"
        return EnvironmentFailed(what, where=str(self._path), do=do)

    def close(self) -> None:
        self._file.close()


def newest_steps(path: Path) -> Iterator[StepRecord]:
    """The records of a file, newest first; none where there is no file. Damaged lines are passed over.

    For a look at the end of a long file: only what is asked for is parsed.
    """
    try:
        lines = read_bytes(path, limit_bytes=MAX_LINES_BYTES).split(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot read step records: {error.strerror}", where=str(path)) from error
    for line in reversed(lines):
        try:
            yield StepRecord.from_mapping(parse_object(line))
        except (ValueError, TypeError):
            continue


def keep_steps_before(path: Path, step: int) -> None:
    """Drop the records of `step` and later ones: a resumed run writes them again.

    The steps after the last checkpoint were lost with the process that made them.
    """
    if not path.exists():
        return
    kept = [record for record in read_steps(path) if record.step < step]
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        for record in kept:
            file.write(record.to_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
