"""Opening what a unit names, through its compression, and noticing that it has changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.data.sources.compressed import Decompressed
from hotloop.data.sources.remote import Remote, RemoteFile, Streamed, changed
from hotloop.data.sources.unit import STANDARD_INPUT, ReadOptions, Report, Unit


@contextmanager
def opened(unit: Unit, options: ReadOptions, report: Report) -> Iterator[BinaryIO]:
    """The bytes of a unit's file, uncompressed.

    Raises `UsageError` if it cannot be read or is not as it was planned, also if that shows only
    when all is read; `EnvironmentFailed` if the network fails.
    """
    file, state = _raw(unit.name, options)
    with file:
        _check(unit, state())
        try:
            if unit.compression is None:
                yield file
            else:
                text = Decompressed(file, unit.compression, unit.name, options, report)
                yield cast(BinaryIO, text)
        except UsageError:
            # What looks malformed may be the end of a file that is being written.
            _check(unit, state())
            raise
        except OSError as error:
            raise cannot_read(unit.name, error) from error
        # By its name: a file that was replaced is as bad as one that was written to.
        _check(unit, state())


def _raw(name: str, options: ReadOptions) -> tuple[BinaryIO, Callable[[], tuple[int, int] | None]]:
    """An unbuffered file, and how to learn its present state. Raises `UsageError`."""
    if is_url(name):
        from hotloop.data.sources.urls import remote_file

        described = remote_file(name)
        return open_remote(described), lambda: remote_file(name).state
    path = options.standard_input if name == STANDARD_INPUT else name
    assert path is not None
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115  (the caller closes it)
    except OSError as error:
        raise cannot_read(name, error) from error

    def present() -> tuple[int, int]:
        try:
            return state_of(Path(path).stat())
        except FileNotFoundError:
            raise changed(name) from None  # no reason to leave it out with --skip-bad
        except OSError as error:
            raise cannot_read(name, error) from error

    return cast(BinaryIO, file), present


def open_remote(file: RemoteFile) -> BinaryIO:
    return cast(BinaryIO, Streamed(file) if file.fetch is None else Remote(file))


def is_url(name: str) -> bool:
    head, sign, _ = name.partition("://")
    return bool(sign) and head.isascii() and "/" not in head


def state_of(status: os.stat_result) -> tuple[int, int]:
    return (status.st_size, status.st_mtime_ns)


def is_regular(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode)


def cannot_read(name: str, error: OSError) -> UsageError:
    reason = error.strerror or str(error) or type(error).__name__
    return UsageError(f"cannot read: {reason}", where=name)


def _check(unit: Unit, state: tuple[int, int] | None) -> None:
    if unit.state is None or state is None:
        return
    # Standard input was copied: its state holds a hash instead of a time.
    same = unit.state[0] == state[0] if unit.name == STANDARD_INPUT else unit.state == state
    if not same:
        raise changed(unit.name)


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
