"""What lies in the cache: how large it is, who uses it, and what goes when there is too much of it.

An entry is a directory `prepared/NAME` or `pieces/NAME`. Who uses one holds a shared lock on
`locks/KIND-NAME` until the process ends; the file's time is that of the last use. Only an entry whose lock
can be had alone is taken away, and whoever wants it meanwhile waits, finds nothing, and makes it again.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from hotloop.core.cache import cache_directory
from hotloop.core.errors import UsageError
from hotloop.core.files import storage_error

KINDS = ("prepared", "pieces")
LIMIT_VARIABLE = "HOTLOOP_CACHE_LIMIT"
DEFAULT_LIMIT_BYTES = 100 * 10**9
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

_held: dict[Path, int] = {}
"""Entries of this process and the descriptors of their locks, kept open until it ends."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One directory of the cache."""

    path: Path
    num_bytes: int
    last_used_at: float
    """Seconds since the epoch."""
    in_use: bool
    """By some running process."""


def cache_limit_bytes() -> int | None:
    """`HOTLOOP_CACHE_LIMIT`, such as 500GB; `None` for 0, without a limit. Raises `UsageError`."""
    text = os.environ.get(LIMIT_VARIABLE)
    if not text:
        return DEFAULT_LIMIT_BYTES
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?B?)\s*", text.upper())
    if match is None:
        raise UsageError(
            f"no size: {text!r}",
            where=LIMIT_VARIABLE,
            do="give one such as 500GB, or 0 for no limit",
        )
    unit = match[2] if match[2] in _UNITS else match[2] + "B"
    size = Fraction(match[1]) * _UNITS[unit]
    return max(int(size), 1) if size else None


def entry_in_use(path: Path) -> None:
    """Keep an entry of the cache, there or not yet, from being taken away while this process lives.

    Waits for an eviction of it that is under way. A path outside the cache is nobody's business. Raises
    `EnvironmentFailed` when the cache cannot be written.
    """
    path = path.resolve()
    if path in _held or not _is_entry(path):
        return
    lock = _lock_of(path)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except OSError:
            pass  # a file system without locks: then nothing is evicted either
        os.utime(lock)
    except OSError as error:
        raise storage_error(error, lock, "use the cache") from error
    _held[path] = descriptor


def entries() -> list[Entry]:
    """Everything in the cache, the longest unused first."""
    found = []
    for kind in KINDS:
        directory = cache_directory().resolve() / kind
        if not directory.is_dir():
            continue
        for path in directory.iterdir():
            if path.is_dir() and not path.name.startswith("."):  # hidden: being made, or going
                found.append(Entry(path, _size(path), _last_use(path), _is_in_use(path)))
    return sorted(found, key=lambda entry: (entry.last_used_at, entry.path))


def make_room() -> list[Entry]:
    """Take away what was not used for longest until the cache is within its limit; what is gone.

    Never what a running process uses: with that alone the cache may stay above the limit.
    """
    limit = cache_limit_bytes()
    if limit is None:
        return []
    known = entries()
    total = sum(entry.num_bytes for entry in known)
    gone = []
    for entry in known:
        if total <= limit:
            break
        if _evict(entry.path):
            total -= entry.num_bytes
            gone.append(entry)
    return gone


def _evict(path: Path) -> bool:
    lock = _lock_of(path)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        doomed = path.with_name(f".evicted-{path.name}")
        shutil.rmtree(doomed, ignore_errors=True)  # of an eviction that was killed
        path.rename(doomed)  # from here on it is not there, whole or in part
        shutil.rmtree(doomed, ignore_errors=True)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _is_entry(path: Path) -> bool:
    root = cache_directory().resolve()
    return path.parent.parent == root and path.parent.name in KINDS


def _lock_of(path: Path) -> Path:
    return cache_directory() / "locks" / f"{path.parent.name}-{path.name}"


def _is_in_use(path: Path) -> bool:
    try:
        descriptor = os.open(_lock_of(path), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _last_use(path: Path) -> float:
    for place in (_lock_of(path), path):
        try:
            return place.stat().st_mtime
        except OSError:
            continue
    return 0.0


def _size(path: Path) -> int:
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_size  # noqa: PTH118
            except OSError:
                continue
    return total
