"""Locks that the kernel lets go of however their holder ends; one of them lets one training at a time into a directory.

Not `filelock`: its kernel locks are never shared, and their descriptor cannot be given to workers.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hotloop.core.errors import EnvironmentFailed
from hotloop.core.files import fsync_directory, process_space, remove_temporaries, storing


def lock_file(
    path: Path, *, shared: bool = False, wait: bool = False, make: bool = True
) -> int | None:
    """The descriptor that holds the lock until it is closed; `None` while another process holds it.

    Raises `OSError`, also on a file system without locks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o644)
    try:
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, how if wait else how | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


def is_held(path: Path, *, shared: bool = False) -> bool:
    """True if another process has a lock that is in the way; false where there is no such file."""
    try:
        descriptor = lock_file(path, shared=shared, make=False)
    except OSError:
        return False
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


LOCK = ".lock"


@contextmanager
def locked(directory: Path, *, wanted: bool = True) -> Iterator[None]:
    """One training goes on in a directory at a time. The lock goes with the process, however it ends.

    Where it is not `wanted` the directory is only made: another process of the training holds it.
    """
    with storing(directory, "make the run directory"):
        made = [each for each in (directory, *directory.parents) if not each.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        for each in made:  # else a loss of power takes the run with all its checkpoints
            fsync_directory(each.parent)
        # For reading as well: where a named pipe is in its place, that one would else wait for a reader.
        flags = os.O_RDWR | os.O_CREAT
        file = os.fdopen(os.open(directory / LOCK, flags, 0o666), "rb+", 0) if wanted else None
    if file is None:
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(process_space().encode())  # who is of it too can tell by the lock who trains
            remove_temporaries(directory)
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
    what = "another process is training in this directory"
    return EnvironmentFailed(what, where=str(directory), do="wait for it, or choose another --out")
