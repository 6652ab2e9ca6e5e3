"""Parquet: a unit is a run of row groups, of which only the text column is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from hotloop.core.errors import UsageError
from hotloop.data.sources.columns import arrow_library, batch_documents, column_path
from hotloop.data.sources.fields import BadRecordError, refuse_or_count
from hotloop.data.sources.unit import Document, ReadOptions, Report, Unit

BATCH_ROWS = 1024
BATCH_BYTES = 8 << 20


def row_group_sizes(file: BinaryIO, name: str, text_field: str) -> list[int]:
    """Bytes of the text column of each row group, as stored; of all columns if it is missing."""
    metadata = _opened(file, name).metadata
    sizes = []
    for group in range(metadata.num_row_groups):
        columns = [metadata.row_group(group).column(at) for at in range(metadata.num_columns)]
        ours = [column for column in columns if column.path_in_schema == text_field]
        sizes.append(sum(column.total_compressed_size for column in ours or columns))
    return sizes


def read_row_groups(
    file: BinaryIO, unit: Unit, options: ReadOptions, report: Report
) -> Iterator[Document]:
    """The text column of the row groups [begin, end)."""
    table = _opened(file, unit.name)

    def where() -> str:
        return unit.name

    try:
        path = column_path(table.schema_arrow, options.text_field)
    except BadRecordError as error:
        if unit.begin == 0 or not options.skip_bad:
            refuse_or_count(error, options, report, where)
        return
    metadata = table.metadata
    end = metadata.num_row_groups if unit.end is None else unit.end
    row = sum(metadata.row_group(group).num_rows for group in range(unit.begin))
    for group in range(unit.begin, end):
        yield from _group(table, group, path, row, unit, options, report)
        row += metadata.row_group(group).num_rows


def _group(
    table: Any,
    group: int,
    path: list[str],
    row: int,
    unit: Unit,
    options: ReadOptions,
    report: Report,
) -> Iterator[Document]:
    pa = arrow_library("parquet")
    entry = table.metadata.row_group(group)
    if not entry.num_rows:
        return
    size = sum(
        entry.column(at).total_uncompressed_size
        for at in range(entry.num_columns)
        if entry.column(at).path_in_schema == ".".join(path)
    )
    rows = max(1, min(BATCH_ROWS, entry.num_rows * BATCH_BYTES // max(size, 1)))
    batches = table.iter_batches(
        batch_size=rows, row_groups=[group], columns=[".".join(path)], use_threads=False
    )
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            damaged = BadRecordError(
                "rest of a damaged row group", f"damaged parquet: {error}", "write it again"
            )
            refuse_or_count(damaged, options, report, lambda: f"{unit.name}: row group {group}")
            return
        if batch is None:
            return
        yield from batch_documents(batch, path, row, unit.name, options, report)
        row += len(batch)


def _opened(file: BinaryIO, name: str) -> Any:
    pa = arrow_library("parquet")
    import pyarrow.parquet as pq

    try:
        # Pages are read as they are needed: a row group may be larger than memory.
        return pq.ParquetFile(
            pa.PythonFile(file, mode="r"),
            buffer_size=1 << 20,
            pre_buffer=False,
            page_checksum_verification=True,  # of files that hold checksums
        )
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"not a parquet file: {error}", where=name) from error
