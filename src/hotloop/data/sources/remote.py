"""Files behind a network: read by ranges, tried again when the connection drops.

http and https go through the standard library: fsspec's file system for them needs one more package, does not notice
that a file has changed between two ranges, and cannot go on after a drop where a server gives no ranges. All other
protocols go through fsspec.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import Any, TypeVar

from hotloop.core.errors import EnvironmentFailed, UsageError

TIMEOUT_S = 60.0
BLOCK_BYTES = 1 << 20
READ_AHEAD_BYTES = 4 << 20
RETRY_DELAYS_S = (0.2, 1.0, 3.0, 10.0)
"""Waited before each further attempt; a request that brings something starts anew."""
_TAGS = ("ETag", "etag", "LastModified", "mtime", "updated", "modified", "created", "md5Hash")

State = tuple[int, int]
T = TypeVar("T")


class RemoteFile(io.RawIOBase):
    """Raises `UsageError` where it is not there or refused, `EnvironmentFailed` without a network."""

    url: str
    size: int | None
    state: State | None
    """Size, and a hash of the tag or time that the server gives."""
    ranges: bool
    """Reads may begin anywhere without reading what stands before."""
    _at = 0

    def fetch(self, begin: int, end: int) -> bytes:
        """The bytes, or some of them; none only at the end of a file of unknown size."""
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        ends = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size or 0}
        self._at = ends[whence] + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = len(buffer) if self.size is None else min(len(buffer), self.size - self._at)
        if count <= 0:
            return 0

        def fetch() -> bytes:
            block = self.fetch(self._at, self._at + count)[:count]
            if not block and self.size is not None:
                raise EOFError("the connection closed early")
            return block

        block = _tried(self.url, self._at, fetch)
        buffer[: len(block)] = block
        self._at += len(block)
        return len(block)


def remote_file(url: str) -> RemoteFile:
    return _HttpFile(url) if _is_http(url) else _FsspecFile(url)


def remote_names(url: str) -> Iterator[tuple[str, PurePosixPath | None]]:
    """(URL, path in the directory that was named, if one was) of the files behind a URL, sorted."""
    if _is_http(url):
        yield url, None
        return
    system, path = _file_system(url)
    if any(sign in path for sign in "*?["):
        found = _tried(url, 0, partial(system.glob, path, detail=True), system)
        names, root = [name for name in found if found[name]["type"] != "directory"], None
    elif _tried(url, 0, partial(system.isdir, path), system):
        names, root = _tried(url, 0, partial(system.find, path), system), PurePosixPath(path)
    else:
        yield url, None
        return
    for name in sorted(names):
        inside = PurePosixPath(name).relative_to(root) if root is not None else None
        yield system.unstrip_protocol(name), inside


def changed(name: str) -> UsageError:
    return UsageError(
        "the source changed while it was read",
        where=name,
        do="wait until nothing writes to it, and run the same command again",
    )


class _HttpFile(RemoteFile):
    def __init__(self, url: str) -> None:
        self.url = url
        self._body: Any = None
        self._body_at = 0
        with _tried(url, 0, partial(_request, url, "bytes=0-0")) as answer:
            self.ranges, self.size, self.state = self._described = _described(answer)

    def fetch(self, begin: int, end: int) -> bytes:
        if self.ranges:
            with self._answer(f"bytes={begin}-{end - 1}") as part:
                return _received(part, end - begin)
        try:
            if self._body is None or self._body_at != begin:
                self._body, self._body_at = self._answer(None), 0
            while self._body_at < begin:
                if not self._next(begin - self._body_at):
                    raise changed(self.url)
            return self._next(end - begin)
        except Exception:
            self._body = None  # begun again by the next attempt
            raise

    def _next(self, count: int) -> bytes:
        block = _received(self._body, min(count, BLOCK_BYTES))
        if not block and self._body_at != (self.size or self._body_at):
            raise EOFError("the connection closed early")
        self._body_at += len(block)
        return block

    def _answer(self, ranges: str | None) -> Any:
        answer = _request(self.url, ranges)
        if _described(answer) != self._described:
            answer.close()
            raise changed(self.url)
        return answer


def _request(url: str, ranges: str | None) -> Any:
    """An open response. Raises `UsageError` for what another attempt would not change."""
    # A compressed transfer would make ranges and sizes meaningless.
    headers = {"User-Agent": "hotloop", "Accept-Encoding": "identity"}
    if ranges is not None:
        headers["Range"] = ranges
    try:
        request = urllib.request.Request(url, headers=headers)
        return urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        with error:
            if ranges == "bytes=0-0" and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                return _request(url, None)  # an empty file
            if error.code >= 500 or error.code in (408, 429):
                raise OSError(f"{error.code} {error.reason}") from error
            raise UsageError(f"the server says {error.code} {error.reason}", where=url) from error


def _described(answer: Any) -> tuple[bool, int | None, State | None]:
    """(whether there are ranges, size, state) of the file that an answer is about."""
    total = answer.headers.get("Content-Range", "").rpartition("/")[2]
    ranges = answer.status == http.client.PARTIAL_CONTENT and total.isdigit()
    size = total if ranges else answer.headers.get("Content-Length", "")
    known = int(size) if size.isdigit() else None
    tags = (answer.headers.get("ETag"), answer.headers.get("Last-Modified"))
    return ranges, known, _state(known, tags)


def _received(answer: Any, count: int) -> bytes:
    """What comes before the connection drops: nothing that was received is lost."""
    try:
        return bytes(answer.read(count))
    except http.client.IncompleteRead as error:
        return bytes(error.partial)


class _FsspecFile(RemoteFile):
    def __init__(self, url: str) -> None:
        self.url = url
        self._system, self._path = _file_system(url)
        info = _tried(url, 0, partial(self._system.info, self._path), self._system)
        self.size = info.get("size")
        self.ranges = self.size is not None
        self.state = _state(self.size, [info.get(tag) for tag in _TAGS])

    def fetch(self, begin: int, end: int) -> bytes:
        return bytes(self._system.cat_file(self._path, start=begin, end=end))


def _file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it."""
    import fsspec.core

    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        what = f"reading {url.partition('://')[0]}:// needs another package"
        raise UsageError(what, where=url, do=str(error)) from error
    except ValueError as error:
        raise UsageError(
            f"cannot read it: {error}", where=url, do="see the protocols fsspec knows"
        ) from error
    return system, str(path)


def _tried(url: str, at: int, request: Callable[[], T], system: Any = None) -> T:
    """The answer, also if the connection fails at first; `system` then forgets what it knew.

    Raises `UsageError` for what another attempt would not change, `EnvironmentFailed` after the last.
    """
    for delay in (*RETRY_DELAYS_S, None):
        try:
            if system is not None:
                system.invalidate_cache()
            return request()
        except UsageError:
            raise
        except FileNotFoundError as error:
            raise UsageError("no such source", where=url) from error
        except PermissionError as error:
            raise UsageError(f"no permission: {error}", where=url) from error
        except Exception as error:
            if delay is None:
                raise EnvironmentFailed(
                    f"the connection failed {len(RETRY_DELAYS_S) + 1} times at byte {at:,}: "
                    f"{str(error) or type(error).__name__}",
                    where=url,
                    do="run the same command again when the network is back: it goes on from there",
                ) from error
            time.sleep(delay)
    raise AssertionError


def _state(size: int | None, tags: Iterable[object]) -> State | None:
    if size is None:
        return None
    content = "\n".join(str(tag) for tag in tags if tag is not None)
    return size, int.from_bytes(hashlib.sha256(content.encode()).digest()[:6], "little")


def _is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))
