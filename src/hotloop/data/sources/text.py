"""Plain text in pieces: the same pieces however the file is cut into ranges.

A file is first cut into segments near every multiple of `SEGMENT_BYTES`, at a place that depends
only on the bytes just before the multiple; the pieces of a segment depend on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from hotloop.data.sources.cut import piece_cut
from hotloop.data.sources.decode import decode
from hotloop.data.sources.unit import UNIT_BYTES, Document, ReadOptions, Report, Unit

SEGMENT_BYTES = UNIT_BYTES
TREE_PIECE_BYTES = 1 << 20
"""Of a file in a directory."""
FILE_PIECES = 128
FILE_PIECE_BYTES = (4 << 10, 64 << 10)
"""Least and most bytes in a piece of a file given by itself; between them it makes `FILE_PIECES`."""


def file_piece_bytes(size: int) -> int:
    """The bound of the pieces of a file of `size` bytes that is given by itself."""
    least, most = FILE_PIECE_BYTES
    return min(max(size // FILE_PIECES, least), most)


def read_pieces(
    file: BinaryIO, unit: Unit, options: ReadOptions, report: Report, *, bound: int
) -> Iterator[Document]:
    """The pieces, of at most `bound` bytes, of the segments that begin in the unit's range."""
    strict = options.encoding_errors == "error"
    for start, held, end in _segments(file, unit.begin, unit.end, bound):
        at = 0
        while True:
            last = end - at <= bound
            cut = end if last else piece_cut(held, at, at + bound)
            block = held[at:cut]
            offset = start + at
            origin = f"{unit.name}@{offset}" if offset else unit.name
            if block.isascii():
                yield Document(block.decode("ascii"), origin, False, block)
            else:
                text = decode(block, options, report, name=unit.name, offset=offset, origin=origin)
                if text is not None:
                    yield Document(text, origin, False, block if strict and offset else None)
            at = cut
            if last:
                break


def _segments(
    file: BinaryIO, begin: int, end: int | None, window: int
) -> Iterator[tuple[int, bytes, int]]:
    """The segments whose number times `SEGMENT_BYTES` lies in [begin, end).

    Each as its offset in the file, bytes that begin with it, and how many of them are its own.
    """
    number = -(-begin // SEGMENT_BYTES)
    held = b""
    start = 0
    if number:
        file.seek(number * SEGMENT_BYTES - window)
        held = read_exactly(file, window)
        cut = piece_cut(held, 0, window) if len(held) == window else len(held)
        start = number * SEGMENT_BYTES - window + cut
        held = held[cut:]
    while end is None or number * SEGMENT_BYTES < end:
        number += 1
        # One byte more shows whether the file goes on behind the segment.
        missing = number * SEGMENT_BYTES + 1 - start - len(held)
        held += read_exactly(file, missing)
        if start + len(held) <= number * SEGMENT_BYTES:
            yield start, held, len(held)
            return
        high = number * SEGMENT_BYTES - start
        cut = piece_cut(held, high - window, high)
        yield start, held, cut
        held = held[cut:]
        start += cut


def read_exactly(file: BinaryIO, count: int) -> bytes:
    """`count` bytes, or fewer at the end of the file."""
    block = file.read(count)
    if len(block) == count or not block:
        return block
    blocks = [block]
    have = len(block)
    while have < count and (block := file.read(count - have)):
        blocks.append(block)
        have += len(block)
    return b"".join(blocks)
