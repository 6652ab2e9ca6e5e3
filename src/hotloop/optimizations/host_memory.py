"""Memory that a step frees stays with the process for the next step.

glibc hands big blocks (by default those above 32 MiB at the latest) back to the kernel when they are
freed, and asks for them again in the next step: every page is then faulted in and zeroed anew. On a
CPU that can be a tenth of a step and more. `keep` tells glibc's allocator to take all blocks from its
heap and never to shrink it (mallopt(3): M_MMAP_MAX 0, M_TRIM_THRESHOLD -1), and asks for huge pages
under the heap (madvise(2)), which most kernels leave to programs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotloop.optimizations.optimization import Choice, Optimization

if TYPE_CHECKING:
    from hotloop.core.census import Census
    from hotloop.hardware.machine import Machine

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
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
            libc.malloc.argtypes, libc.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
            libc.free.argtypes = (ctypes.c_void_p,)
            libc.free(libc.malloc(reserve_bytes))  # free(NULL) is nothing, where there was no room
            _ask_for_huge_pages(libc)
    except (OSError, AttributeError):  # another libc
        _kept = False
    return _kept


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


def _choose(machine: Machine, config: Mapping[str, Any]) -> Choice:
    if machine.device_type != "cpu":
        return Choice("default", "a step's memory is the device's")
    if machine.why_no_kept_memory is not None:
        return Choice("default", machine.why_no_kept_memory)
    return Choice("keep", "a step on a CPU asks for the same memory as the step before")


def _why_not(machine: Machine, value: Any, config: Mapping[str, Any]) -> str | None:
    return machine.why_no_kept_memory if value == "keep" else None


def _observed(census: Census, value: Any) -> bool | None:
    return census.host_memory == value if census.host_memory else None


HOST_MEMORY = Optimization(
    name="host_memory",
    summary="Memory that a step frees stays with the process instead of going back to the kernel.",
    parity_class="bitwise",
    key="train.host_memory",
    off="default",
    settings=("keep",),
    choose=_choose,
    why_not=_why_not,
    observed=_observed,
    source_form=(
        "# in the shell, before Python starts\n"
        "export GLIBC_TUNABLES=glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184:"
        "glibc.malloc.hugetlb=1"
    ),
    no_live_form="not yet applied to foreign scripts",
    risks="The process never gives memory back: its resident set stays at the highest it ever needed.",
)
