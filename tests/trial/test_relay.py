"""A trial reaches the machines that were named, by name and by number, and no others."""

from __future__ import annotations

import inspect
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotloop.core.connections import Network
from hotloop.core.errors import CommandFailed
from hotloop.core.measurement import Plan
from hotloop.trial.arm import Arm
from hotloop.trial.measure import LOG_FILE, measure
from hotloop.trial.sandbox.layered import Layered, storage_for
from hotloop.trial.snapshot import take_snapshot

TEMPORARY = Path(tempfile.gettempdir())
pytestmark = pytest.mark.skipif(
    storage_for(TEMPORARY, TEMPORARY) is None,
    reason="this kernel gives no layers to unprivileged users",
)

HEADER = """
import hashlib, os, socket, struct, sys, threading, time
from pathlib import Path
def received(connection):
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))
def said(host, port):
    try:
        with socket.create_connection((host, port), timeout=120) as connection:
            return received(connection).decode()
    except OSError as error:
        return type(error).__name__
"""


def tried(tmp_path: Path, source: str, *hosts: str, timeout_s: float = 300.0) -> str:
    """What a trial prints that may reach `hosts`."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    doctors = tmp_path / f"doctor-{len(list(tmp_path.iterdir()))}"
    doctors.mkdir()
    place, before = doctors / "trial", take_snapshot(work, doctors / "before")
    start = Layered(before, doctors.resolve(), network=Network(hosts))
    command = (sys.executable, "-I", "-S", "-c", HEADER + source)
    measure(
        Arm("plain", command, "none", workdir=work),
        directory=place,
        plan=Plan(0, 1, timeout_s),
        seed="0",
        cache=doctors / "cache",
        workdir=start,
    )
    return (place / LOG_FILE).read_text()


Serve = Callable[[Callable[[socket.socket], object]], int]


@pytest.fixture(params=["loopback", "other address"])
def host(request: pytest.FixtureRequest) -> str:
    """An address of this machine."""
    if request.param == "loopback":
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no other address")
        return str(asked.getsockname()[0])


@pytest.fixture
def serve(host: str) -> Iterator[Serve]:
    """Starts a server on `host` that does this with each connection; its port."""
    servers = []

    def start(answer: Callable[[socket.socket], object]) -> int:
        server = socket.create_server((host, 0))
        servers.append(server)

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

        def talk(connection: socket.socket) -> None:
            with connection:
                answer(connection)

        threading.Thread(target=accept, daemon=True).start()
        return int(server.getsockname()[1])

    yield start
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def received(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_what_is_named_is_reached_and_nothing_beside_it(
    tmp_path: Path, host: str, serve: Serve
) -> None:
    allowed = serve(lambda connection: connection.sendall(b"allowed"))
    other = serve(lambda connection: connection.sendall(b"other"))
    asks = f"print(said({host!r}, {allowed}), said({host!r}, {other}))"
    assert tried(tmp_path, asks, f"{host}:{allowed}") == "allowed ConnectionRefusedError\n"
    both = tried(tmp_path, asks, f"{host}:{allowed}", f"{host}:{other}")
    assert both == "allowed other\n"
    assert "allowed" not in tried(tmp_path, asks)
    elsewhere = tried(tmp_path, asks, f"127.0.0.77:{allowed}")  # that port, of another machine
    assert "allowed" not in elsewhere


def test_a_machine_that_does_not_answer_resets_the_connection(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert tried(tmp_path, f"print(said('127.0.0.1', {port}))", f"127.0.0.1:{port}") == (
        "ConnectionResetError\n"
    )


def test_a_number_of_ipv6_is_reached(tmp_path: Path) -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")

    def answer(server: socket.socket) -> None:
        with server.accept()[0] as connection:
            connection.sendall(b"six")

    with server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        port = server.getsockname()[1]
        # Nothing answers at the other one, whose number the trial has all the same.
        asks = f"print(said('::1', {port})); socket.create_connection(('2001:db8::7', 9))"
        printed = tried(tmp_path, asks, f"[::1]:{port}", "[2001:db8::7]:9")
    assert printed == "six\n"


@pytest.mark.parametrize("host", ["loopback"], indirect=True)
def test_own_names_lead_into_the_trial_but_for_ports_that_were_named(
    tmp_path: Path, serve: Serve
) -> None:
    port = serve(lambda connection: connection.sendall(b"outside"))
    source = f"""
inner = socket.create_server(("localhost", 0))
threading.Thread(target=lambda: inner.accept()[0].sendall(b"inside"), daemon=True).start()
client = socket.create_connection((socket.gethostname(), inner.getsockname()[1]))
print(client.recv(6).decode(), said('localhost', {port}), said('127.0.0.1', {port}))
"""
    hosts = f"localhost:{port}", f"127.0.0.1:{port}"  # one place
    assert tried(tmp_path, source, *hosts) == "inside outside outside\n"


def test_many_connections_at_once_keep_their_bytes_apart(
    tmp_path: Path, host: str, serve: Serve
) -> None:
    port = serve(lambda connection: connection.sendall(received(connection)[::-1]))
    source = f"""
right = []
def one(number):
    sent = bytes([number]) + os.urandom(3 << 20)
    with socket.create_connection(({host!r}, {port})) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)  # its other direction stays open
        right.append(received(connection) == sent[::-1])
threads = [threading.Thread(target=one, args=(number,)) for number in range(12)]
for each in threads: each.start()
for each in threads: each.join()
print(right)
"""
    assert tried(tmp_path, source, f"{host}:{port}") == f"{[True] * 12}\n"


@pytest.mark.parametrize("host", ["loopback"], indirect=True)
def test_each_side_sees_how_the_other_ended(tmp_path: Path, serve: Serve) -> None:
    ends: list[object] = []
    ended = threading.Semaphore(0)

    def close(connection: socket.socket) -> None:
        connection.sendall(b"last")

    def reset(connection: socket.socket) -> None:
        connection.sendall(b"cut")
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def wait(connection: socket.socket) -> None:
        try:
            ends.append(received(connection))
        except OSError as error:
            ends.append(type(error))
        ended.release()

    def tell(connection: socket.socket) -> None:
        for _ in range(2):
            ended.acquire(timeout=120)
        connection.sendall(b"both")

    closing, resetting, waiting, telling = serve(close), serve(reset), serve(wait), serve(tell)
    source = f"""
def connected(port):
    return socket.create_connection(("127.0.0.1", port), timeout=300)
print(received(connected({closing})))
connection = connected({resetting})
print(connection.recv(3)); connection.sendall(b"x")
try: print(connection.recv(3))
except OSError as error: print(type(error).__name__)
with connected({waiting}) as connection: connection.sendall(b"all")
connection = connected({waiting})
connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
connection.close()
print(received(connected({telling})))  # what passes both on ends with this process
"""
    hosts = [f"127.0.0.1:{port}" for port in (closing, resetting, waiting, telling)]
    printed = tried(tmp_path, source, *hosts)
    assert printed == "b'last'\nb'cut'\nConnectionResetError\nb'both'\n"
    assert set(ends) == {b"all", ConnectionResetError}


def relays(place: str) -> list[Path]:
    """In /proc: what was forked from a launcher of trials below `place`, which itself becomes the command."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "launcher" in " ".join(words) and any(word.startswith(place) for word in words):
            found.append(process)
    return found


def test_the_relay_is_none_of_the_commands_and_ends_with_it(tmp_path: Path) -> None:
    source = f"""{inspect.getsource(relays)}
relay, = relays({str(tmp_path)!r})
try: os.wait()
except ChildProcessError: print("no children")
for what in ("fd/0", "root"):
    try: print(os.readlink(relay / what))
    except PermissionError: print(what)
print(socket.socket().fileno())
"""
    assert tried(tmp_path, source, "127.0.0.1:9") == "no children\nfd/0\nroot\n3\n"
    assert until(lambda: relays(str(tmp_path)) == [])
    with pytest.raises(CommandFailed, match="was ended"):
        tried(tmp_path, "time.sleep(600)", "127.0.0.1:9", timeout_s=2.0)
    assert until(lambda: relays(str(tmp_path)) == [])


def test_the_relay_holds_nothing_and_ends_though_hotloop_was_killed(tmp_path: Path) -> None:
    work = ";".join(
        [
            f"import sys; sys.path.append({str(Path(__file__).parent)!r})",
            "from pathlib import Path; from test_relay import tried",
            f"tried(Path({str(tmp_path)!r}), 'time.sleep(600)', '127.0.0.1:9')",
        ]
    )

    def held() -> list[str]:
        try:
            links = [each.readlink() for one in relays(str(tmp_path)) for each in one.glob("fd/*")]
        except OSError:  # it is only being made
            return []
        return sorted(str(link).split("[")[0] for link in links)

    with subprocess.Popen([sys.executable, "-c", work]) as hotloop:
        try:
            assert until(lambda: held() == ["/dev/null"] * 3 + ["anon_inode:", "socket:"])
        finally:
            hotloop.send_signal(signal.SIGKILL)
    assert hotloop.returncode == -signal.SIGKILL
    assert until(lambda: relays(str(tmp_path)) == [])


def test_the_relay_ends_by_itself_with_the_process_that_made_it(tmp_path: Path) -> None:
    source = """
import os, socket, sys
from hotloop.trial.sandbox.relay import Relay
with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
relay = Relay([("127.0.0.1", port)])
if sys.argv[3] == "listen":
    relay.listen()
print("made", flush=True)
sys.stdin.read()
"""
    for until_then in ("listen", "nothing"):
        words = [sys.executable, "-c", source, str(tmp_path), "as a launcher", until_then]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as made:
            assert made.stdout is not None
            assert made.stdout.readline() == b"made\n"
            assert len(relays(str(tmp_path))) == 2
            made.kill()
        assert until(lambda: relays(str(tmp_path)) == [])


def until(is_so: Callable[[], bool]) -> bool:
    """False if it is not so within two minutes."""
    deadline = time.monotonic() + 120
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
