"""Which other machines a command connects to; the addresses are those kept for examples, where nobody answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hotloop.core.connections import CONNECTIONS_FILE, connections_of, host_and_port
from hotloop.probe.attach.connections import _remember, _tell

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
    assert connections_of(ended.directory)[0] == "192.0.2.1:443"
    assert sorted(connections_of(ended.directory)) == ["192.0.2.1:443", "192.0.2.2:80"]
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


def test_a_number_of_ipv6_stands_in_brackets(tmp_path: Path) -> None:
    _tell(tmp_path / CONNECTIONS_FILE, ("2001:db8::7", 443, 0, 0), {}, set())
    (named,) = connections_of(tmp_path)
    assert named == "[2001:db8::7]:443"
    assert host_and_port(named) == ("2001:db8::7", 443)


def test_an_address_is_told_by_the_name_that_was_asked_for() -> None:
    names: dict[str, str] = {}
    _remember(names, b"data.example", [(2, 1, 6, "", ("192.0.2.5", 443))])
    assert names == {"192.0.2.5": "data.example"}
