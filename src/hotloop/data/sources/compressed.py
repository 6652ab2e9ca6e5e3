"""Compressed files as streams that are read from their start, in bounded memory."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from typing import Any, BinaryIO, Protocol

from hotloop.core.errors import UsageError
from hotloop.data.sources.unit import ReadOptions, Report

BLOCK_BYTES = 64 << 10
ZSTD_BLOCK_BYTES = 16 << 10
"""Less, because its decoder gives all at once that a block holds."""
ZSTD_WINDOW_BYTES = 1 << 31
DAMAGED = "rest of a damaged compressed file"


class _Decoder(Protocol):
    """As `lzma.LZMADecompressor` has it: one compressed stream of a file that may hold several."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class Decompressed(io.RawIOBase):
    """The text of a compressed file. Raises `UsageError` where it is damaged or ends too early;
    with `skip_bad` the text ends there, and that is counted."""

    def __init__(
        self, file: BinaryIO, kind: str, name: str, options: ReadOptions, report: Report
    ) -> None:
        self._file = file
        self._kind = kind
        self._name = name
        self._options = options
        self._report = report
        self._failures = failures_of(kind)
        self._counted = False
        self.seek(0)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """To the start only."""
        assert offset == 0
        assert whence == io.SEEK_SET
        self._file.seek(0)
        self._decoder = new_decoder(self._kind)
        self._read_bytes = self._text_bytes = 0
        self._pending = b""
        self._over = False
        return 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def readinto(self, buffer: Any) -> int:
        block = self.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; none at the end."""
        assert size > 0
        while not self._over:
            if self._decoder.needs_input and not self._pending and not self._decoder.eof:
                self._pending = self._file.read(
                    ZSTD_BLOCK_BYTES if self._kind == "zst" else BLOCK_BYTES
                )
                self._read_bytes += len(self._pending)
                if not self._pending:
                    self._finish()
                    break
            if self._decoder.eof and not self._next_stream():
                continue
            if block := self._decompress(size):
                self._text_bytes += len(block)
                return block
        return b""

    def _decompress(self, size: int) -> bytes:
        given, self._pending = self._pending, b""
        try:
            return self._decoder.decompress(given, size)
        except self._failures as error:
            self._damaged(f"damaged {self._kind}: {error}", error)
            return b""

    def _next_stream(self) -> bool:
        """After the end of a stream: begin the next one. False if there is nothing yet."""
        rest = self._decoder.unused_data or self._pending
        if not rest:
            self._pending = self._file.read(BLOCK_BYTES)
            self._read_bytes += len(self._pending)
            if not self._pending:
                self._over = True
            return False
        rest = rest.lstrip(b"\0")  # padding
        self._pending = rest
        if rest:
            self._decoder = new_decoder(self._kind)
            return True
        self._decoder = _Padding()
        return False

    def _finish(self) -> None:
        """The compressed bytes have ended within a stream."""
        self._over = True
        self._damaged(f"truncated {self._kind}", None)

    def _damaged(self, what: str, error: Exception | None) -> None:
        self._over = True
        what = (
            f"{what}, after {self._read_bytes:,} compressed bytes "
            f"({self._text_bytes:,} bytes of text)"
        )
        if not self._options.skip_bad:
            raise UsageError(
                what,
                where=self._name,
                do="fetch it again, or keep what can be read of it with --skip-bad",
            ) from error
        if not self._counted:
            self._report.add(DAMAGED, f"{self._name}: {what}")
        self._counted = True


class _Padding:
    """Between two streams."""

    eof = True
    needs_input = True
    unused_data = b""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        raise AssertionError("no stream has begun")


class _Gzip:
    """zlib's object with the interface of the others."""

    def __init__(self) -> None:
        self._object = zlib.decompressobj(wbits=31)
        self._tail = b""

    @property
    def eof(self) -> bool:
        return self._object.eof

    @property
    def needs_input(self) -> bool:
        return not self._tail

    @property
    def unused_data(self) -> bytes:
        return self._object.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        block = self._object.decompress(self._tail + data, max_length)
        self._tail = self._object.unconsumed_tail
        return block


class _Zstd:
    def __init__(self) -> None:
        self._object: Any = (
            _zstandard().ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES).decompressobj()
        )
        self._ready = memoryview(b"")

    @property
    def eof(self) -> bool:
        return bool(self._object.eof) and not self._ready

    @property
    def needs_input(self) -> bool:
        return not self._ready

    @property
    def unused_data(self) -> bytes:
        return bytes(self._object.unused_data)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        if data:
            self._ready = memoryview(self._object.decompress(data))
        block, self._ready = self._ready[:max_length], self._ready[max_length:]
        return bytes(block)


def new_decoder(kind: str) -> _Decoder:
    if kind == "gz":
        return _Gzip()
    if kind == "xz":
        return lzma.LZMADecompressor()
    if kind == "bz2":
        return bz2.BZ2Decompressor()
    assert kind == "zst"
    return _Zstd()


def failures_of(kind: str) -> tuple[type[Exception], ...]:
    """What a decoder raises for damaged bytes."""
    if kind == "zst":
        return (_zstandard().ZstdError,)
    return {"gz": (zlib.error,), "xz": (lzma.LZMAError,), "bz2": (OSError, ValueError)}[kind]


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise UsageError(
            "reading .zst needs the package zstandard", do="pip install 'hotloop[zstd]'"
        ) from error
    return zstandard
