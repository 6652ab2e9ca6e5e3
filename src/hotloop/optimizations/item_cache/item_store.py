"""Encoded items in memory that forked processes share: what one of them made, all of them find.

Killed at any moment, a process leaves nothing behind that another would wait for or take for whole.
"""

from __future__ import annotations

import mmap
import multiprocessing
import struct
import zlib
from pathlib import Path

from hotloop.hardware.limits import control_groups

_HEAD = struct.Struct("<QQQ")
"""Bytes used, epoch, and whether the store is closed."""
_ENTRY = struct.Struct("<QQQ")
"""Place of an item plus one, its length, and its checksum."""
LOCK_S = 1.0
SHARE_OF_MEMORY = 4
"""At most one part in so many of the memory that is available."""


class ItemStore:
    """By number of the item; full is full. Room is taken from the system only as it is used."""

    def __init__(self, num_items: int, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.num_items = num_items
        self._table = mmap.mmap(-1, _HEAD.size + max(num_items, 1) * _ENTRY.size)
        self._given = mmap.mmap(-1, 2)
        self._data = mmap.mmap(-1, max(limit_bytes, mmap.PAGESIZE))
        self._lock = multiprocessing.get_context("fork").Lock()

    def get(self, number: int) -> bytes | None:
        """What was put there, whole, or nothing."""
        place, length, checksum = _ENTRY.unpack_from(self._table, self._at(number))
        if not place:
            return None
        content = self._data[place - 1 : place - 1 + length]
        return content if zlib.crc32(content) == checksum else None

    def put(self, number: int, content: bytes) -> bool:
        """Keep it; `False` where there is no room, or another process holds the store for too long."""
        if not self._lock.acquire(timeout=LOCK_S):
            return False
        try:
            used, epoch, closed = self._head()
            if used + len(content) > self.limit_bytes:
                return False
            self._data[used : used + len(content)] = content
            _HEAD.pack_into(self._table, 0, used + len(content), epoch, closed)
            entry = (used + 1, len(content), zlib.crc32(content))
            _ENTRY.pack_into(self._table, self._at(number), *entry)
            return True
        finally:
            self._lock.release()

    @property
    def epoch(self) -> int:
        return self._head()[1]

    @property
    def closed(self) -> bool:
        return bool(self._head()[2])

    @property
    def used_bytes(self) -> int:
        return self._head()[0]

    def mark_given(self) -> None:
        """An item was given out, for which another may have been made."""
        self._given[:] = b"\1\1"

    @property
    def given(self) -> bool:
        """By any process."""
        return self._given[0] != 0

    @property
    def given_in_epoch(self) -> bool:
        """The same, in this epoch."""
        return self._given[1] != 0

    def begin_epoch(self) -> None:
        self._given[1] = 0
        used, epoch, closed = self._head()
        _HEAD.pack_into(self._table, 0, used, epoch + 1, closed)

    def close(self) -> None:
        """For all processes."""
        used, epoch, _ = self._head()
        _HEAD.pack_into(self._table, 0, used, epoch, 1)

    def clear(self) -> None:
        """Forget every item."""
        _, epoch, closed = self._head()
        self._table[_HEAD.size :] = bytes(len(self._table) - _HEAD.size)
        _HEAD.pack_into(self._table, 0, 0, epoch, closed)

    def _head(self) -> tuple[int, int, int]:
        used, epoch, closed = _HEAD.unpack_from(self._table, 0)
        return used, epoch, closed

    def _at(self, number: int) -> int:
        if not 0 <= number < self.num_items:
            raise IndexError(number)
        return _HEAD.size + number * _ENTRY.size


def memory_for_items(wanted_bytes: int) -> int:
    """`wanted_bytes`, or the share that may be taken of what is available: on the machine, and in each of the
    control groups (a container is one) that this process is in."""
    left = [_available(), *map(_left_in, control_groups("memory"))]
    return min([wanted_bytes, *(each // SHARE_OF_MEMORY for each in left if each is not None)])


def _available() -> int | None:
    return _number(Path("/proc/meminfo"), "MemAvailable:", 1 << 10)


def _left_in(group: Path) -> int | None:
    """Bytes until its limit, with the file cache that it can do without; `None` where it has no limit."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            left = int((group / limit).read_text()) - int((group / used).read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue
        cache = _number(group / "memory.stat", "inactive_file", 1) or 0
        return max(left + cache, 0)
    return None


def _number(file: Path, name: str, unit: int) -> int | None:
    """The number of a line `name number`, in bytes of so large a `unit`."""
    try:
        lines = file.read_text(encoding="ascii").splitlines()
        return next(int(each.split()[1]) * unit for each in lines if each.split()[:1] == [name])
    except (OSError, StopIteration, ValueError, IndexError):
        return None
