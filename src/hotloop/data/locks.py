"""One process at a time in a directory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hotloop.core import file_locks
from hotloop.core.files import storage_error
from hotloop.core.progress import Progress

LOCK = ".hotloop-prepare.lock"
_POLL_S = 0.1


@contextmanager
def locked(target: Path, progress: Progress) -> Iterator[None]:
    """Hold `target`, made if missing; waits while another process holds it.

    Directories made here are removed again if they are still empty at the end.
    """
    made = [path for path in (target, *target.parents) if not path.exists()]
    descriptor = _acquire(target, progress)
    try:
        yield
    finally:
        # Unlinked while held: a waiter sees that its file is gone and opens a new one.
        (target / LOCK).unlink(missing_ok=True)
        os.close(descriptor)
        with suppress(OSError):  # one that holds something: the result
            for path in made:
                path.rmdir()


def _acquire(target: Path, progress: Progress) -> int:
    started = time.monotonic()
    vanished = 0
    while True:
        try:
            target.mkdir(parents=True, exist_ok=True)
            descriptor = file_locks.lock_file(target / LOCK)
            if descriptor is not None:
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), (target / LOCK).stat()):
                        return descriptor
                os.close(descriptor)
                continue
        except OSError as error:
            # Another process that fails takes away the directory it made: begin again.
            vanished += 1
            if isinstance(error, FileNotFoundError) and vanished < 100:
                continue
            raise storage_error(error, target, "lock a directory") from error
        progress("waiting for another prepare", time.monotonic() - started, None, str(target))
        time.sleep(_POLL_S)


def is_held(target: Path) -> bool:
    """True while some process is preparing `target` now."""
    return file_locks.is_held(
        target / LOCK, shared=True
    )  # shared: not in the way of others that look
