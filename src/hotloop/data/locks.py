"""One process at a time in a directory: the kernel lets go of its lock however the process ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hotloop.core.errors import UsageError
from hotloop.core.files import storage_error
from hotloop.core.progress import Progress

LOCK = ".hotloop-prepare.lock"
_POLL_S = 0.1


@contextmanager
def locked(target: Path, progress: Progress) -> Iterator[int]:
    """Hold `target`, made if missing; waits while another process holds it. Gives the descriptor.

    Whoever inherits the descriptor holds the target too: a worker that outlives its parent is
    waited for. Directories made here are removed again if they are still empty at the end.
    """
    made = [path for path in (target, *target.parents) if not path.exists()]
    descriptor = _acquire(target, progress)
    try:
        yield descriptor
    finally:
        # Unlinked while held: a waiter sees that its file is gone and opens a new one.
        (target / LOCK).unlink(missing_ok=True)
        os.close(descriptor)
        for path in made:
            try:
                path.rmdir()
            except OSError:
                break  # holds something: the result


def _acquire(target: Path, progress: Progress) -> int:
    started = time.monotonic()
    vanished = 0
    while True:
        try:
            target.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(target / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileExistsError as error:
            raise UsageError(
                "a file stands where the result should go", where=str(target)
            ) from error
        except OSError as error:
            # Another process that fails takes away the directory it made: begin again.
            vanished += 1
            if isinstance(error, FileNotFoundError) and vanished < 100:
                continue
            raise storage_error(error, target, "prepare a directory") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _same_file(descriptor, target / LOCK):
                return descriptor
            os.close(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            progress("waiting for another prepare", time.monotonic() - started, None, str(target))
            time.sleep(_POLL_S)
        except OSError as error:
            os.close(descriptor)
            raise storage_error(error, target, "lock a directory") from error


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def is_held(target: Path) -> bool:
    """Whether some process is preparing `target` now."""
    try:
        descriptor = os.open(target / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
