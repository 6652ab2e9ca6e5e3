"""Locks that the kernel lets go of however their holder ends.

Not `filelock`: its kernel locks are never shared, and their descriptor cannot be given to workers.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


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
