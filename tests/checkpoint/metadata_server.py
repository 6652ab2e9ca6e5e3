"""A local HTTP server that speaks as the metadata servers of EC2, GCE and Azure do."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Metadata:
    """What the server says; `asked` are the requests it had."""

    port: int = 0
    texts: dict[str, str] = field(default_factory=dict)
    """By path, without the query; what is not here is 404."""
    machine: str = "worker_0"
    tokens: int = 0
    """EC2's session tokens so far; only the newest is taken."""
    status: int | None = None
    """Instead of every answer."""
    asked: list[str] = field(default_factory=list)

    def say(self, path: str, value: Any) -> None:
        self.texts[path] = value if isinstance(value, str) else json.dumps(value)


EC2_ACTION = "/latest/meta-data/spot/instance-action"
EC2_ADVICE = "/latest/meta-data/events/recommendations/rebalance"
GCE_PREEMPTED = "/computeMetadata/v1/instance/preempted"
GCE_EVENT = "/computeMetadata/v1/instance/maintenance-event"
AZURE_EVENTS = "/metadata/scheduledevents"


@contextmanager
def served() -> Iterator[Metadata]:
    metadata = Metadata(texts={GCE_PREEMPTED: "FALSE", GCE_EVENT: "NONE"})
    metadata.say(AZURE_EVENTS, {"DocumentIncarnation": 1, "Events": []})

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def answer(self, status: int, text: str = "", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def do_PUT(self) -> None:
            metadata.asked.append(f"PUT {self.path}")
            lasts = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if self.path != "/latest/api/token" or not lasts.isdigit() or metadata.status:
                return self.answer(metadata.status or 400)
            metadata.tokens += 1
            self.answer(200, f"token {metadata.tokens}")

        def do_GET(self) -> None:
            metadata.asked.append(f"GET {self.path}")
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            text = metadata.texts.get(parts.path)
            if metadata.status is not None:
                self.answer(metadata.status)
            elif parts.path.startswith("/latest/"):
                good = self.headers.get("X-aws-ec2-metadata-token") == f"token {metadata.tokens}"
                self.answer(401 if not good else 200 if text else 404, text or "")
            elif parts.path.startswith("/computeMetadata/"):
                if self.headers.get("Metadata-Flavor") != "Google":
                    return self.answer(403)
                until = time.monotonic() + int(query.get("timeout_sec", ["60"])[0])
                seen = query.get("last_etag", [""])[0]
                while "wait_for_change" in query and time.monotonic() < until:
                    text = metadata.texts[parts.path]
                    if f"{hash(text):x}" != seen:
                        break
                    time.sleep(0.01)
                etag = f"{hash(text):x}"
                self.answer(200, f"{text}\n", Metadata_Flavor="Google", ETag=etag)
            elif parts.path.startswith("/metadata/"):
                if self.headers.get("Metadata") != "true" or "api-version" not in query:
                    return self.answer(400)
                own = metadata.machine if parts.path == "/metadata/instance/compute/name" else text
                self.answer(200 if own else 404, own or "")
            else:
                self.answer(404)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    metadata.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield metadata
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
