"""Rows of a csv, tsv or jsonl file, each with its line. Whatever is wrong is one `UsageError` with its place."""

from __future__ import annotations

import csv
import hashlib
import io
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.finetune_config import TYPED_TABS
from hotloop.core.untrusted import parse_object, read_bytes

Row = tuple[int, dict[str, Any]]
JSON_LINES = (".jsonl", ".ndjson")
TABLES = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True, slots=True)
class TextFile:
    path: Path
    text: str
    sha256: str

    @property
    def suffix(self) -> str:
        return self.path.suffix.lower()

    @property
    def is_json(self) -> bool:
        return self.suffix in JSON_LINES

    @property
    def lines(self) -> list[str]:
        """As a file has them: `str.splitlines` also ends one where a text has U+2028, U+0085 or a form feed."""
        return [line.removesuffix("\n") for line in io.StringIO(self.text, newline=None)]


def read_text_file(path: Path) -> TextFile:
    try:
        content = read_bytes(path)
        text = content.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise UsageError("no such file of examples", where=str(path), do=f"check the path: a relative one begins in {Path.cwd()}") from error  # fmt: skip
    except UnicodeDecodeError as error:
        raise UsageError(
            f"not UTF-8 text (byte {error.start})", where=str(path), do="convert it to UTF-8"
        ) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the examples: {error}", where=str(path)) from error
    return TextFile(path, text, hashlib.sha256(content).hexdigest())


def table_rows(
    file: TextFile, *, delimiter: str | None, columns: Mapping[str, str]
) -> Iterator[Row]:
    """columns: those that must be there, by the option that names each."""
    if file.is_json:
        yield from _json_rows(file, columns)
    else:
        yield from _csv_rows(file, delimiter, columns)


def _csv_rows(file: TextFile, given: str | None, columns: Mapping[str, str]) -> Iterator[Row]:
    delimiter = TYPED_TABS.get(given or "", given) or TABLES.get(file.suffix, ",")
    option = "--delimiter" if "--column" in columns else "data.delimiter"
    if len(delimiter) != 1:
        raise UsageError(f"{delimiter!r} is no single character", where=option, do="for a tab, write `tab`")  # fmt: skip
    csv.field_size_limit(sys.maxsize)  # a text of any length is cut where the model's ends
    reader = csv.DictReader(io.StringIO(file.text, newline=""), delimiter=delimiter, strict=True)
    try:
        names = [str(name) for name in reader.fieldnames or ()]
        there = max(("\t", ";", "|", ","), key=names[0].count) if len(names) == 1 else ""
        if there and there in names[0] and set(columns.values()) - set(names):
            word = f"{option}={there}".replace("\t", "tab")
            what = (
                f"only one column is found, `{names[0][:80]}`, with {delimiter!r} between columns"
            )
            do = f"say what stands between them: `{shlex.quote(word)}`"
            raise UsageError(what, where=f"{file.path}:1", do=do)
        check_columns(file.path, names, columns)
        for row in reader:
            more = row.pop(None, ())
            if any(map(str.strip, more)):
                what = f"{len(names) + len(more)} columns here, and {len(names)} in the first line"
                do = f'a text that has {delimiter!r} in it stands in quotes: "..."'
                raise UsageError(what, where=f"{file.path}:{reader.line_num}", do=do)
            yield reader.line_num, row
    except csv.Error as error:
        raise UsageError(
            f"damaged csv: {error}", where=f"{file.path}:{reader.line_num}", do="quote that field"
        ) from error


def _json_rows(file: TextFile, columns: Mapping[str, str]) -> Iterator[Row]:
    for number, line in enumerate(file.text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = parse_object(line, finite=False)
        except ValueError as error:
            raise UsageError(f"damaged json: {error}", where=f"{file.path}:{number}") from error
        check_columns(f"{file.path}:{number}", row, columns)
        yield number, row


def check_columns(where: Path | str, names: Iterable[str], columns: Mapping[str, str]) -> None:
    for key, name in columns.items():
        if name not in names:
            there = ", ".join(f"`{str(each)[:80]}`" for each in list(names)[:20]) or "none"
            do = f"set `{key}` to one of those there: {there}"
            raise UsageError(f"no column `{name}`", where=str(where), do=do)


def cell(row: Mapping[str, Any], name: str) -> str:
    """A cell as text; empty where there is none."""
    value = row.get(name)
    return "" if value is None else str(value).strip()
