"""Plain text in pieces: the same pieces however the file is cut into ranges.

A file is first cut into segments near every multiple of `SEGMENT_BYTES`, at a place that depends
only on the bytes just before the multiple; the pieces of a segment depend on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader

from hotloop.data.sources.documents import character_cut
from hotloop.data.sources.unit import UNIT_BYTES, Document, Unit
from hotloop.data.sources.unit_reader import UnitReader

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
