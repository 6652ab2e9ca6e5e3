"""Compressed files as streams that are read from their start, in bounded memory.

The standard library's own files do not serve: those for xz and bz2 end without a word where damage begins behind a
first stream, and zstandard's where the file is cut off.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.data.sources.unit_reader import UnitReader

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
    try:
        import zstandard
    except ImportError as error:
        raise UsageError(
            "reading .zst needs the package zstandard", do="pip install 'hotloop[zstd]'"
        ) from error
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
    return decompressor.decompressobj, (zstandard.ZstdError,)
