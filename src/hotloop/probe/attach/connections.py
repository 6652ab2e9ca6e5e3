"""Which other machines this process, and its loader workers, connect to: trials have no network."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from hotloop.core.connections import CONNECTIONS_FILE, connection_name
from hotloop.probe import entry


def watch_connections(directory: Path) -> None:
    """Hook what every client written in Python goes through; C libraries with sockets of their own are not seen."""
    names: dict[str, str] = {}
    told: set[str] = set()

    def resolve(original: Any, host: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(host, *args, **kwargs)
        with suppress(Exception):
            _remember(names, host, found)
        return found

    def connect(original: Any, connection: socket.socket, address: Any) -> Any:
        # UDP connects to nobody: scripts ask so for their own address.
        if connection.type == socket.SOCK_STREAM:
            with suppress(Exception):  # in whichever process and thread: nothing here may stop them
                _tell(directory / CONNECTIONS_FILE, address, names, told)
        return original(connection, address)

    entry.around_call(socket, "getaddrinfo", resolve)
    for name in ("connect", "connect_ex"):
        entry.around_method(socket.socket, name, connect)


def _remember(names: dict[str, str], host: Any, found: Any) -> None:
    for *_, address in found:
        names[address[0]] = host.decode() if isinstance(host, bytes) else str(host)


def _tell(path: Path, address: Any, names: dict[str, str], told: set[str]) -> None:
    """One line for each: what several processes add at once stays whole."""
    if not isinstance(address, tuple) or _is_here(address[0]):
        return
    host = connection_name(names.get(address[0]) or address[0], address[1])
    if host in told:
        return
    told.add(host)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"{host}\n".encode())
    finally:
        os.close(descriptor)


def _is_here(host: str) -> bool:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified
