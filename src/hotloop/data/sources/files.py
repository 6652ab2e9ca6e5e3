"""Opening what a unit names, through its compression, and noticing that it has changed."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.data.sources.compressed import Decompressed
from hotloop.data.sources.remote import READ_AHEAD_BYTES, changed, remote_file
from hotloop.data.sources.unit import STANDARD_INPUT, ReadOptions, Unit, is_url
from hotloop.data.sources.unit_reader import UnitReader

BUFFER_BYTES = 256 << 10


@contextmanager
def opened(reader: UnitReader) -> Iterator[io.BufferedReader]:
    """The bytes of a unit's file, uncompressed.

    Raises `UsageError` if it cannot be read or is not as it was planned, also if that shows only
    when all is read; `EnvironmentFailed` if the network fails.
    """
    unit, options = reader.unit, reader.options
    with _stored(unit.name, options) as file:
        _check(unit, options)
        try:
            if unit.compression is None:
                yield file
            else:
                yield io.BufferedReader(Decompressed(file, reader), BUFFER_BYTES)
        except UsageError:
            # What looks malformed may be the end of a file that is being written.
            _check(unit, options)
            raise
        except OSError as error:
            raise cannot_read(unit.name, error) from error
        _check(unit, options)


def _stored(name: str, options: ReadOptions) -> io.BufferedReader:
    if is_url(name):
        return io.BufferedReader(remote_file(name), READ_AHEAD_BYTES)
    path = options.standard_input if name == STANDARD_INPUT else name
    assert path is not None
    try:
        return io.BufferedReader(io.FileIO(path), BUFFER_BYTES)
    except OSError as error:
        raise cannot_read(name, error) from error


def _check(unit: Unit, options: ReadOptions) -> None:
    """By its name: a file that was replaced is as bad as one that was written to."""
    name = unit.name
    if unit.state is None:
        return
    if is_url(name):
        same = remote_file(name).state in (None, unit.state)
    elif name == STANDARD_INPUT:
        # It was copied: its state holds a hash instead of a time.
        same = Path(options.standard_input or "").stat().st_size == unit.state[0]
    else:
        try:
            same = state_of(Path(name).stat()) == unit.state
        except FileNotFoundError:
            same = False  # no reason to leave it out with --skip-bad
        except OSError as error:
            raise cannot_read(name, error) from error
    if not same:
        raise changed(name)


def state_of(status: os.stat_result) -> tuple[int, int]:
    return (status.st_size, status.st_mtime_ns)


def cannot_read(name: str, error: OSError) -> UsageError:
    reason = error.strerror or str(error) or type(error).__name__
    return UsageError(f"cannot read: {reason}", where=name)


def spool_standard_input(directory: Path) -> Path:
    """Copy standard input to a file, because it is read more than once and by several processes.

    Raises `UsageError` if nothing is piped in, `EnvironmentFailed` if the disk is full.
    """
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        raise UsageError(
            "nothing comes in by standard input", do="pipe the text in, or name a file"
        )
    path = directory / "standard-input"
    try:
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise EnvironmentFailed(
            f"cannot keep standard input: {error.strerror}", where=str(path), do="free some space"
        ) from error
    return path


def content_state(path: str) -> tuple[int, int]:
    """(size, hash of the content) of a file: the same text piped in again is the same source."""
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "blake2b").digest()
            return (os.fstat(file.fileno()).st_size, int.from_bytes(digest[:6], "little"))
    except OSError as error:
        raise cannot_read(STANDARD_INPUT, error) from error
