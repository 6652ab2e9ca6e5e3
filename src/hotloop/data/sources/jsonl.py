"""Lines of JSON, one record each. A line belongs to the unit in whose range it begins."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryFile
from typing import BinaryIO

from hotloop.data.sources.decode import REPLACED
from hotloop.data.sources.documents import long_document
from hotloop.data.sources.fields import (
    NULL,
    BadRecordError,
    check_surrogates,
    keeps_bad_bytes,
    line_text,
    refuse_or_count,
    strip_mark,
)
from hotloop.data.sources.long_lines import (
    LONG_LINE_BYTES,
    LongLine,
    LongString,
    find_text,
    string_blocks,
)
from hotloop.data.sources.unit import Document, ReadOptions, Report, Unit

BLOCK_BYTES = 1 << 20


def read_lines(
    file: BinaryIO, unit: Unit, options: ReadOptions, report: Report
) -> Iterator[Document]:
    """The documents of the lines that begin in the unit's range."""
    name = unit.name
    at = number = 0

    def where() -> str:
        return f"{name}:{number + (_lines_before(file, unit.begin) if unit.begin else 0)}"

    for number, (at, line) in enumerate(lines_from(file, unit.begin, unit.end), 1):  # noqa: B007
        if isinstance(line, LongLine):
            yield from _long_line(line, f"{name}@{at}", options, report, where)
            continue
        line = strip_mark(line, at)
        if not line or line.isspace():
            continue
        text = line_text(line, options, report, where)
        if text is not None:
            yield Document(text, f"{name}@{at}")


def _long_line(
    line: LongLine, origin: str, options: ReadOptions, report: Report, where: Callable[[], str]
) -> Iterator[Document]:
    errors = "strict"
    try:
        try:
            text = find_text(line, options.text_field, errors=errors)
        except UnicodeDecodeError as error:
            if not keeps_bad_bytes(error, options, report, where):
                return
            errors = "replace"
            text = find_text(line, options.text_field, errors=errors)
            report.alter(REPLACED)
        if text is not None and isinstance(text, str):
            check_surrogates(text, options.text_field)
    except BadRecordError as error:
        refuse_or_count(error, options, report, where)
        return
    if text is None:
        report.add(NULL, where())
    elif isinstance(text, LongString):
        yield from long_document(
            string_blocks(line, text, errors=errors),
            name=origin,
            offset=-1,
            origin=origin,
            options=options,
            report=report,
        )
    else:
        yield Document(text, origin)


def lines_from(
    file: BinaryIO, begin: int, end: int | None
) -> Iterator[tuple[int, bytes | LongLine]]:
    """(offset, line without its end) of the lines that begin in [begin, end)."""
    at, block = _first_line(file, begin, end) if begin else (0, b"")
    held: list[bytes] = []
    size = 0
    while end is None or at < end:
        block = block or file.read(BLOCK_BYTES)
        if not block:
            if size:
                yield at, b"".join(held)
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
                yield at, line
                at += len(line) + 1
                if end is not None and at >= end:
                    return
        elif size > LONG_LINE_BYTES:
            with _set_aside(file, at, held, size) as (long, block):
                yield at, long
            at += long.length + 1
            held, size = [], 0


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


@contextmanager
def _set_aside(
    file: BinaryIO, at: int, held: list[bytes], size: int
) -> Iterator[tuple[LongLine, bytes]]:
    """A long line of which `held` is read, and what was read behind it.

    It is read again where it stands, or from a temporary file where that is not cheap.
    """
    with ExitStack() as stack:
        again = isinstance(file, io.FileIO)
        copy = None if again else stack.enter_context(TemporaryFile())
        if copy is not None:
            copy.writelines(held)
        length, rest = size, b""
        while block := file.read(BLOCK_BYTES):
            stop = block.find(b"\n")
            part = block if stop < 0 else block[:stop]
            length += len(part)
            if copy is not None:
                copy.write(part)
            if stop >= 0:
                rest = block[stop + 1 :]
                break
        if copy is not None:
            yield LongLine(copy, 0, length, at == 0), rest
        else:
            position = file.tell()
            yield LongLine(file, at, length, at == 0), rest
            file.seek(position)


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
