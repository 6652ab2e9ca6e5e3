"""The kernel refuses writes outside of given directories, and connections: Landlock, where there are no layers.

It needs no privileges and holds for C libraries and child processes. It knows no modes, owners and times of
files, no UDP, and it does not tell this machine from another one.
"""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.trial.sandbox.syscalls import (
    SCOPE_ABSTRACT_SOCKETS,
    SCOPE_SIGNALS,
    landlock,
    landlock_version,
)

SYSTEM = ("/dev", "/proc")
"""Shared memory of loader workers, and what the system lets a process say of itself."""
_CONNECT = 1 << 1


def restrict(writable: Sequence[str], *, network: bool) -> None:
    """This process and all it starts, for good. Raises `OSError` where the kernel has no Landlock."""
    version = landlock_version()
    landlock(
        writes=_writes(version),
        connects=_CONNECT if version >= 4 and not network else 0,
        scopes=SCOPE_SIGNALS | SCOPE_ABSTRACT_SOCKETS if version >= 6 else 0,
        writable=[*writable, *SYSTEM],
    )


def refuses_connections() -> bool:
    """Whether this kernel can."""
    return landlock_version() >= 4


def _writes(version: int) -> int:
    """Its names for writing, removing, making, and from later versions on linking elsewhere and truncating."""
    names = [1, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    names += [13] if version >= 2 else []
    names += [14] if version >= 3 else []
    return sum(1 << name for name in names)
