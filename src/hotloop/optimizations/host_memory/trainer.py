"""Telling glibc's allocator to keep what is freed."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_M_MXFAST, _M_TRIM_THRESHOLD, _M_MMAP_MAX = 1, -1, -4
"""From <malloc.h>."""
_MADV_HUGEPAGE = 14
"""From <linux/mman.h>."""
_HUGE_PAGE_BYTES = 2 << 20
"""On x86-64, and on arm64 with pages of 4 KiB."""
_kept = False


def keep_freed_memory(reserve_bytes: int) -> bool:
    """Tell the allocator of this process; whether it took it. Cannot be undone.

    `reserve_bytes` of addresses, not of memory, are taken into the heap beforehand: huge pages can be
    asked for only under addresses that are there, and are best there before the first touch.
    """
    global _kept
    try:
        libc = ctypes.CDLL(None)
        _kept = bool(libc.mallopt(_M_MMAP_MAX, 0)) and bool(libc.mallopt(_M_TRIM_THRESHOLD, -1))
        if _kept:
            libc.mallopt(_M_MXFAST, 0)  # freeing a large chunk would tidy up all fast bins
            libc.malloc.argtypes, libc.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
            libc.free.argtypes = (ctypes.c_void_p,)
            libc.free(libc.malloc(reserve_bytes))  # free(NULL) is nothing, where there was no room
            _ask_for_huge_pages(libc)
    except (OSError, AttributeError):  # another libc
        _kept = False
    return _kept


def off_their_file(model: nn.Module) -> None:
    """The weights that are trained, moved to the heap where that is kept.

    `from_pretrained` maps the file, and the first update makes the kernel copy it into small pages, whose addresses a step of
    few tokens waits for: a twelfth of it (BERT of 6 layers, width 384, one text a step).
    """
    for weight in model.parameters():
        if _kept and weight.requires_grad:
            weight.data = weight.data.clone()


def is_kept() -> bool:
    """Whether `keep_freed_memory` took effect in this process."""
    return _kept


def _ask_for_huge_pages(libc: ctypes.CDLL) -> None:
    """Under the whole heap as it now is. The kernel may decline any part, and nothing is lost then."""
    heap = _heap()
    if heap is None:
        return
    start = -(-heap[0] // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    end = heap[1] // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
    if end > start:
        libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        libc.madvise(start, end - start, _MADV_HUGEPAGE)


def _heap() -> tuple[int, int] | None:
    """First and last address of the heap; `None` where the kernel does not tell."""
    try:
        with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
            for line in maps:
                if line.rstrip().endswith("[heap]"):
                    first, last = line.split(maxsplit=1)[0].split("-")
                    return int(first, 16), int(last, 16)
    except OSError:
        pass
    return None
