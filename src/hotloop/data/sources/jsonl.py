"""Lines of JSON, one record each. A line belongs to the unit in whose range it begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from hotloop.data.sources.fields import (
    MALFORMED,
    BadRecordError,
    line_text,
    refuse_or_count,
    strip_mark,
)
from hotloop.data.sources.unit import Document, ReadOptions, Report, Unit

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20
"""Longer lines are malformed records: parsing one takes five times its bytes."""


@dataclass(frozen=True, slots=True)
class TooLong:
    """A line that is not held."""

    length: int


def read_lines(
    file: BinaryIO, unit: Unit, options: ReadOptions, report: Report
) -> Iterator[Document]:
    """The documents of the lines that begin in the unit's range."""
    name = unit.name
    at = number = 0

    def where() -> str:
        return f"{name}:{number + (_lines_before(file, unit.begin) if unit.begin else 0)}"

    for number, (at, line) in enumerate(lines_from(file, unit.begin, unit.end), 1):  # noqa: B007
        if isinstance(line, TooLong):
            what = f"line of {line.length:,} bytes, more than {MAX_LINE_BYTES >> 20} MiB"
            do = "split its text, or leave such records out with --skip-bad"
            refuse_or_count(BadRecordError(MALFORMED, what, do), options, report, where)
            continue
        line = strip_mark(line, at)
        if not line or line.isspace():
            continue
        text = line_text(line, options, report, where)
        if text is not None:
            yield Document(text, f"{name}@{at}")


def lines_from(
    file: BinaryIO, begin: int, end: int | None
) -> Iterator[tuple[int, bytes | TooLong]]:
    """(offset, line without its end) of the lines that begin in [begin, end)."""
    at, block = _first_line(file, begin, end) if begin else (0, b"")
    held: list[bytes] = []
    size = 0
    while end is None or at < end:
        block = block or file.read(BLOCK_BYTES)
        if not block:
            if size:
                yield at, _short(b"".join(held))
            return
        lines = block.split(b"\n")
        held.append(lines[0])
        size += len(lines[0])
        block = b""
        if len(lines) > 1:
            lines[0] = b"".join(held)
            held = [lines.pop()]
            size = len(held[0])
            for line in lines:
                yield at, _short(line)
                at += len(line) + 1
                if end is not None and at >= end:
                    return
        elif size > MAX_LINE_BYTES:
            held.clear()
            length, block = _passed_over(file, size)
            yield at, TooLong(length)
            at += length + 1
            size = 0


def _first_line(file: BinaryIO, begin: int, end: int | None) -> tuple[int, bytes]:
    """(offset of the first line that begins at `begin` or later, what was read of it)."""
    at = begin - 1
    file.seek(at)
    while (end is None or at < end) and (block := file.read(BLOCK_BYTES)):
        stop = block.find(b"\n")
        if stop >= 0:
            return at + stop + 1, block[stop + 1 :]
        at += len(block)
    return at, b""


def _short(line: bytes) -> bytes | TooLong:
    return line if len(line) <= MAX_LINE_BYTES else TooLong(len(line))


def _passed_over(file: BinaryIO, size: int) -> tuple[int, bytes]:
    """(length of a line of which `size` bytes are read, what was read behind its end)."""
    while block := file.read(BLOCK_BYTES):
        stop = block.find(b"\n")
        if stop >= 0:
            return size + stop, block[stop + 1 :]
        size += len(block)
    return size, b""


def _lines_before(file: BinaryIO, begin: int) -> int:
    """How many lines begin before `begin`; reads all that stands there."""
    position = file.tell()
    file.seek(0)
    count, left, last = 0, begin, b"\n"
    while left and (block := file.read(min(left, BLOCK_BYTES))):
        count += block.count(b"\n")
        left -= len(block)
        last = block[-1:]
    file.seek(position)
    return count + (last != b"\n")
