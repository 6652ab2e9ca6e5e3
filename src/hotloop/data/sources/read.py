"""Units to documents: opens, reads by format, filters and counts. Plain text is read here, in pieces or cut at
separators: the same documents however the file is cut into ranges.

Pieces: a file is first cut into segments near every multiple of `SEGMENT_BYTES`, at a place that depends
only on the bytes just before the multiple; the pieces of a segment depend on nothing else.

Separators: what one covers belongs to no document, and a document is what stands between. Occurrences
that overlap cover their union, so that whether a byte is covered depends only on the bytes
around it and not on where reading began. A document belongs to the unit in whose range it begins.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BufferedReader

from hotloop.core.errors import UsageError
from hotloop.data.sources import (
    BLANK_LINE,
    PIECE_BYTES,
    UNIT_BYTES,
    WHOLE_FILE,
    Document,
    ReadOptions,
    Report,
    Unit,
)
from hotloop.data.sources.arrow import read_hub_rows, read_table
from hotloop.data.sources.documents import UnitReader, character_cut, long_document, wanted
from hotloop.data.sources.files import opened
from hotloop.data.sources.records import read_lines, read_rows

SEGMENT_BYTES = UNIT_BYTES
TREE_PIECE_BYTES = 1 << 20
"""Most bytes in a piece of a file in a directory."""
FILE_PIECES = 128
FILE_PIECE_BYTES = (4 << 10, 64 << 10)
"""Least and most bytes in a piece of a file given by itself; between them it makes `FILE_PIECES`."""


def file_piece_bytes(file: BufferedReader, unit: Unit) -> int:
    """The bound of the pieces of a file that is given by itself."""
    least, most = FILE_PIECE_BYTES
    if unit.compression is None and unit.state is not None:
        size = unit.state[0]
    else:
        # Pieces do not grow beyond this size, so that no more need be known of the text's.
        size = len(file.read(FILE_PIECES * most))
        file.seek(0)
    return min(max(size // FILE_PIECES, least), most)


def read_pieces(file: BufferedReader, reader: UnitReader, *, bound: int) -> Iterator[Document]:
    """The pieces, of at most `bound` bytes, of the segments that begin in the unit's range."""
    strict = reader.options.encoding_errors == "error"
    for start, held, end in _segments(file, reader.unit, bound):
        at, last = 0, False
        while not last:
            last = end - at <= bound
            cut = end if last else _piece_cut(held, at, at + bound)
            block, offset = held[at:cut], start + at
            origin = f"{reader.unit.name}@{offset}" if offset else reader.unit.name
            text = reader.decoded(block, reader.name, offset)
            if text is not None:
                known = block.isascii() or (strict and offset)  # no mark was taken away
                yield Document(text, origin, False, block if known else None)
            at = cut


def _piece_cut(text: bytes, begin: int, end: int) -> int:
    """The end of a piece that begins at `begin` and must end inside `text[:end]`.

    After a blank line in the second half, else after the last line, else between characters.
    """
    blank = text.rfind(b"\n\n", begin + (end - begin) // 2, end)
    if blank >= 0:
        return blank + 2
    line = text.rfind(b"\n", begin, end)
    if line >= 0:
        return line + 1
    return begin + character_cut(text[begin:end])


def _segments(file: BufferedReader, unit: Unit, window: int) -> Iterator[tuple[int, bytes, int]]:
    """The segments whose number times `SEGMENT_BYTES` lies in the unit's range.

    Each as its offset in the file, bytes that begin with it, and how many of them are its own.
    """
    number = -(-unit.begin // SEGMENT_BYTES)
    start, held = 0, b""
    if number:
        start = number * SEGMENT_BYTES - window
        file.seek(start)
        held = file.read(window)
        cut = _piece_cut(held, 0, window) if len(held) == window else len(held)
        start, held = start + cut, held[cut:]
    while unit.end is None or number * SEGMENT_BYTES < unit.end:
        number += 1
        high = number * SEGMENT_BYTES - start
        # One byte more shows whether the file goes on behind the segment.
        held += file.read(high + 1 - len(held))
        if len(held) <= high:
            yield start, held, len(held)
            return
        cut = _piece_cut(held, high - window, high)
        yield start, held, cut
        start, held = start + cut, held[cut:]


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


FileReader = Callable[[BufferedReader, UnitReader], Iterator[Document]]


def read_unit(unit: Unit, options: ReadOptions, report: Report) -> Iterator[Document]:
    """The documents of a unit, in order; empty ones are left out and counted.

    Close the iterator if you leave it early. Raises `UsageError` for what the options do not allow
    to leave out, and when the source is not as it was when it was planned.
    """
    reader = UnitReader(unit, options, report)
    return wanted(_read(reader), reader)


def _read(reader: UnitReader) -> Iterator[Document]:
    unit = reader.unit
    if unit.format == "hf":
        yield from read_hub_rows(reader)
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(opened(reader))
        except UsageError as error:
            if not reader.options.skip_bad or not isinstance(error.__cause__, OSError):
                raise
            if not unit.begin:
                reader.report.add("cannot be opened", f"{unit.name}: {error.what}")
            return
        yield from READERS[unit.format](file, reader)


def _text(file: BufferedReader, reader: UnitReader) -> Iterator[Document]:
    """A file given by itself, or in a directory where text is expected."""
    if reader.options.separator is not None:
        yield from read_separated(file, reader)
    else:
        in_tree = reader.unit.format != "text"
        bound = TREE_PIECE_BYTES if in_tree else file_piece_bytes(file, reader.unit)
        yield from read_pieces(file, reader, bound=bound)


def _any_text(file: BufferedReader, reader: UnitReader) -> Iterator[Document]:
    """Text if it decodes, else counted as binary."""
    # Git's sign of a binary file: a zero byte in the first 8000.
    if b"\0" in file.read(8000) or not _is_utf8(file):
        reader.report.add("binary", reader.unit.name)
    else:
        yield from _text(file, reader)


def _is_utf8(file: BufferedReader) -> bool:
    """From its start, where the file stands again afterwards."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    file.seek(0)
    try:
        while block := file.read(TREE_PIECE_BYTES):
            decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    finally:
        file.seek(0)
    return True


READERS: dict[str, FileReader] = {
    "text": _text,
    "tree-text": _text,
    "any-text": _any_text,
    "jsonl": read_lines,
    "csv": read_rows,
    "tsv": read_rows,
    "parquet": read_table,
    "arrow": read_table,
}
"""How a file of each format is read."""
