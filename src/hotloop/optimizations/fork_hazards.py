"""What a process must not share with children that it forks: files that it reads at a position, connections.

A file's position is shared: two processes that read in turns each get what the other skipped. So is a
connection, of which each would get a part of the other's answers. Linux alone; elsewhere nothing is known.
"""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import socket
from typing import Any

_FDS = "/proc/self/fd"
_SHARED_MEMORY = "/dev/shm"
TCP_INFO_BYTES = 232
_BYTES = slice(120, 136)
"""`tcpi_bytes_acked` and `tcpi_bytes_received` in `struct tcp_info`."""
SPARE_FILES = 128


def open_files() -> dict[str, Any] | None:
    """Everything that is open, with its position or its traffic so far; `None` where that is not told."""
    found: dict[str, Any] = {}
    try:
        numbers = os.listdir(_FDS)  # noqa: PTH208
    except OSError:
        return None
    for number in numbers:
        try:
            target = os.readlink(f"{_FDS}/{number}")  # noqa: PTH115
            found[f"{number} {target}"] = _use_of(int(number), target)
        except OSError:  # closed meanwhile, as that of the listing itself is
            continue
    return found


def left_open(before: dict[str, Any] | None, after: dict[str, Any] | None) -> str | None:
    """What was opened and kept, or read from while open; `None` where nothing was."""
    if before is None or after is None:
        return "a file, for all that can be seen on this system"
    for name, use in after.items():
        if name not in before or before[name] != use:
            return name.partition(" ")[2]
    return None


def why_no_room(num_bytes: int, num_tensors: int) -> str | None:
    """Why batches on their way cannot be kept in shared memory; `None` where they can.

    num_bytes, num_tensors: of all that may be under way at once.
    """
    try:
        free = shutil.disk_usage(_SHARED_MEMORY).free
    except OSError:
        free = None
    if free is not None and num_bytes > free // 2:
        return (
            f"batches under way need {num_bytes / 1e6:.0f} MB of shared memory, and {_SHARED_MEMORY} "
            f"has {free / 1e6:.0f} MB free"
        )
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and num_tensors + SPARE_FILES > limit:
        return f"batches under way need {num_tensors} open files, and {limit} are allowed"
    return None


def _use_of(number: int, target: str) -> Any:
    if target.startswith("socket:"):
        return _traffic(number)
    if not target.startswith("/") or target.startswith(("/dev/", "/proc/")):
        return None
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
        return None  # logs: processes that append to one take turns
    return os.lseek(number, 0, os.SEEK_CUR)


def _traffic(number: int) -> Any:
    """Bytes over a TCP connection so far; of other sockets nothing is told."""
    try:
        with socket.socket(fileno=os.dup(number)) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
            return told[_BYTES] if len(told) >= _BYTES.stop else None
    except OSError:
        return None
