"""Tables as text: one row is one record, also where a quoted field holds line ends."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

from hotloop.data.sources.decode import REPLACED
from hotloop.data.sources.fields import (
    MALFORMED,
    BadRecordError,
    keeps_bad_bytes,
    no_field,
    refuse_or_count,
)
from hotloop.data.sources.unit import Document, ReadOptions, Report, Unit

MAX_FIELD_CHARS = 64 << 20
"""A longer field or line is refused: the parser holds it whole, at four bytes a character."""
REST = "rest of a table behind a row that cannot be read"
_BYTES_AS_THEY_ARE = "surrogateescape"


class _EndlessLineError(Exception):
    pass


def read_rows(
    file: BinaryIO, unit: Unit, options: ReadOptions, report: Report
) -> Iterator[Document]:
    """The text column of every row; the first row names the columns."""
    rows = _Rows(file, options.delimiter or ("\t" if unit.format == "tsv" else ","))
    try:
        yield from _documents(rows, unit, options, report)
    finally:
        rows.detach()


def _documents(rows: _Rows, unit: Unit, options: ReadOptions, report: Report) -> Iterator[Document]:
    def where() -> str:
        return f"{unit.name}:{rows.line}"

    def bad(what: str, reason: str = MALFORMED) -> None:
        refuse_or_count(BadRecordError(reason, what), options, report, where)

    header: list[str] | None = None
    column = 0
    while True:
        try:
            row = rows.read()
        except csv.Error as error:
            if "field larger" in str(error):
                return bad(f"a field longer than {MAX_FIELD_CHARS >> 20} Mi characters", REST)
            if "unexpected end" in str(error):
                lines = rows.last_line - rows.line + 1
                what = f"a quote that is never closed: the last {lines:,} lines are one field"
                return bad(what, REST)
            bad(f"malformed row: {error}".replace("\t", "\\t"))
            continue
        except _EndlessLineError:
            return bad(f"a line longer than {MAX_FIELD_CHARS >> 20} Mi characters", REST)
        if row is None:
            return
        if not row:
            continue  # an empty line
        if header is None:
            header = row
            if options.text_field not in header:
                missing = no_field(options.text_field, header, "column")
                if len(header) == 1 and options.delimiter is None:
                    missing.do = f"{missing.do}; or say by --delimiter what stands between columns"
                return refuse_or_count(missing, options, report, where)
            if header.count(options.text_field) > 1:
                twice = f"the header names `{options.text_field}` {header.count(options.text_field)} times"
                return refuse_or_count(BadRecordError(MALFORMED, twice), options, report, where)
            column = header.index(options.text_field)
        elif len(row) != len(header):
            bad(f"malformed row: {len(row)} fields instead of {len(header)}")
        else:
            text = _clean(row[column], options, report, where)
            if text is not None:
                yield Document(text, where())


class _Rows:
    """The rows of a file, with bytes that are not UTF-8 as lone surrogates."""

    def __init__(self, file: BinaryIO, delimiter: str) -> None:
        # Of the whole process, and 128 KiB at first: it is only ever raised.
        csv.field_size_limit(max(csv.field_size_limit(), MAX_FIELD_CHARS))
        self._text = io.TextIOWrapper(
            io.BufferedReader(cast(io.RawIOBase, file), 1 << 18),
            encoding="utf-8-sig",
            errors=_BYTES_AS_THEY_ARE,
            newline="",
        )
        self._rows = csv.reader(self._lines(), delimiter=delimiter, strict=True)
        self.line = 1
        """Of the file: where the row that was read last begins."""

    def _lines(self) -> Iterator[str]:
        while line := self._text.readline(MAX_FIELD_CHARS + 1):
            if len(line) > MAX_FIELD_CHARS:
                raise _EndlessLineError
            yield line

    def detach(self) -> None:
        """Leave the file to its opener to close."""
        cast(io.BufferedReader, self._text.detach()).detach()

    @property
    def last_line(self) -> int:
        """Of those that were read."""
        return int(self._rows.line_num)

    def read(self) -> list[str] | None:
        self.line = self._rows.line_num + 1
        return next(self._rows, None)


def _clean(
    value: str, options: ReadOptions, report: Report, where: Callable[[], str]
) -> str | None:
    """The value, if it is UTF-8 or may be mended."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        content = value.encode("utf-8", _BYTES_AS_THEY_ARE)
    else:
        return value
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        if not keeps_bad_bytes(error, options, report, where):
            return None
        report.alter(REPLACED)
        return content.decode("utf-8", "replace")
