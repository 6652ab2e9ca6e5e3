"""Other machines that a command connects to, or may. Standard library only: foreign processes import this."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path

CONNECTIONS_FILE = "connections.txt"
"""In a run directory. A line is `host:port` of a connection that was made, or `host:port sent received` of one that
ended, in bytes."""


@dataclass(frozen=True, slots=True)
class Connections:
    """Those of a run to one port of one machine, taken together."""

    name: str
    """`host:port`"""
    sent_bytes: int = 0
    received_bytes: int = 0
    """Both at least: what a process has moved that was killed is unknown, and what a C library moves."""


@dataclass(frozen=True, slots=True)
class Network:
    """Which other machines a trial may reach."""

    hosts: tuple[str, ...] = ()
    """Those and no others, each as `host:port`."""
    unlimited: bool = False
    """All of them, and what listens on this one."""


NO_NETWORK = Network()


def host_and_port(text: str) -> tuple[str, int]:
    """The parts of `host:port`, or of `[host]:port` for a number of IPv6. Raises `ValueError`."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = str(IPv6Address(host[1:-1]))
    elif re.fullmatch(r"[\w.-]+", host, re.ASCII) is None:
        raise ValueError(f"{text!r} names no host")
    if re.fullmatch("[0-9]{1,5}", port) is None or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{text!r} names no port")
    return host.lower(), int(port)


def connection_name(host: str, port: int) -> str:
    """`host:port`, as `host_and_port` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def connections_of(directory: Path) -> tuple[Connections, ...]:
    """Each machine and port once, in the order in which they were connected to."""
    try:
        text = (directory / CONNECTIONS_FILE).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ()
    found: dict[str, Connections] = {}
    for line in text.splitlines():
        name, *counts = line.split() or [""]
        known = found.get(name, Connections(name))
        sent, received = (
            map(int, counts) if len(counts) == 2 and "".join(counts).isdecimal() else (0, 0)
        )
        found[name] = Connections(name, known.sent_bytes + sent, known.received_bytes + received)
    found.pop("", None)
    return tuple(found.values())
