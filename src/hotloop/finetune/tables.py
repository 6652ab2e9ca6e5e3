"""Rows of a csv, tsv, jsonl, json or parquet file, each with its line. Whatever is wrong is one `UsageError` with its place."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
import shlex
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError, first_line, importing
from hotloop.core.finetune_config import TYPED_TABS
from hotloop.core.untrusted import MAX_BYTES, parse_json, parse_object, read_bytes

Row = tuple[int, dict[str, Any]]
JSON_LINES = (".jsonl", ".ndjson", ".json")
PARQUET = ".parquet"
"""Its rows are read as lines of JSON."""
TABLES = {".csv": ",", ".tsv": "\t"}
EMPTY = "it is empty, or has the names of its columns alone: name the file that has the examples"
HALVES, ESCAPED_HALVES = re.compile("[\ud800-\udfff]"), re.compile(r"\\u[dD][89a-fA-F]")
"""Of a character that was cut in two, as the last one of a tweet may be: no tokenizer takes it. In JSON it is escaped."""


@dataclass(frozen=True, slots=True)
class TextFile:
    path: Path
    text: str
    sha256: str

    @property
    def suffix(self) -> str:
        return suffix_of(self.path)

    @property
    def is_json(self) -> bool:
        return self.suffix in (*JSON_LINES, PARQUET)

    @property
    def lines(self) -> list[str]:
        """As a file has them: `str.splitlines` also ends one where a text has U+2028, U+0085 or a form feed."""
        return [line.removesuffix("\n") for line in io.StringIO(self.text, newline=None)]


def suffix_of(path: Path) -> str:
    """What a file is read as: `.csv` of `tweets.CSV.gz`."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def read_text_file(path: Path) -> TextFile:
    try:
        content = read_bytes(path)
        whole = _unpacked(content) if content[:2] == b"\x1f\x8b" else content
        text = _json_of(whole, path) if suffix_of(path) == PARQUET else whole.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise UsageError("no such file of examples", where=str(path), do=f"check the path: a relative one begins in {Path.cwd()}") from error  # fmt: skip
    except UnicodeDecodeError as error:
        do = "save it as UTF-8, a workbook or the like as csv, jsonl or parquet"
        line = 1 + error.object.count(b"\n", 0, error.start)
        what = f"not UTF-8 text: byte 0x{error.object[error.start]:02x}"
        raise UsageError(what, where=f"{path}:{line}", do=do) from error
    except UsageError:
        raise
    except IsADirectoryError as error:
        raise UsageError("a directory, not a file of examples", where=str(path), do="name a file in it") from error  # fmt: skip
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise UsageError(f"cannot read the examples: {error}", where=str(path)) from error
    return TextFile(path, text, hashlib.sha256(content).hexdigest())


def _unpacked(content: bytes) -> bytes:
    """Raises `OSError`, `EOFError` or `zlib.error` where it is damaged, `ValueError` where it is too large."""
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        found = file.read(MAX_BYTES + 1)
    if len(found) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES >> 10:,} KiB when it is unpacked")
    return found


def _json_of(content: bytes, path: Path) -> str:
    """The rows of a parquet file as lines of JSON. Raises `OSError` or `ValueError` for a damaged one, and `UsageError`."""
    with importing("parquet", "reading parquet files needs the package pyarrow", where=str(path)):
        import pyarrow
        import pyarrow.parquet
    try:
        rows = pyarrow.parquet.read_table(pyarrow.BufferReader(content)).to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(first_line(error)) from error
    return "\n".join(json.dumps(row, ensure_ascii=False, default=str) for row in rows)


def table_rows(
    file: TextFile, *, delimiter: str | None, columns: Mapping[str, str]
) -> Iterator[Row]:
    """columns: those that must be there, by the option that names each; with none named, two of a csv or more."""
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
        if there and there in names[0] and (not columns or {*columns.values()} - {*names}):
            word = f"{option}={there}".replace("\t", "tab")
            what = (
                f"only one column is found, `{names[0][:80]}`, with {delimiter!r} between columns"
            )
            do = f"say what stands between them: `{shlex.quote(word)}`"
            raise UsageError(what, where=f"{file.path}:1", do=do)
        if names:  # else the file is empty
            check_columns(file.path, names, columns)
        if twice := [name for name in columns.values() if names.count(name) > 1]:
            what = f"two columns are called `{twice[0]}`"
            raise UsageError(what, where=f"{file.path}:1", do="rename one of them")
        for row in reader:
            more = row.pop(None, ())
            if [*row.values()] == names:
                do = "remove it: it would be an example"
                raise UsageError("the first line again", where=f"{file.path}:{reader.line_num}", do=do)  # fmt: skip
            if any(map(str.strip, more)):
                what = f"{len(names) + len(more)} columns here, and {len(names)} in the first line"
                do = f'a text that has {delimiter!r} in it stands in quotes: "..."'
                raise UsageError(what, where=f"{file.path}:{reader.line_num}", do=do)
            yield reader.line_num, row
    except csv.Error as error:
        raise UsageError(
            f"damaged csv: {error}",
            where=f"{file.path}:{reader.line_num + 1}",
            do="quote that field",
        ) from error


def _json_rows(file: TextFile, columns: Mapping[str, str]) -> Iterator[Row]:
    """Of lines, or of a file that is one list, whose rows are numbered from 1."""
    is_list = file.text[:1024].lstrip().startswith("[")
    for number, line in enumerate([file.text] if is_list else file.text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = (
                parse_json(line, finite=False) if is_list else [parse_object(line, finite=False)]
            )
            if ESCAPED_HALVES.search(line):
                whole = HALVES.sub("\ufffd", json.dumps(found, ensure_ascii=False))
                found = parse_json(whole, finite=False)
            if not all(isinstance(row, dict) for row in found):
                raise ValueError("not a list of objects")
        except ValueError as error:
            do = "each line is an object {...}, or the file is one list of them: [{...}, {...}]"
            raise UsageError(f"damaged json: {error}", where=f"{file.path}:{number}", do=do) from error  # fmt: skip
        for at, row in enumerate(found, number):
            check_columns(f"{file.path}:{at}", row, columns)
            yield at, row


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
