"""Connections of a sandbox to a few named machines, which a process outside of its network passes on.

Standard library only, as the launcher. A socket stays in the network it was made in: those that listen are made
inside and handed to the process outside, which accepts there and connects from where it is.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from threading import Thread

from hotloop.trial.sandbox.syscalls import add_to_loopback, process_handle

HOME = "127.0.0.1"
FIRST = IPv4Address("127.77.0.0")
"""Names of other machines lead to the addresses after it, all of the loopback."""
PIECE_BYTES = 1 << 18
PAUSE_S = 0.1
"""Before accepting again where that failed: too many files are open."""

Address = tuple[str, int]
"""Host and port."""


class Relay:
    """A process outside that passes connections to `machines` on, and no others, until this process ends."""

    def __init__(self, machines: Sequence[Address]) -> None:
        """Before this process leaves its network. Raises `OSError` where no process can be started."""
        self.names = _names(host for host, _ in machines)
        """The address in the sandbox to which each name leads."""
        # First come: the name of this machine and a number of it may be the same place inside.
        self._places: dict[Address, Address] = {}
        for host, port in machines:
            self._places.setdefault((self.names.get(host, host), port), (host, port))
        self._channel, outside = socket.socketpair()
        sandbox = process_handle(os.getpid())
        child = os.fork()
        if child == 0:
            try:
                if os.fork() == 0:  # no child of the command's: it may wait for all it has
                    self._channel.close()
                    _serve(outside, sandbox, list(self._places.values()))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        outside.close()
        os.close(sandbox)

    def listen(self) -> None:
        """In the new network, whose loopback is up. Raises `OSError`."""
        with self._channel:
            for host, port in self._places:
                number = ip_address(host)
                if not (number.is_loopback or number.is_unspecified):
                    add_to_loopback(number)
                family = socket.AF_INET if number.version == 4 else socket.AF_INET6
                with socket.create_server((host, port), family=family) as server:
                    socket.send_fds(self._channel, [b"."], [server.fileno()])


def _names(hosts: Iterable[str]) -> dict[str, str]:
    """This machine's own names stay what they are in every sandbox: its loopback."""
    here = ("localhost", socket.gethostname().lower())
    names: dict[str, str] = {}
    for host in hosts:
        try:
            ip_address(host)
        except ValueError:
            names.setdefault(host, HOME if host in here else str(FIRST + len(names) + 1))
    return names


def _serve(channel: socket.socket, sandbox: int, machines: Sequence[Address]) -> None:
    """The process outside. It holds nothing of the sandbox but what listens, and ends with it."""
    os.setsid()
    os.chdir("/")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (int(each.name) for each in Path("/proc/self/fd").iterdir()):
        if number <= 2:
            os.dup2(nowhere, number)
        elif number not in (channel.fileno(), sandbox):
            with suppress(OSError):  # that of the listing itself
                os.close(number)
    for machine in machines:
        # Where no sandbox comes to be, nothing is sent; this raises, and the process ends.
        _, (number,), _, _ = socket.recv_fds(channel, 1, 1)
        server = socket.socket(fileno=number)
        Thread(target=_accept, args=(server, machine), daemon=True).start()
    channel.close()
    select.select([sandbox], [], [])


def _accept(server: socket.socket, machine: Address) -> None:
    while True:
        try:
            Thread(target=_pass_on, args=(server.accept()[0], machine), daemon=True).start()
        except (OSError, RuntimeError):
            time.sleep(PAUSE_S)


def _pass_on(inner: socket.socket, machine: Address) -> None:
    """Both ways, until both have ended. A machine that does not answer is a connection that is reset."""
    with inner:
        try:
            outer = socket.create_connection(machine)
        except OSError:
            _reset(inner)
            return
        with outer:
            for each in (inner, outer):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = Thread(target=_copy, args=(outer, inner), daemon=True)
            back.start()
            _copy(inner, outer)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, target):
            _reset(each)


def _reset(connection: socket.socket) -> None:
    """Its close will say that something failed, where a plain one would say that all was sent."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RD)  # who still reads it ends
