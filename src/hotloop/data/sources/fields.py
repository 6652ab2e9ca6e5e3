"""The text of one record: the field that was asked for, or what is wrong with the record."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.data.sources.decode import NOT_UTF8, REPLACED
from hotloop.data.sources.unit import ReadOptions, Report

NULL = "null instead of text"
MALFORMED = "malformed record"
NO_FIELD = "record without the field"
NOT_TEXT = "field that is not text"
MAKE_LINES = (
    "if the file is one JSON value over many lines, make lines of it: jq -c '.[]' FILE > FILE.jsonl "
    "(of a single object: jq -c . FILE)"
)


class BadRecordError(Exception):
    """A record that gives no document. `reason` is counted, `what` is said."""

    def __init__(self, reason: str, what: str, do: str | None = None) -> None:
        super().__init__(what)
        self.reason = reason
        self.what = what
        self.do = do


def field_of(record: object, text_field: str) -> str | None:
    """The text in a parsed JSON record; `None` for null. Raises `BadRecordError`."""
    if not isinstance(record, dict):
        do = MAKE_LINES if isinstance(record, list) else None
        raise BadRecordError(MALFORMED, "malformed line: not a JSON object", do)
    value = record[text_field] if text_field in record else _nested(record, text_field)
    if value is None or isinstance(value, str):
        return value
    raise BadRecordError(NOT_TEXT, f"field {text_field!r} is not a string")


def no_field(text_field: str, have: Iterable[str], what: str = "field") -> BadRecordError:
    names = sorted(have)
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return BadRecordError(
        NO_FIELD,
        f"no {what} {text_field!r}",
        f"choose one with --text-field; the {what}s here: {shown or 'none'}",
    )


def _nested(record: dict[str, Any], text_field: str) -> object:
    value: object = record
    for name in text_field.split("."):
        if not isinstance(value, dict) or name not in value:
            raise no_field(text_field, record)
        value = value[name]
    return value


def check_surrogates(text: str, text_field: str) -> None:
    """Raises `BadRecordError` for text that UTF-8 cannot hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRecordError(
            MALFORMED,
            f"field {text_field!r} holds half of a surrogate pair at character {error.start}",
        ) from error


def refuse_or_count(
    error: BadRecordError, options: ReadOptions, report: Report, where: Callable[[], str]
) -> None:
    """Count a bad record, or raise `UsageError` for it."""
    if options.skip_bad:
        report.add(error.reason, f"{where()}: {error.what}")
        return
    do = error.do or "mend it, or leave such records out with --skip-bad"
    raise UsageError(error.what, where=where(), do=do) from error


def _slow_record(line: bytes) -> object:
    """A parsed line. Raises `UnicodeDecodeError` and `BadRecordError`."""
    text = line.decode("utf-8")
    try:
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            raise
        except ValueError:  # an integer of thousands of digits, in whatever field
            return json.loads(text, parse_int=float)
    except (ValueError, RecursionError) as error:
        # So begin arrays and indented objects.
        do = MAKE_LINES if text.strip()[:1] == "[" or text.strip() == "{" else None
        raise BadRecordError(MALFORMED, f"malformed line: {error}", do) from error


def _fast_record(line: bytes) -> object:
    # orjson is stricter than the standard library: what it refuses is asked there again, so that
    # the documents are the same with and without it.
    try:
        return _orjson_loads(line)
    except ValueError:
        return _slow_record(line)


try:
    from orjson import loads as _orjson_loads
except ImportError:
    parse_record: Callable[[bytes], object] = _slow_record
else:
    parse_record = _fast_record


def line_text(
    line: bytes, options: ReadOptions, report: Report, where: Callable[[], str]
) -> str | None:
    """The text of one line of JSON; `None` if there is none, counted. Raises `UsageError`."""
    try:
        try:
            text = field_of(parse_record(line), options.text_field)
        except UnicodeDecodeError as error:
            if not keeps_bad_bytes(error, options, report, where):
                return None
            replaced = line.decode("utf-8", "replace").encode()
            text = field_of(parse_record(replaced), options.text_field)
            report.alter(REPLACED)
        if text is None:
            report.add(NULL, where())
        elif b"\\u" in line:
            check_surrogates(text, options.text_field)
        return text
    except BadRecordError as error:
        refuse_or_count(error, options, report, where)
        return None


def keeps_bad_bytes(
    error: UnicodeDecodeError, options: ReadOptions, report: Report, where: Callable[[], str]
) -> bool:
    """Whether to replace the bytes that are not UTF-8; else the record is left out and counted.

    Raises `UsageError` where the options say so.
    """
    byte = f"byte 0x{error.object[error.start]:02x}"
    if options.encoding_errors == "error":
        raise UsageError(
            f"not UTF-8 text: {byte}",
            where=where(),
            do="convert it (iconv -f ENCODING -t UTF-8), or choose --encoding-errors replace or "
            "skip",
        ) from error
    if options.encoding_errors == "skip":
        report.add(NOT_UTF8, f"{where()}: {byte}")
        return False
    return True


def strip_mark(line: bytes, offset: int) -> bytes:
    """Without the byte order mark of a file's first line."""
    if offset == 0 and line.startswith(codecs.BOM_UTF8):
        return line[len(codecs.BOM_UTF8) :]
    return line
