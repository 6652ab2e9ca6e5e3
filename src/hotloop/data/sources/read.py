"""Units to documents: opens, reads by format, filters and counts."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BufferedReader

from hotloop.core.errors import UsageError
from hotloop.data.sources.arrow import read_hub_rows, read_table
from hotloop.data.sources.documents import UnitReader, wanted
from hotloop.data.sources.files import opened
from hotloop.data.sources.records import read_lines, read_rows
from hotloop.data.sources.text import (
    TREE_PIECE_BYTES,
    file_piece_bytes,
    read_pieces,
    read_separated,
)
from hotloop.data.sources.unit import Document, ReadOptions, Report, Unit

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
