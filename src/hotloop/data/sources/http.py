"""http:// and https://, with the standard library."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.data.sources.remote import (
    RemoteFile,
    changed,
    state_from,
    wait_or_fail,
)

TIMEOUT_S = 60.0
BLOCK_BYTES = 1 << 20


def http_file(url: str) -> RemoteFile:
    """What the server says of a file. Raises `UsageError` where it refuses it."""
    with _answer(url, "bytes=0-0") as answer:
        return _described(url, answer)


def _described(url: str, answer: Any) -> RemoteFile:
    total = answer.headers.get("Content-Range", "").rpartition("/")[2]
    ranges = answer.status == http.client.PARTIAL_CONTENT and total.isdigit()
    length = answer.headers.get("Content-Length", "")
    size = int(total) if ranges else int(length) if length.isdigit() else None
    state = _state(answer, size)

    def fetch(begin: int, end: int) -> bytes:
        with _request(url, f"bytes={begin}-{end - 1}") as part:
            if part.status != http.client.PARTIAL_CONTENT or _total(part) != size:
                raise changed(url)
            if _state(part, size) != state:
                raise changed(url)
            return _some(part, end - begin)

    def stream() -> Iterator[bytes]:
        with _request(url, None) as whole:
            if _state(whole, size) != state:
                raise changed(url)
            while block := whole.read(BLOCK_BYTES):
                yield block

    return RemoteFile(url, size, state, fetch if ranges else None, stream)


def _answer(url: str, ranges: str) -> Any:
    failures = 0
    while True:
        try:
            return _request(url, ranges)
        except (OSError, http.client.HTTPException) as error:
            wait_or_fail(url, 0, failures, error)
            failures += 1


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


def _some(answer: Any, count: int) -> bytes:
    """What comes before the connection drops: nothing that was received is lost."""
    try:
        return bytes(answer.read(count))
    except http.client.IncompleteRead as error:
        return bytes(error.partial)


def _total(answer: Any) -> int | None:
    total = answer.headers.get("Content-Range", "").rpartition("/")[2]
    return int(total) if total.isdigit() else None


def _state(answer: Any, size: int | None) -> tuple[int, int] | None:
    return state_from(size, answer.headers.get("ETag"), answer.headers.get("Last-Modified"))
