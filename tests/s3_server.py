"""A real S3 server in this process, and a TCP proxy before it that can be told to fail."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

Fault = Callable[[bytes], "int | bytes | None"]
"""Given the head of a request: `None` lets it pass, bytes are the answer in its place, and a number cuts the connection
after so many bytes of it."""


@dataclass
class Proxy:
    """Forwards each request to the server on a connection of its own."""

    target: tuple[str, int]
    fault: Fault | None = None
    flips: int = 0
    """Requests that put model.safetensors of which a bit still changes on the way."""
    requests: list[str] = field(default_factory=list)
    num_bytes: int = 0
    """Of the requests that were forwarded."""

    def __post_init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One request, answered with `Connection: close`: the next one comes on a new connection."""
        with client, suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                if not (more := client.recv(1 << 16)):
                    return
                head += more
            self.requests.append(head.split(b"\r\n", 1)[0].decode())
            found = self.fault(head) if self.fault is not None else None
            if isinstance(found, bytes):
                client.sendall(found)
                return
            with socket.create_connection(self.target) as server:
                head = head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
                self._send(server, head, found)
                back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
                back.start()
                while (found is None or self._left > 0) and (piece := client.recv(1 << 16)):
                    if self.flips and b"model.safetensors" in head and len(piece) > 20_000:
                        self.flips -= 1
                        piece = piece[:10_000] + bytes([piece[10_000] ^ 1]) + piece[10_001:]
                    self._send(server, piece, found)
                if found is None:
                    back.join()
                else:
                    client.shutdown(socket.SHUT_RDWR)

    _left = 0

    def _send(self, server: socket.socket, piece: bytes, limit: int | None) -> None:
        if limit is not None:
            if piece.find(b"\r\n\r\n") >= 0:
                self._left = limit
            self._left -= len(piece)
        self.num_bytes += len(piece)
        server.sendall(piece)

    def _copy(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while piece := server.recv(1 << 16):
                client.sendall(piece)
            client.shutdown(socket.SHUT_RDWR)


def answer(status: str, code: str) -> bytes:
    """An error as S3 gives it."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code} of the test</Message></Error>".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


@contextmanager
def s3_server() -> Iterator[tuple[str, int]]:
    """Host and port of moto's server, with an empty bucket `bucket`."""
    import logging

    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        client = boto3.client(
            "s3",
            endpoint_url=f"http://{host}:{port}",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="bucket")
        yield host, port
    finally:
        server.stop()
