"""Tables as text: one row is one record, also where a quoted field holds line ends.

The standard library's parser and not pyarrow's: that one says neither the line of a bad row nor that of a quote which is
never closed, and replaces nothing that is not UTF-8.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from hotloop.data.sources.unit import Document, ReadOptions
from hotloop.data.sources.unit_reader import MALFORMED, BadRecordError, UnitReader, no_field

MAX_FIELD_CHARS = 64 << 20
"""A longer field or line is refused: the parser holds it whole, at four bytes a character."""
REST = "rest of a table behind a row that cannot be read"
_BYTES_AS_THEY_ARE = "surrogateescape"


def read_rows(file: io.BufferedReader, reader: UnitReader) -> Iterator[Document]:
    """The text column of every row; the first row names the columns."""
    # A limit of the whole process, 128 KiB at first: it is only ever raised.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_FIELD_CHARS))
    text = io.TextIOWrapper(file, "utf-8-sig", _BYTES_AS_THEY_ARE, newline="")
    delimiter = reader.options.delimiter or ("\t" if reader.unit.format == "tsv" else ",")
    rows = csv.reader(_lines(text), delimiter=delimiter, strict=True)
    line = 1  # where the row begins
    width = column = 0

    def where() -> str:
        return f"{reader.unit.name}:{line}"

    try:
        while True:
            line = rows.line_num + 1
            try:
                row = next(rows, None)
                if row is None:
                    return
                if not width and row:
                    width, column = len(row), _column(row, reader.options)
                elif row and len(row) != width:
                    what = f"malformed row: {len(row)} fields instead of {width}"
                    raise BadRecordError(MALFORMED, what)
                elif row:
                    found: str | None = row[column]
                    if bad_bytes := _bad_bytes(row[column]):
                        found = reader.decoded(bad_bytes, where)
                    if found is not None:
                        yield Document(found, where())
            except BadRecordError as error:
                reader.bad_record(error, where)
                if not width or error.reason == REST:
                    return
            except csv.Error as error:
                bad = _malformed(error, rows.line_num - line + 1)
                reader.bad_record(bad, where)
                if bad.reason == REST:
                    return
    finally:
        text.detach()  # its opener closes the file


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    while line := text.readline(MAX_FIELD_CHARS + 1):
        if len(line) > MAX_FIELD_CHARS:
            raise BadRecordError(REST, f"a line longer than {MAX_FIELD_CHARS >> 20} Mi characters")
        yield line


def _column(header: list[str], options: ReadOptions) -> int:
    """Index of the text column. Raises `BadRecordError`."""
    name = options.text_field
    if name not in header:
        missing = no_field(name, header, "column")
        if len(header) == 1 and options.delimiter is None:
            missing.do += "; or say by --delimiter what stands between columns"
        raise missing
    if header.count(name) > 1:
        what = f"the header names `{name}` {header.count(name)} times"
        raise BadRecordError(MALFORMED, what)
    return header.index(name)


def _malformed(error: csv.Error, num_lines: int) -> BadRecordError:
    """`num_lines`: how many the row spans."""
    if "field larger" in str(error):
        what = f"a field longer than {MAX_FIELD_CHARS >> 20} Mi characters"
        return BadRecordError(REST, what)
    if "unexpected end" in str(error):
        what = f"a quote that is never closed: the last {num_lines:,} lines are one field"
        return BadRecordError(REST, what)
    return BadRecordError(MALFORMED, f"malformed row: {error}".replace("\t", "\\t"))


def _bad_bytes(value: str) -> bytes | None:
    """The bytes of a value that is not UTF-8."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode(errors=_BYTES_AS_THEY_ARE)
    return None
