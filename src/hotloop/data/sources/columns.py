"""The text column of Arrow data: record batches to documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hotloop.core.errors import UsageError
from hotloop.data.sources.decode import REPLACED
from hotloop.data.sources.documents import long_document
from hotloop.data.sources.fields import (
    NOT_TEXT,
    NULL,
    BadRecordError,
    keeps_bad_bytes,
    no_field,
)
from hotloop.data.sources.unit import PIECE_BYTES, Document, ReadOptions, Report

if TYPE_CHECKING:
    import pyarrow

BATCH_BYTES = 4 << 20
"""Text made into Python strings at once."""


def arrow_library(what: str) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise UsageError(
            f"reading {what} needs the package pyarrow", do="pip install 'hotloop[parquet]'"
        ) from error
    return pyarrow


def column_path(schema: pyarrow.Schema, text_field: str) -> list[str]:
    """Names from the top to the text column. Raises `BadRecordError` if there is no such column."""
    import pyarrow as pa

    path = [text_field] if text_field in schema.names else text_field.split(".")
    kind: Any = schema
    for depth, name in enumerate(path):
        names = kind.names if depth == 0 else [field.name for field in kind]
        if name not in names:
            raise no_field(text_field, schema.names, "column")
        kind = kind.field(name).type
        if depth + 1 < len(path) and not pa.types.is_struct(kind):
            raise no_field(text_field, schema.names, "column")
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    # The kind of a column without a value is not known.
    if not (_is_string(kind) or _is_binary(kind) or pa.types.is_null(kind)):
        raise BadRecordError(
            NOT_TEXT,
            f"column {text_field!r} holds {kind}, not text",
            "choose another column with --text-field",
        )
    return path


def _is_string(kind: Any) -> bool:
    import pyarrow as pa

    view = getattr(pa.types, "is_string_view", None)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or (view and view(kind)))


def _is_binary(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def batch_documents(
    batch: pyarrow.RecordBatch,
    path: list[str],
    first_row: int,
    name: str,
    options: ReadOptions,
    report: Report,
) -> Iterator[Document]:
    """The texts of a batch whose first row has this number in `name`, counted from 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column: Any = batch.column(path[0])
    for field in path[1:]:
        column = pc.struct_field(column, field)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    rows = len(column)
    at = 0
    while at < rows:
        count = _rows_within(column, at)
        texts = column.slice(at, count)
        values = _strings(texts)
        for index in range(count):
            origin = f"{name}:{first_row + at + index}"
            if values is None:
                yield from _one(texts[index], origin, options, report)
            elif (value := values[index]) is None:
                report.add(NULL, origin)
            else:
                yield Document(value, origin)
        at += count


def _strings(texts: Any) -> list[str | None] | None:
    """All values at once; `None` where they must be looked at one by one."""
    if _is_binary(texts.type) or (len(texts) == 1 and texts.nbytes > PIECE_BYTES):
        return None
    try:
        values: list[str | None] = texts.to_pylist()
    except UnicodeDecodeError:
        return None
    return values


def _rows_within(column: Any, at: int) -> int:
    """How many rows from `at` hold about `BATCH_BYTES` of text; 1 or more."""
    rows = len(column) - at
    size: int = column.slice(at, rows).nbytes
    return max(1, min(rows, rows * BATCH_BYTES // max(size, 1)))


def _one(value: Any, origin: str, options: ReadOptions, report: Report) -> Iterator[Document]:
    """One value: null, long, or with bytes that must be looked at."""
    if not value.is_valid:
        report.add(NULL, origin)
        return
    buffer = memoryview(value.as_buffer())
    if len(buffer) > PIECE_BYTES:
        blocks = (bytes(buffer[at : at + (1 << 20)]) for at in range(0, len(buffer), 1 << 20))
        yield from long_document(
            blocks, name=origin, offset=-1, origin=origin, options=options, report=report
        )
        return
    content = bytes(buffer)
    where: Callable[[], str] = lambda: origin  # noqa: E731
    try:
        yield Document(content.decode(), origin)
    except UnicodeDecodeError as error:
        if keeps_bad_bytes(error, options, report, where):
            report.alter(REPLACED)
            yield Document(content.decode("utf-8", "replace"), origin)
