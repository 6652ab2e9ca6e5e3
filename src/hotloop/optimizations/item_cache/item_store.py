"""Encoded items in memory that forked processes share: what one of them made, all of them find.

Killed at any moment, a process leaves nothing behind that another would wait for or take for whole.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import zlib
from typing import Any

from hotloop.hardware.limits import memory_left_bytes

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
    left = memory_left_bytes()
    return wanted_bytes if left is None else min(wanted_bytes, left // SHARE_OF_MEMORY)
