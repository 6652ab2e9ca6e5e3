"""Files behind a network: read by ranges, tried again when the connection drops."""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hotloop.core.errors import EnvironmentFailed, UsageError

READ_AHEAD_BYTES = 4 << 20
RETRY_DELAYS_S = (0.2, 1.0, 3.0, 10.0)
"""Waited before each further attempt; a request that brings something starts anew."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """What is known of a file, and how to read it."""

    name: str
    size: int | None
    state: tuple[int, int] | None
    """Size, and a hash of the tag or time that the server gives."""
    fetch: Callable[[int, int], bytes] | None
    """`fetch(begin, end)` gives the bytes, or some of them; `None` where there are no ranges."""
    stream: Callable[[], Iterator[bytes]] | None = None
    """All bytes from the start."""


class Remote(io.RawIOBase):
    """A file read by ranges. Raises `EnvironmentFailed` when it cannot be read any more."""

    def __init__(self, file: RemoteFile) -> None:
        assert file.fetch is not None
        assert file.size is not None
        self._file = file
        self._size = file.size
        self._at = 0
        self._ahead = b""
        self._ahead_at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            size = self._size - self._at
        size = min(size, self._size - self._at)
        if size <= 0:
            return b""
        begin = self._at - self._ahead_at
        if not 0 <= begin < len(self._ahead):
            end = min(self._at + max(size, READ_AHEAD_BYTES), self._size)
            self._ahead, self._ahead_at, begin = self._fetched(self._at, end), self._at, 0
        block = self._ahead[begin : begin + size]
        self._at += len(block)
        return block

    def readinto(self, buffer: Any) -> int:
        block = self.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)

    def _fetched(self, begin: int, end: int) -> bytes:
        fetch = self._file.fetch
        assert fetch is not None
        blocks: list[bytes] = []
        failures = 0
        while begin < end:
            try:
                block = fetch(begin, end)
                problem: Exception = EOFError("the connection closed early")
            except (UsageError, FileNotFoundError, PermissionError):
                raise
            except Exception as error:  # noqa: BLE001  (every file system has its own)
                block, problem = b"", error
            if block:
                blocks.append(block[: end - begin])
                begin += len(blocks[-1])
                failures = 0
            else:
                wait_or_fail(self._file.name, begin, failures, problem)
                failures += 1
        return b"".join(blocks)


class Streamed(io.RawIOBase):
    """A file of a server without ranges: after a drop it is read from its start, up to where it
    had come."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._at = 0
        self._failures = 0
        self._blocks: Iterator[bytes] | None = None
        self._rest = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """To the start only."""
        assert offset == 0
        assert whence == io.SEEK_SET
        self._at, self._blocks, self._rest = 0, None, b""
        return 0

    def read(self, size: int = -1) -> bytes:
        assert size > 0
        while not self._rest:
            try:
                if self._blocks is None:
                    self._blocks = self._from(self._at)
                self._rest = next(self._blocks, b"")
                problem: Exception = EOFError("the connection closed early")
                if not self._rest and self._file.size in (None, self._at):
                    return b""
            except UsageError:
                raise
            except Exception as error:  # noqa: BLE001  (http.client has many)
                problem = error
            if self._rest:
                self._failures = 0
            else:
                self._blocks = None
                wait_or_fail(self._file.name, self._at, self._failures, problem)
                self._failures += 1
        block, self._rest = self._rest[:size], self._rest[size:]
        self._at += len(block)
        return block

    def readinto(self, buffer: Any) -> int:
        block = self.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)

    def _from(self, at: int) -> Iterator[bytes]:
        assert self._file.stream is not None
        passed = 0
        for block in self._file.stream():
            if passed + len(block) > at:
                yield block[max(at - passed, 0) :]
            passed += len(block)


def wait_or_fail(name: str, at: int, failures: int, problem: Exception) -> None:
    """Before attempt number `failures` + 2. Raises `EnvironmentFailed` after the last."""
    if failures >= len(RETRY_DELAYS_S):
        raise EnvironmentFailed(
            f"the connection failed {failures + 1} times at byte {at:,}: "
            f"{str(problem) or type(problem).__name__}",
            where=name,
            do="run the same command again when the network is back: it goes on from there",
        ) from problem
    time.sleep(RETRY_DELAYS_S[failures])


def state_from(size: int | None, *tags: object) -> tuple[int, int] | None:
    """A state from a size and what else a server says of this version of a file."""
    if size is None:
        return None
    content = "\n".join(str(tag) for tag in tags if tag is not None)
    return size, int.from_bytes(hashlib.sha256(content.encode()).digest()[:6], "little")


def changed(name: str) -> UsageError:
    return UsageError(
        "the source changed while it was read",
        where=name,
        do="wait until nothing writes to it, and run the same command again",
    )
