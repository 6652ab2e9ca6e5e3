"""The directory of what hotloop can make again, what lies in it, who uses it, and what goes when it is too much.

An entry is a directory `prepared/NAME` or `pieces/NAME`. Who uses one holds a shared lock on
`locks/KIND-NAME` until the process ends; the file's time is that of the last use. Only an entry whose lock
can be had alone is taken away, and whoever wants it meanwhile waits, finds nothing, and makes it again.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from hotloop.core.errors import UsageError
from hotloop.core.file_locks import is_held, lock_file
from hotloop.core.files import storing


def cache_directory() -> Path:
    """`HOTLOOP_CACHE`, else the user's cache directory of this platform."""
    chosen = os.environ.get("HOTLOOP_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("hotloop"))


KINDS = ("prepared", "pieces")
LIMIT_VARIABLE = "HOTLOOP_CACHE_LIMIT"
DEFAULT_LIMIT_BYTES = 100 * 10**9

_held: dict[Path, int | None] = {}
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
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)B?\s*", text.upper())
    if match is None:  # pydantic's ByteSize takes 1,5GB for 1 byte
        do = "give one such as 500GB, or 0 for no limit"
        raise UsageError(f"no size: {text!r}", where=LIMIT_VARIABLE, do=do)
    size = Fraction(match[1]) * 1000 ** " KMGT".index(match[2] or " ")
    return max(int(size), 1) if size else None


def entry_in_use(path: Path) -> None:
    """Keep an entry of the cache, there or not yet, from being taken away while this process lives.

    What killed processes left of making or evicting one goes first. Waits for an eviction that is under way.
    A path outside the cache is nobody's business. Raises `EnvironmentFailed` when the cache cannot be written.
    """
    path = path.resolve()
    is_in_cache = path.parent.parent == cache_directory().resolve() and path.parent.name in KINDS
    if path in _held or not is_in_cache:
        return
    for left in [left for kind in KINDS for left in (cache_directory() / kind).glob(".*")]:
        if match := re.fullmatch(r"\.(?:evicted-(.+)|([0-9a-f]{16})-[a-z0-9_]{8})", left.name):
            _evict(left, match[1] or match[2])
    lock = _lock_of(path)
    with storing(lock, "use the cache"):
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = lock_file(lock, shared=True, wait=True)
        except OSError:
            descriptor = None  # a file system without locks: then nothing is evicted either
        lock.touch()
    _held[path] = descriptor


def entries() -> list[Entry]:
    """Everything in the cache, the longest unused first."""
    found = []
    for path in (path for kind in KINDS for path in (cache_directory().resolve() / kind).glob("*")):
        if path.is_dir() and not path.name.startswith("."):  # hidden: being made, or going
            found.append(Entry(path, _size(path), _last_use(path), is_held(_lock_of(path))))
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
        if _evict(entry.path, entry.path.name):
            total -= entry.num_bytes
            gone.append(entry)
    return gone


def _evict(path: Path, name: str) -> bool:
    with suppress(OSError):
        _lock_of(path.with_name(name)).parent.mkdir(parents=True, exist_ok=True)
        descriptor = lock_file(_lock_of(path.with_name(name)))
        if descriptor is not None:
            try:
                doomed = path.with_name(f".evicted-{name}")
                shutil.rmtree(doomed, ignore_errors=True)  # left by a kill; `path` may be it
                path.rename(doomed)  # from here on it is not there, whole or in part
                shutil.rmtree(doomed, ignore_errors=True)
                return True
            finally:
                os.close(descriptor)
    return False


def _lock_of(path: Path) -> Path:
    return cache_directory() / "locks" / f"{path.parent.name}-{path.name}"


def _last_use(path: Path) -> float:
    for place in (_lock_of(path), path):
        with suppress(OSError):
            return place.stat().st_mtime
    return 0.0


def _size(path: Path) -> int:
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += Path(directory, name).lstat().st_size
    return total
