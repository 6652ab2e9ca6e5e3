"""Plain text cut at separators: the same documents however the file is cut into ranges.

What a separator covers belongs to no document, and a document is what stands between. Occurrences
that overlap cover their union, so that whether a byte is covered depends only on the bytes
around it and not on where reading began. A document belongs to the unit in whose range it begins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

from hotloop.data.sources.decode import decode
from hotloop.data.sources.documents import long_document
from hotloop.data.sources.text import read_exactly
from hotloop.data.sources.unit import (
    BLANK_LINE,
    PIECE_BYTES,
    Document,
    ReadOptions,
    Report,
    Unit,
)

BLOCK_BYTES = 1 << 20
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")

Find = Callable[[bytes, int], tuple[int, int] | None]


def read_whole(
    file: BinaryIO, unit: Unit, options: ReadOptions, report: Report
) -> Iterator[Document]:
    """The file as one document."""

    def blocks() -> Iterator[bytes]:
        while block := file.read(BLOCK_BYTES):
            yield block

    yield from long_document(
        blocks(), name=unit.name, offset=0, origin=unit.name, options=options, report=report
    )


def read_separated(
    file: BinaryIO, unit: Unit, options: ReadOptions, report: Report
) -> Iterator[Document]:
    """The documents that begin in the unit's range."""
    assert options.separator is not None
    text = _Text(file, unit, options.separator)
    counts_empty = options.separator != BLANK_LINE
    for start, body in text.documents():
        origin = f"{unit.name}@{start}" if start else unit.name
        if body is None:
            yield from long_document(
                text.blocks(),
                name=unit.name,
                offset=start,
                origin=origin,
                options=options,
                report=report,
            )
        elif body or counts_empty:
            # Documents may be short and many: the common case without a call.
            try:
                found = body.decode() if start else None
            except UnicodeDecodeError:
                found = None
            if found is None:
                found = decode(body, options, report, name=unit.name, offset=start, origin=origin)
            if found is not None:
                yield Document(found, origin)


class _Text:
    """A window that moves over the file. Offsets count from the file's start."""

    def __init__(self, file: BinaryIO, unit: Unit, separator: str) -> None:
        self._file = file
        self._begin, self._end = unit.begin, unit.end
        self._find, self._longest = _finder(separator)
        self._base = max(unit.begin - self._longest, 0)
        """Offset of the window."""
        if self._base:
            file.seek(self._base)
        self._window = b""
        self._search = 0
        """In the window: where the next separator may begin."""
        self._at_end = False
        self._start: int | None = None if unit.begin else 0
        """Offset behind the last separator, where a document begins; `None` before the first."""

    def documents(self) -> Iterator[tuple[int, bytes | None]]:
        """(offset, bytes) of each; for a long one `None`: then exhaust `blocks` before going on."""
        while True:
            start = self._start
            found = self._find(self._window, self._search)
            # One that begins before `start` overlaps the separator before it and prolongs it.
            if start is not None and (found is None or self._base + found[0] >= start):
                if self._end is not None and start >= self._end and start:
                    return
                if start >= self._begin and found is not None:
                    yield start, self._window[start - self._base : found[0]]
            if found is not None:
                self._start = self._base + found[1]
                self._search = found[0] + 1
            elif self._at_end:
                # Nothing behind the last separator is no document, but an empty file is one.
                if start is not None and start >= self._begin:
                    body = self._window[start - self._base :]
                    if body or not start:
                        yield start, body
                return
            else:
                self._search = max(self._search, len(self._window) - self._longest + 1)
                mine = start is not None and start >= self._begin
                keep = (
                    min(self._search, start - self._base)
                    if mine and start is not None
                    else self._search
                )
                if self._search - keep > PIECE_BYTES and start is not None:
                    yield start, None
                else:
                    self._fill(keep)

    def blocks(self) -> Iterator[bytes]:
        """The document of any length that begins at `_start`; and move behind it."""
        assert self._start is not None
        at = self._start - self._base
        while (found := self._find(self._window, self._search)) is None and not self._at_end:
            self._search = max(self._search, len(self._window) - self._longest + 1)
            yield self._window[at : self._search]
            self._fill(self._search)
            at = 0
        stop, end = found or (len(self._window), len(self._window))
        yield self._window[at:stop]
        self._start = self._base + end
        self._search = min(stop + 1, end)

    def _fill(self, keep: int) -> None:
        """Read on; the window goes on from `keep`."""
        block = read_exactly(self._file, BLOCK_BYTES)
        self._at_end = len(block) < BLOCK_BYTES
        self._window = self._window[keep:] + block
        self._base += keep
        self._search -= keep


def _finder(separator: str) -> tuple[Find, int]:
    """How to find the next occurrence, as (begin, end), and the length of the longest."""
    if separator == BLANK_LINE:

        def find_blank(window: bytes, begin: int) -> tuple[int, int] | None:
            match = _BLANK_LINE.search(window, begin)
            return match.span() if match else None

        return find_blank, 4
    literal = separator.encode()

    def find(window: bytes, begin: int) -> tuple[int, int] | None:
        at = window.find(literal, begin)
        return (at, at + len(literal)) if at >= 0 else None

    return find, len(literal)
