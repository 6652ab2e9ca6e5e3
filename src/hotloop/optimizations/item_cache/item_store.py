"""Encoded items in memory that forked processes share: what one of them made, all of them find.

Killed at any moment, a process leaves nothing behind that another would wait for or take for whole.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import zlib
from pathlib import Path
from typing import Any

from hotloop.hardware.limits import control_groups

LOCK_S = 1.0
SHARE_OF_MEMORY = 4
"""At most one part in so many of the memory that is available."""


class _Head(ctypes.Structure):
    """What all processes know of a store. `given`: an item was, for which another may have been made."""

    _fields_ = (
        ("used_bytes", ctypes.c_uint64),
        ("epoch", ctypes.c_uint64),
        ("closed", ctypes.c_bool),
        ("given", ctypes.c_bool),
        ("given_in_epoch", ctypes.c_bool),
    )


class _Entry(ctypes.Structure):
    """`end`: the place after its last byte; 0 until all of it is there."""

    _fields_ = (
        ("length", ctypes.c_uint64),
        ("checksum", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
    )


class ItemStore:
    """By number of the item; full is full. Room is taken from the system only as it is used."""

    def __init__(self, num_items: int, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.num_items = num_items
        self.head: Any = _shared(_Head)
        self._entries: Any = _shared(_Entry * max(num_items, 1))
        self._data = mmap.mmap(-1, max(limit_bytes, mmap.PAGESIZE))
        self._lock = multiprocessing.get_context("fork").Lock()

    def get(self, number: int) -> bytes | None:
        """What was put there, whole, or nothing."""
        entry = self._entries[number]
        end = entry.end
        content = self._data[end - entry.length : end]
        return content if end and zlib.crc32(content) == entry.checksum else None

    def put(self, number: int, content: bytes) -> bool:
        """Keep it; `False` where there is no room, or another process holds the store for too long."""
        if not self._lock.acquire(timeout=LOCK_S):
            return False
        try:
            start = self.head.used_bytes
            end = start + len(content)
            if end > self.limit_bytes:
                return False
            self._data[start:end] = content
            self.head.used_bytes = end
            self._entries[number] = _Entry(len(content), zlib.crc32(content), end)
            return True
        finally:
            self._lock.release()

    def begin_epoch(self) -> None:
        self.head.given_in_epoch = False
        self.head.epoch += 1

    def clear(self) -> None:
        """Forget every item."""
        ctypes.memset(self._entries, 0, ctypes.sizeof(self._entries))
        self.head.used_bytes = 0


def _shared(kind: Any) -> Any:
    """One of these, in memory that forked processes share."""
    return kind.from_buffer(mmap.mmap(-1, ctypes.sizeof(kind)))


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
