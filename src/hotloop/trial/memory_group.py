"""A control group that holds a command to so much memory, where one can be made: the kernel ends what takes more."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hotloop.hardware.limits import innermost_group

LIMITS = (
    ("memory.max", "memory.swap.max", "0"),
    ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", None),
)
"""Of versions 2 and 1: the file of the limit, and that of the swap with what to write there (`None`: the limit)."""


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    path: Path

    def command(self, command: Sequence[str]) -> list[str]:
        """Runs `command` in the group: a shell enters it and becomes the command."""
        enter = 'echo $$ > "$0" && exec "$@"'
        return ["/bin/sh", "-c", enter, str(self.path / "cgroup.procs"), *command]

    def take(self, pid: int) -> None:
        """Move a process into the group that has just begun, and with it all that it will start."""
        with suppress(OSError):  # it has ended, or the user may not
            _write(self.path / "cgroup.procs", str(pid))


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup | None]:
    """Below this process's own group, whose limits hold as before; `None` where none can be made."""
    made = None
    try:
        own = innermost_group()
        if own is not None:  # only below it: beside it, the limits above would no longer hold
            made = _made(own / f"hotloop-{os.getpid()}", limit_bytes)
        yield None if made is None else MemoryGroup(made)
    finally:
        for _ in range(50 if made is not None else 0):  # the last process of it may be ending
            with suppress(OSError):
                made.rmdir()  # type: ignore[union-attr]
                break
            time.sleep(0.1)


def _made(path: Path, limit_bytes: int) -> Path | None:
    with suppress(OSError):
        path.rmdir()  # a process of this number was killed before it could
    try:
        path.mkdir()
    except OSError:
        return None
    for limit, swap, text in LIMITS:
        with suppress(OSError):
            _write(path / limit, str(limit_bytes))
            with suppress(OSError):  # a kernel without swap accounting
                _write(path / swap, text or str(limit_bytes))
            return path
    with suppress(OSError):
        path.rmdir()
    return None


def _write(file: Path, text: str) -> None:
    """Never makes one: only the kernel's own files mean something."""
    handle = os.open(file, os.O_WRONLY)
    try:
        os.write(handle, text.encode("ascii"))
    finally:
        os.close(handle)
