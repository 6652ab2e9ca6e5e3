"""Rows of a jsonl, csv or tsv file, with the line of each."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.untrusted import parse_object, read_bytes

JSON_LINES = (".jsonl", ".ndjson")
TABLES = (".csv", ".tsv")
Rows = list[tuple[int, dict[str, Any]]]


def read_text(path: Path) -> tuple[str, str]:
    """With the checksum of the file. Raises `UsageError`."""
    try:
        content = read_bytes(path)
        return content.decode("utf-8-sig"), hashlib.sha256(content).hexdigest()
    except FileNotFoundError as error:
        raise UsageError("no such file of examples", where=str(path)) from error
    except UnicodeDecodeError as error:
        what = f"not UTF-8 text (byte {error.start})"
        raise UsageError(what, where=str(path), do="convert it to UTF-8") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the examples: {error}", where=str(path)) from error


def rows_of(path: Path, text: str, delimiter: str | None) -> Rows:
    """Raises `UsageError` for what is damaged."""
    if path.suffix in JSON_LINES:
        found = list(_json_rows(path, text))
    else:
        found = list(_table_rows(path, text, delimiter or ("\t" if path.suffix == ".tsv" else ",")))
    if not found:
        raise UsageError("no examples in this file", where=str(path))
    return found


def check_columns(path: Path, rows: Rows, wanted: Sequence[tuple[str, str]]) -> None:
    """wanted: settings and the columns that they name. Raises `UsageError` for the first row without one."""
    for line, row in rows:
        for key, name in wanted:
            if name not in row:
                there = ", ".join(f"`{str(each)[:80]}`" for each in list(row)[:20]) or "none"
                what, where = f"no column `{name}`", f"{path}:{line}"
                raise UsageError(what, where=where, do=f"set `{key}` to one of those there: {there}")  # fmt: skip


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(
        text.split("\n"), 1
    ):  # not splitlines: U+2028 may stand in a string
        if line.strip():
            try:
                yield number, parse_object(line, finite=False)
            except ValueError as error:
                raise UsageError(f"damaged json: {error}", where=f"{path}:{number}") from error


def _table_rows(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        where = f"{path}:{reader.line_num}"
        raise UsageError(f"damaged csv: {error}", where=where, do="quote that field") from error
