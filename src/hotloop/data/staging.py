"""A directory that is replaced whole or not at all, by one process at a time.

Files are written into a hidden directory inside the target (the same file system, and it may be a
mount point), then renamed into the target, `manifest.json` last. A target without a manifest is
unfinished; what a killed run left behind is removed by the next.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hotloop.core.errors import UsageError
from hotloop.core.files import fsync_directory, storage_error
from hotloop.core.progress import Progress
from hotloop.data.manifest import MANIFEST, PREPARED_SCHEMA, SHARD_NAME, TOKENIZER

_LOCK = ".hotloop-prepare.lock"
_STAGING = ".hotloop-preparing-"
_POLL_S = 0.1
_SCHEMA_NAME = PREPARED_SCHEMA.partition("/")[0] + "/"


@contextmanager
def locked(target: Path, progress: Progress) -> Iterator[None]:
    """Hold `target`, made if missing, for this process; waits while another holds it.

    Directories made here are removed again if they are still empty at the end.
    """
    made = [path for path in (target, *target.parents) if not path.exists()]
    descriptor = _acquire(target, progress)
    try:
        yield
    finally:
        # Unlinked while held: a waiter sees that its file is gone and opens a new one.
        (target / _LOCK).unlink(missing_ok=True)
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
            descriptor = os.open(target / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
            if _same_file(descriptor, target / _LOCK):
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


def is_finished(target: Path, *, force: bool = False) -> bool:
    """Whether the locked target holds a finished preparation.

    Clears away what a killed run left, and with `force` a preparation whose manifest is lost or damaged.
    Raises `UsageError` for a directory that holds other things.
    """
    names = {path.name for path in target.iterdir()} - {_LOCK}
    leftovers = {name for name in names if name.startswith(_STAGING)}
    if MANIFEST in names:
        foreign = [] if _is_our_manifest(target / MANIFEST) else [MANIFEST]
    elif leftovers:
        foreign = sorted(name for name in names - leftovers if not _is_ours(name))
    else:
        foreign = sorted(names)
    # Only what cannot be anything else: a tokenizer, and shards with their document ends.
    whole = {TOKENIZER, "train-00000.bin", "train-00000.docs"} <= names
    damaged = whole and all(map(_is_ours, names - leftovers))
    if foreign and damaged and not force:
        raise UsageError(
            f"the directory holds shards, but {MANIFEST} is missing or damaged",
            where=str(target),
            do="give --force to write it again, or choose another directory",
        )
    if foreign and not damaged:
        raise UsageError(
            f"the directory holds something else ({foreign[0]})",
            where=str(target),
            do="choose an empty or a new directory",
        )
    try:
        if MANIFEST not in names:
            for name in names - leftovers:
                (target / name).unlink()
        for name in leftovers:  # last: they are the sign that the rest was ours to remove
            shutil.rmtree(target / name)
    except OSError as error:
        raise storage_error(error, target, "clear away an unfinished preparation") from error
    return MANIFEST in names


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A directory to write into, that replaces the locked target's contents on success.

    An `OSError` inside becomes `EnvironmentFailed`; after any failure nothing of it is left.
    """
    try:
        staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=target))
    except OSError as error:
        raise storage_error(error, target, "prepare a directory") from error
    try:
        try:
            yield staging
            _commit(staging, target)
        except OSError as error:
            raise storage_error(error, target, "write the prepared text") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _commit(staging: Path, target: Path) -> None:
    new = sorted(path.name for path in staging.iterdir())
    fsync_directory(staging)
    (target / MANIFEST).unlink(missing_ok=True)
    fsync_directory(target)  # never the old manifest beside new shards
    try:
        for path in list(target.iterdir()):
            if _is_ours(path.name):
                path.unlink()
        for name in new:
            if name != MANIFEST:
                os.replace(staging / name, target / name)
        fsync_directory(target)
        os.replace(staging / MANIFEST, target / MANIFEST)
        fsync_directory(target)
    except BaseException:
        for name in new:
            (target / name).unlink(missing_ok=True)
        raise


def _is_ours(name: str) -> bool:
    return name in (MANIFEST, TOKENIZER) or SHARD_NAME.fullmatch(name) is not None


def _is_our_manifest(path: Path) -> bool:
    """Of any version: `--force` may replace an old one, never somebody else's manifest.json."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and str(values.get("schema")).startswith(_SCHEMA_NAME)
