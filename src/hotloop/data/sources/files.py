"""Opening what a unit names, through its compression, and noticing that it has changed.

The standard library's own compressed files do not serve: those for xz and bz2 end without a word where damage begins
behind a first stream, and zstandard's where the file is cut off.
"""

from __future__ import annotations

import bz2
import hashlib
import io
import lzma
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hotloop.core.errors import EnvironmentFailed, UsageError, importing
from hotloop.data.sources import STANDARD_INPUT, ReadOptions, Unit, is_url
from hotloop.data.sources.documents import UnitReader
from hotloop.data.sources.remote import READ_AHEAD_BYTES, changed, remote_file

BUFFER_BYTES = 256 << 10


@contextmanager
def opened(reader: UnitReader) -> Iterator[io.BufferedReader]:
    """The bytes of a unit's file, uncompressed.

    Raises `UsageError` if it cannot be read or is not as it was planned, also if that shows only
    when all is read; `EnvironmentFailed` if the network fails.
    """
    unit, options = reader.unit, reader.options
    with _stored(unit.name, options) as file:
        _check(unit)
        try:
            if unit.compression is None:
                yield file
            else:
                yield io.BufferedReader(Decompressed(file, reader), BUFFER_BYTES)
        except UsageError:
            # What looks malformed may be the end of a file that is being written.
            _check(unit)
            raise
        except OSError as error:
            raise cannot_read(unit.name, error) from error
        _check(unit)


def _stored(name: str, options: ReadOptions) -> io.BufferedReader:
    if is_url(name):
        return io.BufferedReader(remote_file(name), READ_AHEAD_BYTES)
    path = options.standard_input if name == STANDARD_INPUT else name
    assert path is not None
    try:
        return io.BufferedReader(io.FileIO(path), BUFFER_BYTES)
    except OSError as error:
        raise cannot_read(name, error) from error


def _check(unit: Unit) -> None:
    """By its name: a file that was replaced is as bad as one that was written to."""
    name = unit.name
    if unit.state is None or name == STANDARD_INPUT:  # whose copy is ours alone
        return
    if is_url(name):
        same = remote_file(name).state in (None, unit.state)
    else:
        try:
            same = state_of(Path(name).stat()) == unit.state
        except FileNotFoundError:
            same = False  # no reason to leave it out with --skip-bad
        except OSError as error:
            raise cannot_read(name, error) from error
    if not same:
        raise changed(name)


def state_of(status: os.stat_result) -> tuple[int, int]:
    return (status.st_size, status.st_mtime_ns)


def cannot_read(name: str, error: OSError) -> UsageError:
    reason = error.strerror or str(error) or type(error).__name__
    return UsageError(f"cannot read: {reason}", where=name)


def spool_standard_input(directory: Path) -> Path:
    """Copy standard input to a file, because it is read more than once and by several processes.

    Raises `UsageError` if nothing is piped in, `EnvironmentFailed` if the disk is full.
    """
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        raise UsageError(
            "nothing comes in by standard input", do="pipe the text in, or name a file"
        )
    path = directory / "standard-input"
    try:
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise EnvironmentFailed(
            f"cannot keep standard input: {error.strerror}", where=str(path), do="free some space"
        ) from error
    return path


def content_state(path: str) -> tuple[int, int]:
    """(size, hash of the content) of a file: the same text piped in again is the same source."""
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "blake2b").digest()
            return (os.fstat(file.fileno()).st_size, int.from_bytes(digest[:6], "little"))
    except OSError as error:
        raise cannot_read(STANDARD_INPUT, error) from error


BLOCK_BYTES = {"gz": 64 << 10, "xz": 64 << 10, "bz2": 64 << 10, "zst": 16 << 10}
"""Read at once; little of zst, because its decoder gives at once all that a block holds."""
TEXT_BYTES = 1 << 20
"""At most this much at once from the others: a block of bz2, which is checked before it is given."""
ZSTD_WINDOW_BYTES = 1 << 31
DAMAGED = "rest of a damaged compressed file"


class Decompressed(io.RawIOBase):
    """The text of a compressed file. Raises `UsageError` where it is damaged or ends too early;
    with `skip_bad` the text ends there, and that is counted."""

    def __init__(self, file: io.BufferedReader, reader: UnitReader) -> None:
        assert reader.unit.compression is not None
        self._file = file
        self._kind = reader.unit.compression
        self._reader = reader
        self._counted = False
        self.seek(0)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """To the start only."""
        assert offset == 0
        assert whence == io.SEEK_SET
        self._file.seek(0)
        self._at = 0
        self._ready = memoryview(b"")
        self._blocks = self._decompressed()
        return 0

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._ready = memoryview(block)
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        self._at += size
        return size

    def _decompressed(self) -> Iterator[bytes]:
        """The text of one stream after another, with any number of zero bytes between them."""
        new_decoder, failures = _decoding(self._kind)
        bound = () if self._kind == "zst" else (TEXT_BYTES,)
        block_bytes = BLOCK_BYTES[self._kind]
        decoder, text, text_bytes = new_decoder(), b"", 0
        while True:
            given = b""
            if decoder.eof:
                given = decoder.unused_data.lstrip(b"\0")
                while not given and (block := self._file.read(block_bytes)):
                    given = block.lstrip(b"\0")
                if not given:
                    return
                decoder = new_decoder()
            elif getattr(decoder, "needs_input", True):  # zlib's does not say
                given = getattr(decoder, "unconsumed_tail", b"") or self._file.read(block_bytes)
                if not given and len(text) < TEXT_BYTES:
                    return self._damaged(f"truncated {self._kind}", text_bytes, None)
            try:
                text = decoder.decompress(given, *bound)
            except failures as error:
                return self._damaged(f"damaged {self._kind}: {error}", text_bytes, error)
            text_bytes += len(text)
            yield text

    def _damaged(self, what: str, text_bytes: int, error: Exception | None) -> None:
        what += f", after {self._file.tell():,} compressed bytes ({text_bytes:,} bytes of text)"
        if not self._reader.options.skip_bad:
            do = "fetch it again, or keep what can be read of it with --skip-bad"
            raise UsageError(what, where=self._reader.unit.name, do=do) from error
        if not self._counted:
            self._reader.report.add(DAMAGED, f"{self._reader.unit.name}: {what}")
        self._counted = True  # once, also if it is read again from the start


def _decoding(kind: str) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """How to begin a stream, and what damaged bytes raise."""
    if kind == "gz":
        return lambda: zlib.decompressobj(wbits=31), (zlib.error,)
    if kind == "xz":
        return lzma.LZMADecompressor, (lzma.LZMAError,)
    if kind == "bz2":
        return bz2.BZ2Decompressor, (OSError, ValueError)
    with importing("zstd", "reading .zst needs the package zstandard"):
        import zstandard
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
    return decompressor.decompressobj, (zstandard.ZstdError,)
