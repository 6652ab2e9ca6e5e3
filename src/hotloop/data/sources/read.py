"""Units to documents: opens, reads by format, filters and counts."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import BinaryIO

from hotloop.core.errors import UsageError
from hotloop.data.sources.arrow import read_batches
from hotloop.data.sources.csv_rows import read_rows
from hotloop.data.sources.documents import short_document
from hotloop.data.sources.files import opened
from hotloop.data.sources.hub import read_hub_rows
from hotloop.data.sources.jsonl import read_lines
from hotloop.data.sources.parquet import read_row_groups
from hotloop.data.sources.separators import read_separated, read_whole
from hotloop.data.sources.text import (
    FILE_PIECE_BYTES,
    FILE_PIECES,
    TREE_PIECE_BYTES,
    file_piece_bytes,
    read_exactly,
    read_pieces,
)
from hotloop.data.sources.unit import (
    PIECE_BYTES,
    WHOLE_FILE,
    Document,
    ReadOptions,
    Report,
    Unit,
)

FileReader = Callable[[BinaryIO, Unit, ReadOptions, Report], Iterator[Document]]

UNREADABLE = "cannot be opened"
_DECLARED_ENCODING = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")


def read_unit(unit: Unit, options: ReadOptions, report: Report) -> Iterator[Document]:
    """The documents of a unit, in order; empty ones are left out and counted.

    Close the iterator if you leave it early. Raises `UsageError` for what the options do not allow
    to leave out, and when the source is not as it was when it was planned.
    """
    # Characters, of which each has at most 4 bytes: such a document needs no other look.
    low, high = max(options.min_chars, 1), PIECE_BYTES // 4
    high = high if options.max_chars is None else min(high, options.max_chars)
    inside = False
    for document in _read(unit, options, report):
        # Parts come from readers that have already looked at their document as a whole.
        if document.part or inside or low <= len(document.text) <= high:
            inside = document.part
            yield document
        elif document.text:
            yield from short_document(document, options, report)
        else:
            report.add("empty", document.origin)


def _read(unit: Unit, options: ReadOptions, report: Report) -> Iterator[Document]:
    if unit.format == "hf":
        yield from read_hub_rows(unit, options, report)
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(opened(unit, options, report))
        except UsageError as error:
            if not options.skip_bad or not isinstance(error.__cause__, OSError):
                raise
            if not unit.begin:
                report.add(UNREADABLE, f"{unit.name}: {error.what}")
            return
        yield from READERS[unit.format](file, unit, options, report)


def _text(file: BinaryIO, unit: Unit, options: ReadOptions, report: Report) -> Iterator[Document]:
    """A file given by itself."""
    if options.separator is not None:
        yield from _separated(file, unit, options, report)
        return
    if unit.compression is None and unit.state is not None:
        size = unit.state[0]
    else:
        # Pieces do not grow beyond this size, so that no more need be known of the text's.
        size = len(read_exactly(file, FILE_PIECES * FILE_PIECE_BYTES[1]))
        file.seek(0)
    yield from read_pieces(file, unit, options, report, bound=file_piece_bytes(size))


def _tree_text(
    file: BinaryIO, unit: Unit, options: ReadOptions, report: Report
) -> Iterator[Document]:
    """A file in a directory."""
    if options.separator is not None:
        yield from _separated(file, unit, options, report)
    else:
        yield from read_pieces(file, unit, options, report, bound=TREE_PIECE_BYTES)


def _separated(
    file: BinaryIO, unit: Unit, options: ReadOptions, report: Report
) -> Iterator[Document]:
    reader = read_whole if options.separator == WHOLE_FILE else read_separated
    yield from reader(file, unit, options, report)


def _any_text(
    file: BinaryIO, unit: Unit, options: ReadOptions, report: Report
) -> Iterator[Document]:
    """Text if it decodes, else counted as binary."""
    # Git's sign of a binary file: a zero byte in the first 8000.
    if b"\0" in read_exactly(file, 8000) or not _is_utf8(file):
        report.add("binary", unit.name)
        return
    file.seek(0)
    yield from _tree_text(file, unit, options, report)


def _python(file: BinaryIO, unit: Unit, options: ReadOptions, report: Report) -> Iterator[Document]:
    """The library's own tests hold files that are deliberately in another encoding."""
    if not _is_utf8(file):
        declared = _declared_encoding(file)
        reason = f"declares {declared}" if declared else "not UTF-8 (a test of bad source)"
        report.add(reason, unit.name)
        return
    file.seek(0)
    yield from read_pieces(file, unit, options, report, bound=TREE_PIECE_BYTES)


def _is_utf8(file: BinaryIO) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    file.seek(0)
    try:
        while block := file.read(TREE_PIECE_BYTES):
            decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _declared_encoding(file: BinaryIO) -> str | None:
    """The encoding a Python file declares in its first two lines (PEP 263)."""
    file.seek(0)
    for line in file.read(400).split(b"\n")[:2]:
        if match := _DECLARED_ENCODING.match(line):
            return match.group(1).decode("ascii").lower()
    return None


READERS: dict[str, FileReader] = {
    "text": _text,
    "tree-text": _tree_text,
    "any-text": _any_text,
    "python": _python,
    "jsonl": read_lines,
    "csv": read_rows,
    "tsv": read_rows,
    "parquet": read_row_groups,
    "arrow": read_batches,
}
"""How a file of each format is read."""
