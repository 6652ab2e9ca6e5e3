"""The system calls of Linux that Python has no function for. Standard library only."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x8000000, 0x10000000, 0x40000000
MS_NOSUID, MS_NODEV = 2, 4
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

_ALL_MACHINES = {"pidfd_open": 434, "mount_setattr": 442, "landlock_create": 444, "landlock_add": 445, "landlock_restrict": 446}  # fmt: skip
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_NEW_ADDRESS, _REQUEST, _ACKNOWLEDGE, _CREATE, _NO_CHECK, _IFA_LOCAL = 20, 1, 4, 0x400, 2, 2
_EEXIST = 17
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2
"""Needs version 6 of Landlock."""
_CAPABILITIES_KEPT = frozenset({0, 1, 2, 3, 4, 5, 6, 7, 14, 15, 23, 24})
"""Those over files, own processes and limits; none to mount, configure networks or trace."""

_SHARED = ("/dev", "/proc")
"""Shared memory of loader workers, and what the system lets a process say of itself."""
_CONNECT = 1 << 1

_libc: Any = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)} ({what})")
    return result


def _syscall(name: str, *arguments: object) -> int:
    number = _PIVOT_ROOT.get(os.uname().machine) if name == "pivot_root" else _ALL_MACHINES[name]
    if number is None:
        raise OSError(38, f"Function not implemented ({name})")
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments), name)


def unshare(flags: int) -> None:
    """Raises `OSError` where the kernel, or who administers it, refuses."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(
    source: Path | str, target: Path | str, kind: str = "", flags: int = 0, data: str = ""
) -> None:
    """mount(2); raises `OSError`."""
    options = data.encode() if data else None
    _checked(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode(),
            ctypes.c_ulong(flags),
            options,
        ),
        f"mount {kind or 'bind'} on {target}",
    )


def make_read_only(target: Path | str) -> None:
    """A mount, and all mounts below it."""
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    _syscall(
        "mount_setattr",
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(_AT_RECURSIVE),
        attributes,
        ctypes.c_size_t(len(attributes)),
    )


def change_root(root: Path) -> None:
    """Make `root`, a mount, the only tree that is seen."""
    os.chdir(root)
    _syscall("pivot_root", b".", b".")
    _checked(_libc.umount2(b".", ctypes.c_int(MNT_DETACH)), "umount")
    os.chdir("/")


def process_handle(pid: int) -> int:
    """A descriptor that can be read from once the process has ended. Some builds of Python lack `os.pidfd_open`."""
    return _syscall("pidfd_open", ctypes.c_int(pid), ctypes.c_uint(0))


def start_loopback() -> None:
    """In a network namespace of its own nothing else is there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = fcntl.ioctl(handle, _SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        flags = struct.unpack("16sH14x", request)[1]
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def add_to_loopback(address: IPv4Address | IPv6Address) -> None:
    """It leads to this machine from here on, in this network namespace; raises `OSError`."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    bits, loopback = address.max_prefixlen, socket.if_nametoindex("lo")
    body = struct.pack("=BBBBI", family, bits, _NO_CHECK, 0, loopback)
    body += struct.pack("=HH", 4 + bits // 8, _IFA_LOCAL) + address.packed
    flags = _REQUEST | _ACKNOWLEDGE | _CREATE
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as kernel:
        kernel.send(struct.pack("=IHHII", 16 + len(body), _NEW_ADDRESS, flags, 1, 0) + body)
        code = -struct.unpack_from("=i", kernel.recv(4096), 16)[0]
    if code not in (0, _EEXIST):
        raise OSError(code, f"{os.strerror(code)} (address {address})")


def drop_capabilities() -> None:
    """For good: what is executed from here on can neither mount nor gain anything from a setuid file."""
    for capability in range(64):
        if capability not in _CAPABILITIES_KEPT:  # past the last one there is, nothing happens
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    gain_no_privileges()


def gain_no_privileges() -> None:
    """Needed before an unprivileged process may restrict itself."""
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def landlock_version() -> int:
    """Version of its interface; 0 where the kernel has none."""
    try:
        return _syscall("landlock_create", None, ctypes.c_size_t(0), ctypes.c_uint(1))
    except OSError:
        return 0


def landlock(
    *, writes: int = 0, connects: int = 0, scopes: int = 0, writable: Sequence[str] = ()
) -> None:
    """Refuse these to this process and its children for good: kinds of writes but below `writable`.

    scopes: what stays among them. An older kernel knows `writes` alone, and refuses the others here.
    """
    attributes = struct.pack("=QQQ", writes, connects, scopes)
    attributes = attributes[: 24 if scopes else 16 if connects else 8]
    rules = _syscall("landlock_create", attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))  # fmt: skip
    try:
        for path in writable:
            try:
                place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:  # not there: nothing to allow
                continue
            # Of a single file only these two can be allowed: writing and truncating.
            allowed = writes if os.path.isdir(path) else writes & (1 << 1 | 1 << 14)  # noqa: PTH112
            rule = struct.pack("=Qi", allowed, place)
            try:
                _syscall("landlock_add", ctypes.c_int(rules), ctypes.c_int(1), rule, ctypes.c_uint(0))  # fmt: skip
            finally:
                os.close(place)
        gain_no_privileges()
        _syscall("landlock_restrict", ctypes.c_int(rules), ctypes.c_uint(0))
    finally:
        os.close(rules)


def restrict(writable: Sequence[str], *, network: bool) -> None:
    """This process and all it starts may write only there, for good. Raises `OSError` where the kernel has no Landlock.

    It needs no privileges and holds for C libraries. It knows no modes, owners and times of files, no UDP, and it does
    not tell this machine from another one.
    """
    version = landlock_version()
    landlock(
        writes=_writes(version),
        connects=_CONNECT if version >= 4 and not network else 0,
        scopes=SCOPE_SIGNALS | SCOPE_ABSTRACT_SOCKETS if version >= 6 else 0,
        writable=[*writable, *_SHARED],
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
