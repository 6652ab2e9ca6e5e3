"""Which other machines this process, and its loader workers, connect to: trials have no network."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from hotloop.core.connections import CONNECTIONS_FILE, connection_name
from hotloop.probe import entry

_BYTES = struct.Struct("=120x2Q")
"""`tcpi_bytes_acked` and `tcpi_bytes_received` of Linux' `struct tcp_info`, from 4.1 on."""


def watch_connections(directory: Path) -> None:
    """Hook what every client written in Python goes through; C libraries with sockets of their own are not seen."""
    watched = _Connections(directory / CONNECTIONS_FILE)

    def resolve(original: Any, host: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(host, *args, **kwargs)
        with suppress(Exception):
            watched.resolved(host, found)
        return found

    def connect(original: Any, connection: socket.socket, address: Any) -> Any:
        # UDP connects to nobody: scripts ask so for their own address.
        if connection.type == socket.SOCK_STREAM:
            with suppress(Exception):  # in whichever process and thread: nothing here may stop them
                watched.connects(connection.fileno(), address)
        return original(connection, address)

    def close(original: Any, connection: socket.socket, *args: Any) -> Any:
        with suppress(Exception):
            watched.closes(connection.fileno())
        return original(connection, *args)

    def leave(original: Any, *args: Any) -> Any:
        watched.end()
        return original(*args)

    entry.around_call(socket, "getaddrinfo", resolve)
    for name in ("connect", "connect_ex"):
        entry.around_method(socket.socket, name, connect)
    entry.around_method(socket.socket, "_real_close", close)
    entry.around_call(os, "_exit", leave)  # as loader workers end
    entry.at_end(watched.end)
    os.register_at_fork(after_in_child=watched.forked)


class _Connections:
    """The open ones, by descriptor: TLS moves a descriptor from one socket object to another."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: dict[str, str] = {}
        self._told: set[str] = set()
        self._open: dict[int, str] = {}

    def resolved(self, host: Any, found: Any) -> None:
        """`getaddrinfo` gave these addresses for the host."""
        for *_, address in found:
            self._names[address[0]] = host.decode() if isinstance(host, bytes) else str(host)

    def connects(self, descriptor: int, address: Any) -> None:
        """Each machine and port is written when it is first connected to: a process may be killed."""
        if not isinstance(address, tuple) or _is_here(address[0]):
            return
        name = connection_name(self._names.get(address[0]) or address[0], address[1])
        self._open[descriptor] = name
        if name not in self._told:
            self._told.add(name)
            self._write(name)

    def closes(self, descriptor: int) -> None:
        """Write how much it has moved, where the kernel counts that."""
        name = self._open.pop(descriptor, None)
        if name is None or not hasattr(socket, "TCP_INFO"):
            return
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            counted = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES.size)
        sent, received = _BYTES.unpack(counted)
        if sent or received:
            self._write(f"{name} {sent} {received}")

    def end(self) -> None:
        """The process ends with these open."""
        for descriptor in list(self._open):
            with suppress(Exception):
                self.closes(descriptor)

    def forked(self) -> None:
        """The parent counts what was open."""
        self._open.clear()

    def _write(self, line: str) -> None:
        """In one call: what several processes add at once stays whole."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)


def _is_here(host: str) -> bool:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified
