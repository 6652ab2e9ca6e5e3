"""Files behind a network: read by ranges, through drops, and never a byte lost."""

from __future__ import annotations

import gzip
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.data.sources import ReadOptions, Report, remote
from hotloop.data.sources.plan import plan
from hotloop.data.sources.read import read_unit

TEXT = "".join(f"line {n} of a remote file\n" for n in range(20_000))
RECORDS = "".join(json.dumps({"text": f"record {n}"}) + "\n" for n in range(5_000))
FILES = {
    "/a.txt": TEXT.encode(),
    "/a.jsonl": RECORDS.encode(),
    "/a.jsonl.gz": gzip.compress(RECORDS.encode()),
    "/empty.txt": b"",
}


class Server(ThreadingHTTPServer):
    """Serves `files`; `drops` more answers end in their middle."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = dict(FILES)
        self.ranges = True
        self.lengths = True
        self.drops = 0
        self.tag = "one"
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        content = self.server.files.get(self.path.partition("?")[0])
        if content is None:
            self.send_error(404)
            return
        asked = self.headers.get("Range") if self.server.ranges else None
        self.server.requests.append(str(asked))
        body = content
        if asked is not None and content:
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            body = content[int(begin) : int(end) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end}/{len(content)}")
        elif asked is not None:
            self.send_error(416)
            return
        else:
            self.send_response(200)
        self.send_header("ETag", self.server.tag)
        if self.server.lengths:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if len(body) > 1 and self.server.drops:
            self.server.drops -= 1
            body = body[: len(body) // 2]
            self.close_connection = True
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(remote, "RETRY_DELAYS_S", (0.0, 0.0, 0.0))
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ["/a.txt", "/a.jsonl", "/a.jsonl.gz"])
@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("drops", [0, 3])
def test_documents_are_those_of_the_local_file(
    tmp_path: Path, read, server: Server, name: str, ranges: bool, drops: int
) -> None:
    (tmp_path / name[1:]).write_bytes(FILES[name])
    local = [d.text for d in read(tmp_path / name[1:])[0]]
    server.ranges = ranges
    planned = plan([server.url + name])
    server.drops = drops
    found = [d.text for u in planned.units for d in read_unit(u, ReadOptions(), Report())]
    assert found == local
    assert server.drops == 0


@pytest.mark.parametrize("name", ["/a.txt", "/a.jsonl.gz", "/empty.txt"])
def test_file_of_a_server_that_says_no_size(
    tmp_path: Path, read, server: Server, name: str
) -> None:
    (tmp_path / name[1:]).write_bytes(FILES[name])
    server.ranges = server.lengths = False
    found, report = read(server.url + name)
    assert [d.text for d in found] == [d.text for d in read(tmp_path / name[1:])[0]]
    assert report.counts.total() == (name == "/empty.txt")


def test_url_with_a_query_is_of_the_format_of_its_path(read, server: Server) -> None:
    assert len(read(f"{server.url}/a.jsonl?token=x.txt")[0]) == 5_000


def test_large_file_is_cut_into_units(
    read, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read(server.url + "/a.jsonl")[0]
    monkeypatch.setattr(sys.modules[plan.__module__], "REMOTE_UNIT_BYTES", 10_000)
    assert len(plan([server.url + "/a.jsonl"]).units) == len(RECORDS) // 10_000 + 1
    assert read(server.url + "/a.jsonl")[0] == whole


@pytest.mark.parametrize("ranges", [True, False])
def test_server_that_goes_away_ends_with_an_error(server: Server, ranges: bool) -> None:
    server.ranges = ranges
    server.files["/a.txt"] = FILES["/a.txt"] * 20  # more than is read ahead
    planned = plan([server.url + "/a.txt"])
    documents = read_unit(planned.units[0], ReadOptions(skip_bad=True), Report())
    next(documents)
    server.shutdown()
    server.server_close()
    with pytest.raises(EnvironmentFailed, match="failed 4 times at byte") as caught:
        list(documents)
    assert caught.value.where == server.url + "/a.txt"


def test_server_that_is_not_there_is_an_error_also_with_skip_bad(server: Server, read) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises(EnvironmentFailed, match="failed 4 times at byte 0"):
        read(server.url + "/a.txt", skip_bad=True)


def test_file_that_changes_on_the_server_is_refused(server: Server) -> None:
    planned = plan([server.url + "/a.txt"])
    server.tag = "two"
    with pytest.raises(UsageError, match="changed while it was read"):
        list(read_unit(planned.units[0], ReadOptions(), Report()))


@pytest.mark.parametrize("ranges", [True, False])
def test_file_that_changes_between_two_answers_is_refused_at_once(
    server: Server, ranges: bool
) -> None:
    server.ranges = ranges
    server.files["/a.txt"] = FILES["/a.txt"] * 20  # more than is read ahead
    documents = read_unit(plan([server.url + "/a.txt"]).units[0], ReadOptions(), Report())
    found = [next(documents).text]
    server.tag = "two"
    server.drops = not ranges  # without ranges, only a drop asks again
    with pytest.raises(UsageError, match="changed while it was read"):
        found.extend(document.text for document in documents)
    assert not ranges or len("".join(found)) < 5 << 20


def test_missing_file_is_refused(read, server: Server) -> None:
    with pytest.raises(UsageError, match="404"):
        read(server.url + "/none.txt")


def test_empty_remote_file_is_counted(read, server: Server) -> None:
    assert read(server.url + "/empty.txt")[1].counts == {"empty": 1}


def test_parquet_of_a_server_without_ranges_is_refused(read, server: Server) -> None:
    server.files["/a.parquet"] = b"PAR1"
    server.ranges = False
    with pytest.raises(UsageError, match="gives no ranges"):
        read(server.url + "/a.parquet")


def test_file_url_is_the_file(tmp_path: Path, read) -> None:
    path = tmp_path / "a b.txt"
    path.write_text("here")
    assert [d.text for d in read(path.as_uri())[0]] == ["here"]


@pytest.fixture
def memory() -> Iterator[str]:
    """A directory of fsspec's file system in memory."""
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    for name, content in FILES.items():
        system.pipe(f"/corpus{name}", content)
    system.pipe("/corpus/deep/.hidden/x.txt", b"no")
    system.pipe("/corpus/deep/b.md", b"deep")
    yield "memory://corpus"
    system.rm("/corpus", recursive=True)


def test_file_systems_of_fsspec(tmp_path: Path, read, memory: str) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    local = [d.text for d in read(tmp_path / "a.txt")[0]]
    assert [d.text for d in read(f"{memory}/a.txt")[0]] == local
    assert len(read(f"{memory}/*.jsonl*")[0]) == 10_000
    found, report = read(memory)
    assert [d.text for d in found] == [
        *[f"record {n}" for n in range(5_000)] * 2,
        TEXT,
        "deep",
    ]
    assert report.counts == {"empty": 1, "hidden": 1}
    assert [d.text for d in read(memory, include=("deep",))[0]] == ["deep"]
    with pytest.raises(UsageError, match="no such source"):
        read(f"{memory}/none.txt")


def test_parquet_through_fsspec(tmp_path: Path, read, memory: str) -> None:
    pa = pytest.importorskip("pyarrow")
    import fsspec
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "a.parquet")
    fsspec.filesystem("memory").pipe("/corpus/a.parquet", (tmp_path / "a.parquet").read_bytes())
    assert [d.text for d in read(f"{memory}/a.parquet")[0]] == ["a", "b"]


def test_file_system_that_drops_is_tried_again(
    read, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    monkeypatch.setattr(remote, "RETRY_DELAYS_S", (0.0, 0.0))
    kind = type(fsspec.filesystem("memory"))
    real, calls = kind.cat_file, []

    def shaky(self: object, path: str, start: int, end: int) -> bytes:
        calls.append(start)
        if len(calls) % 2:
            raise ConnectionResetError("gone")
        return bytes(real(self, path, start=start, end=start + (end - start + 1) // 2))

    planned = plan([f"{memory}/a.jsonl"])
    monkeypatch.setattr(kind, "cat_file", shaky)
    found = [d.text for u in planned.units for d in read_unit(u, ReadOptions(), Report())]
    assert found == [f"record {n}" for n in range(5_000)]
    assert len(calls) > 4


@pytest.mark.parametrize(
    ("url", "message"), [("s3://bucket/a.txt", "s3fs"), ("nosuch://a/b.txt", "nosuch")]
)
def test_missing_package_is_named(read, url: str, message: str) -> None:
    if message == "s3fs":
        try:
            import s3fs  # noqa: F401
        except ImportError:
            pass
        else:
            pytest.skip("s3fs is installed")
    with pytest.raises(UsageError) as caught:
        read(url)
    assert message in str(caught.value)
