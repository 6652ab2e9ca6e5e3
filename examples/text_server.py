"""Serves text over HTTP the way a distant object store does: every answer takes its time.

    python examples/text_server.py --latency 0.1

Prints its address, and serves until its standard input is closed. `/documents/3.txt` is a piece of
the standard library's sources, `/documents/3.json` says where it is from.
"""

import argparse
import json
import sys
import sysconfig
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LINES = 40


def documents(number):
    """Pieces of source files, the same ones every time."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for start in range(0, len(lines) - LINES, LINES):
            found.append((path.name, start + 1, "\n".join(lines[start : start + LINES])))
            if len(found) == number:
                return found
    return found


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        time.sleep(self.server.latency)  # the way there and back, and the store's own disks
        name = self.path.removeprefix("/documents/")
        stem, _, kind = name.partition(".")
        if not stem.isdigit() or int(stem) >= len(self.server.documents) or kind not in "txt json":
            self.send_error(404)
            return
        file, line, text = self.server.documents[int(stem)]
        body = text if kind == "txt" else json.dumps({"file": file, "line": line})
        content = body.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = True

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--latency", type=float, default=0.1, help="seconds per request")
    args = parser.parse_args()
    server = Server(("127.0.0.1", 0), Handler)
    server.documents, server.latency = documents(args.documents), args.latency
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
