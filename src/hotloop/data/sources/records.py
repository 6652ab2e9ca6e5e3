"""Records in text: JSON lines, and tables, of which one row is one record, also where a quoted field holds line ends.

A line of JSON belongs to the unit in whose range it begins. Tables go through the standard library's parser and not
pyarrow's: that one gives neither the line of a bad row nor that of a quote which is never closed, and replaces
nothing that is not UTF-8.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from io import BufferedReader

from hotloop.data.sources import Document, ReadOptions, Report, Unit
from hotloop.data.sources.documents import (
    MALFORMED,
    NOT_TEXT,
    NULL,
    BadRecordError,
    UnitReader,
    Where,
    no_field,
)

try:
    from orjson import loads as _orjson_loads
except ImportError:
    _fast_loads: Callable[[bytes], object] | None = None
else:
    _fast_loads = _orjson_loads

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20
"""Longer lines are malformed records: parsing one takes five times its bytes."""
MAKE_LINES = (
    "if the file is one JSON value over many lines, make lines of it: jq -c '.[]' FILE > FILE.jsonl "
    "(of a single object: jq -c . FILE)"
)


def read_lines(file: BufferedReader, reader: UnitReader) -> Iterator[Document]:
    """The documents of the lines that begin in the unit's range."""
    unit, number = reader.unit, 0

    def where() -> str:
        before = _lines_before(file, unit.begin) if unit.begin else 0
        return f"{unit.name}:{number + before}"

    for number, (at, line, length) in enumerate(_lines(file, unit), 1):  # noqa: B007
        try:
            if length > MAX_LINE_BYTES:
                what = f"line of {length:,} bytes, more than {MAX_LINE_BYTES >> 20} MiB"
                do = "split its text, or leave such records out with --skip-bad"
                raise BadRecordError(MALFORMED, what, do)
            text = _text_of(line, at, reader, where)
        except BadRecordError as error:
            reader.bad_record(error, where)
        else:
            if text is not None:
                yield Document(text, f"{unit.name}@{at}")


def _lines(file: BufferedReader, unit: Unit) -> Iterator[tuple[int, bytes, int]]:
    """(offset, line, its length without the end) of the unit's lines; one that is too long is not whole."""
    at, end = unit.begin, sys.maxsize if unit.end is None else unit.end
    if at:
        file.seek(at - 1)
        at += _passed_over(file, end - at)[0] - 1
    while at < end:
        line = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        length, ended = len(line), line.endswith(b"\n")
        if length > MAX_LINE_BYTES and not ended:
            more, ended = _passed_over(file, sys.maxsize)
            length += more
        yield at, line, length - ended
        at += length


def _passed_over(file: BufferedReader, enough: int) -> tuple[int, bool]:
    """Read to the end of the line, or `enough` bytes; how many, and whether it has an end."""
    passed, block = 0, b""
    while passed <= enough and not block.endswith(b"\n"):
        block = file.readline(BLOCK_BYTES)
        if not block:
            break
        passed += len(block)
    return passed, block.endswith(b"\n")


def _lines_before(file: BufferedReader, begin: int) -> int:
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


def _text_of(line: bytes, at: int, reader: UnitReader, where: Where) -> str | None:
    """The text of one line; `None` if there is none, counted. Raises `BadRecordError`."""
    if at == 0:
        line = line.removeprefix(codecs.BOM_UTF8)
    if line.isspace() or not line:
        return None
    altered, text_field = None, reader.options.text_field
    try:
        if _fast_loads is None:
            raise ValueError
        record: object = _fast_loads(line)
    except ValueError:
        # orjson is stricter: what it refuses is asked again of the standard library, so that the
        # documents are the same with and without it.
        altered = Report()
        content = reader.decoded(line, where, report=altered)
        record = _parsed(content) if content is not None else {text_field: None}
    text = _field(record, text_field)
    if altered is not None:
        reader.report.merge(altered)
    if text is None and not (altered and altered.counts):
        reader.report.add(NULL, where())
    elif text is not None and b"\\u" in line:
        _check_surrogates(text, text_field)
    return text


def _parsed(text: str) -> object:
    try:
        # Integers may have thousands of digits, in whatever field, which `int` refuses.
        return json.loads(text, parse_int=float)
    except (ValueError, RecursionError) as error:
        # So begin arrays and indented objects.
        do = MAKE_LINES if text.strip()[:1] == "[" or text.strip() == "{" else None
        raise BadRecordError(MALFORMED, f"malformed line: {error}", do) from error


def _field(record: object, text_field: str) -> str | None:
    """The text in a parsed record; `None` for null. Raises `BadRecordError`."""
    if not isinstance(record, dict):
        do = MAKE_LINES if isinstance(record, list) else None
        raise BadRecordError(MALFORMED, "malformed line: not a JSON object", do)
    value: object = record
    for name in [text_field] if text_field in record else text_field.split("."):
        if not isinstance(value, dict) or name not in value:
            raise no_field(text_field, record)
        value = value[name]
    if value is None or isinstance(value, str):
        return value
    raise BadRecordError(NOT_TEXT, f"field {text_field!r} is not a string")


def _check_surrogates(text: str, text_field: str) -> None:
    """Raises `BadRecordError` for text that UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        what = f"field {text_field!r} holds half of a surrogate pair at character {error.start}"
        raise BadRecordError(MALFORMED, what) from error


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
    rows = csv.reader(_table_lines(text), delimiter=delimiter, strict=True)
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


def _table_lines(text: io.TextIOWrapper) -> Iterator[str]:
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
