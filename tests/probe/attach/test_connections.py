"""Which other machines a command connects to; the addresses are those kept for examples, where nobody answers."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import psutil
import pytest

from hotloop.core.connections import CONNECTIONS_FILE, Connections, connections_of, host_and_port
from hotloop.probe.attach.connections import _Connections

CONNECT = """
import socket
def connect(host, port, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_INET, kind) as connection:
        connection.setblocking(False)
        return connection.connect_ex((host, port))
"""
SCRIPT = """
class Remote(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        connect("192.0.2.2", 80)
        return torch.ones(8)
connect("192.0.2.1", 443)
connect("192.0.2.1", 443)
connect("192.0.2.9", 53, socket.SOCK_DGRAM)
here = socket.create_server(("127.0.0.1", 0))
print(connect(*here.getsockname()) >= 0)
model, optimizer = build()
for batch in torch.utils.data.DataLoader(Remote(), batch_size=4, num_workers=2):
    train(model, optimizer, 1)
"""


def test_each_machine_is_named_once_also_by_workers(run: Any) -> None:
    ended = run(CONNECT + SCRIPT)
    first, second = connections_of(ended.directory)
    assert first == Connections("192.0.2.1:443")
    assert second == Connections("192.0.2.2:80")
    assert ended.notes == ""


def test_a_script_that_talks_to_nobody_has_none(run: Any) -> None:
    ended = run("train(*build(), 5)\n")
    assert connections_of(ended.directory) == ()


def test_a_client_gets_what_it_gets_without_the_probe(run: Any) -> None:
    source = CONNECT + """
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
client.sendall(b"data")
print(server.accept()[0].recv(4), socket.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM))
try:
    socket.create_connection(("127.0.0.1", 1), timeout=1)
except OSError as error:
    print(type(error).__name__)
try:
    connect("127.0.0.1")
except TypeError:
    print("arguments")
"""  # fmt: skip
    assert run(source).out == run(source, watched=False).out


MOVING = """
import os, socket, ssl, threading
ADDRESS = {address!r}
server = socket.create_server((ADDRESS, 0))
def serve():
    while True:
        client = server.accept()[0]
        threading.Thread(target=lambda: [client.sendall(b"r" * 7000), client.recv(1 << 20)], daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
def move(client):
    client.sendall(b"s" * 300)
    received = 0
    while received < 7000:
        received += len(client.recv(1 << 16))
class Remote(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        self.open = socket.create_connection(server.getsockname())
        move(self.open)
        return torch.ones(8)
with socket.create_connection(server.getsockname()) as client:
    move(client)
secure = ssl.create_default_context().wrap_socket(
    socket.create_connection(server.getsockname()),
    server_hostname="host.example",
    do_handshake_on_connect=False,
)
os.write(secure.fileno(), b"s" * 300)
print(len(os.read(secure.fileno(), 7000)))
secure.close()
model, optimizer = build()
for batch in torch.utils.data.DataLoader(Remote(), batch_size=4, num_workers=1):
    train(model, optimizer, 4)
left = socket.create_connection(server.getsockname())
move(left)
{end}
"""


@pytest.mark.parametrize("end", ["", "os._exit(0)"])
def test_bytes_are_counted_also_of_tls_of_workers_and_of_what_is_left_open(
    run: Any, end: str
) -> None:
    addresses = [
        each.address
        for of_interface in psutil.net_if_addrs().values()
        for each in of_interface
        if each.family == socket.AF_INET and not each.address.startswith("127.")
    ]
    if not addresses:
        pytest.skip("this machine has no address but its loopback")
    (found,) = connections_of(run(MOVING.format(address=addresses[0], end=end)).directory)
    assert found.name.startswith(f"{addresses[0]}:")
    # One that is closed, TLS, four of the worker (three closed as the next one took their place), one left open.
    assert 4 * 300 <= found.sent_bytes <= 7 * 300 + 7
    assert 4 * 7000 <= found.received_bytes <= 7 * 7000 + 7


def test_a_number_of_ipv6_stands_in_brackets(tmp_path: Path) -> None:
    _Connections(tmp_path / CONNECTIONS_FILE).connects(9, ("2001:db8::7", 443, 0, 0))
    (named,) = connections_of(tmp_path)
    assert named.name == "[2001:db8::7]:443"
    assert host_and_port(named.name) == ("2001:db8::7", 443)


def test_an_address_is_told_by_the_name_that_was_asked_for(tmp_path: Path) -> None:
    watched = _Connections(tmp_path / CONNECTIONS_FILE)
    watched.resolved(b"data.example", [(2, 1, 6, "", ("192.0.2.5", 443))])
    watched.connects(9, ("192.0.2.5", 443))
    assert connections_of(tmp_path) == (Connections("data.example:443"),)


def test_bytes_of_one_machine_are_added_and_a_damaged_line_adds_none(tmp_path: Path) -> None:
    text = "a:1\nb:2\na:1 10 2000\n\na:1 5 1\nb:2 x 7\nb:2 4\n"
    (tmp_path / CONNECTIONS_FILE).write_text(text)
    assert connections_of(tmp_path) == (Connections("a:1", 15, 2001), Connections("b:2"))
