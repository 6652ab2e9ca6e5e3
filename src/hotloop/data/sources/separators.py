"""Plain text cut at separators: the same documents however the file is cut into ranges.

What a separator covers belongs to no document, and a document is what stands between. Occurrences
that overlap cover their union, so that whether a byte is covered depends only on the bytes
around it and not on where reading began. A document belongs to the unit in whose range it begins.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from io import BufferedReader

from hotloop.data.sources.documents import long_document
from hotloop.data.sources.unit import (
    BLANK_LINE,
    PIECE_BYTES,
    WHOLE_FILE,
    Document,
    Unit,
)
from hotloop.data.sources.unit_reader import UnitReader

BLOCK_BYTES = 1 << 20


def read_separated(file: BufferedReader, reader: UnitReader) -> Iterator[Document]:
    """The documents that begin in the unit's range."""
    name, separator = reader.unit.name, reader.options.separator
    assert separator is not None
    if separator == WHOLE_FILE:
        blocks = iter(lambda: file.read(BLOCK_BYTES), b"")
        yield from long_document(blocks, reader, name, name, 0)
        return
    pattern, longest = re.compile(re.escape(separator.encode())), len(separator.encode())
    if separator == BLANK_LINE:
        pattern, longest = re.compile(rb"\r?\n\r?\n"), 4
    chunks = _chunks(file, reader.unit, pattern, longest)
    for start, body, more in chunks:
        origin = f"{name}@{start}" if start else name
        if more:
            yield from long_document(_rest(body, chunks), reader, name, origin, start)
        elif body or separator != BLANK_LINE:
            text = reader.decoded(body, reader.name, start)
            if text is not None:
                yield Document(text, origin)


Chunk = tuple[int, bytes, bool]


def _rest(body: bytes, chunks: Iterator[Chunk]) -> Iterator[bytes]:
    """The bytes of a document that begins with `body`, of which more follows."""
    yield body
    for _, body, more in chunks:
        yield body
        if not more:
            return


def _chunks(
    file: BufferedReader, unit: Unit, pattern: re.Pattern[bytes], longest: int
) -> Iterator[Chunk]:
    """(offset, bytes, whether more of the same document follows) of the unit's documents.

    `pattern` finds a separator, of at most `longest` bytes.
    """
    begin, end = unit.begin, sys.maxsize if unit.end is None else unit.end
    base = max(begin - longest, 0)  # the offset of the window
    file.seek(base)
    window, search, at_end = b"", 0, False  # no separator that was not seen begins before `search`
    start = -1 if begin else 0  # the offset behind the last separator; -1 before the first
    inside = False  # a document of which a chunk was given
    while inside or start < end:
        found = pattern.search(window, search)
        mine = start >= begin
        if found is not None:
            # One that begins before `start` overlaps the separator before it and prolongs it.
            if mine and base + found.start() >= start:
                yield start, window[start - base : found.start()], False
                inside = False
            start, search = base + found.end(), found.start() + 1
            continue
        if at_end:
            # Nothing behind the last separator is no document, but an empty file is one.
            body = window[start - base :] if mine else b""
            if mine and (body or not start or inside):
                yield start, body, False
            return
        search = max(search, len(window) - longest + 1)
        keep = min(search, start - base) if mine else search
        if search - keep > PIECE_BYTES:
            yield start, window[keep:search], True
            start, keep, inside = base + search, search, True
        block = file.read(BLOCK_BYTES)
        at_end = len(block) < BLOCK_BYTES
        window, base, search = window[keep:] + block, base + keep, search - keep
