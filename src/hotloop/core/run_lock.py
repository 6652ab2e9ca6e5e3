"""One training at a time in a run directory: the kernel lets go of its lock however the process ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hotloop.core.errors import EnvironmentFailed
from hotloop.core.files import process_space, storage_error
from hotloop.core.flock import is_held

LOCK = ".lock"


@contextmanager
def locked(directory: Path, *, wanted: bool = True) -> Iterator[None]:
    """One training goes on in a directory at a time. The lock goes with the process, however it ends.

    Where it is not `wanted` the directory is only made: another process of the training holds it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # For reading as well: where a named pipe is in its place, that one would else wait for a reader.
        flags = os.O_RDWR | os.O_CREAT
        file = os.fdopen(os.open(directory / LOCK, flags, 0o666), "rb+", 0) if wanted else None
    except OSError as error:
        raise storage_error(error, directory, "make the run directory") from error
    if file is None:
        yield
        return
    with file:
        try:
            import fcntl
        except ImportError:  # Windows: no advisory locks of this kind
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(process_space().encode())  # who is of it too can tell by the lock who trains
        except BlockingIOError as error:
            raise _busy(directory) from error
        except OSError:
            pass  # a file system without locks: nothing to go by
        yield


def refuse_busy(directory: Path) -> None:
    """Raises what `locked` would raise, before anything is made there."""
    path = directory / LOCK
    # Looked up first: to try it would be in the way of a training that starts now.
    if is_locked(path) and is_held(path, shared=True):
        raise _busy(directory)


def is_locked(path: Path) -> bool:
    """True if a process of this kernel holds it, by /proc/locks: `1: FLOCK ADVISORY WRITE 1234 fd:01:5678 0 EOF`."""
    try:
        inode = path.stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    for line in lines:
        words = line.split()
        if len(words) >= 6 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode):
            return True
    return False


def _busy(directory: Path) -> EnvironmentFailed:
    return EnvironmentFailed(
        "another process is training in this directory",
        where=str(directory),
        do="wait for it, or choose another --out",
    )
