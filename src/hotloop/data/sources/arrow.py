"""Parquet, Arrow files and streams, saved data sets, and data sets of the hub: only the text column.

A unit is a run of row groups, of record batches or of rows. Not `pyarrow.dataset`: it holds whole row groups, which
may be larger than memory. Not the streaming of `datasets`: it has no rows that could be shared out or continued
from, and no `train[:10%]`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.core.errors import EnvironmentFailed, UsageError, importing
from hotloop.core.files import read_json
from hotloop.data.sources import PIECE_BYTES, UNIT_BYTES, Document, Unit
from hotloop.data.sources.documents import (
    NOT_TEXT,
    NULL,
    BadRecordError,
    UnitReader,
    long_document,
    no_field,
)

if TYPE_CHECKING:
    import pyarrow


PARQUET_BATCH_ROWS = 1024
PARQUET_BATCH_BYTES = 8 << 20
TEXT_BYTES = 4 << 20
"""Text made into Python objects at once."""
_TEXT_TYPES = ("string", "large_string", "string_view", "binary", "large_binary", "null")

Batches = Iterator[tuple[str, int, Any]]
"""(what the rows are counted in, number of the first row, record batch)"""


def part_sizes(file: BufferedReader, reader: UnitReader) -> list[int]:
    """Bytes of each row group or record batch. Raises `UsageError` for a damaged file."""
    return _TABLES[reader.unit.format](file, reader).sizes()


def read_table(file: BufferedReader, reader: UnitReader) -> Iterator[Document]:
    """The text column of the row groups or record batches [begin, end)."""
    table = _TABLES[reader.unit.format](file, reader)
    path = text_column(table.schema, reader)
    if path is not None:
        for name, row, batch in table.batches(path):
            yield from batch_documents(batch, path, row, name, reader)


def text_column(schema: pyarrow.Schema, reader: UnitReader) -> list[str] | None:
    """Names from the top to the text column; `None` without one, counted. Raises `UsageError`."""
    try:
        return _column_path(schema, reader.options.text_field)
    except BadRecordError as error:
        if reader.unit.begin == 0 or not reader.options.skip_bad:
            reader.bad_record(error, reader.name)
        return None


def _column_path(schema: pyarrow.Schema, text_field: str) -> list[str]:
    import pyarrow as pa

    path = [text_field] if text_field in schema.names else text_field.split(".")
    kind: Any = pa.struct(list(schema))
    for name in path:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            raise no_field(text_field, schema.names, "column")
        kind = kind.field(name).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if str(kind) not in _TEXT_TYPES:
        what = f"column {text_field!r} holds {kind}, not text"
        raise BadRecordError(NOT_TEXT, what, "choose another column with --text-field")
    return path


def batch_documents(
    batch: pyarrow.RecordBatch,
    path: list[str],
    first_row: int,
    name: str,
    reader: UnitReader,
) -> Iterator[Document]:
    """The texts of a batch whose first row has this number in `name`, counted from 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column: Any = batch.column(path[0])
    if len(path) > 1:
        column = pc.struct_field(column, path[1:])
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    rows = max(1, len(column) * TEXT_BYTES // max(column.nbytes, 1))
    for begin in range(0, len(column), rows):
        values = column.slice(begin, rows).cast(pa.large_binary()).to_pylist()
        for row, value in enumerate(values, first_row + begin):
            origin = f"{name}:{row}"
            if value is None:
                reader.report.add(NULL, origin)
            elif len(value) > PIECE_BYTES:
                blocks = (value[at : at + (1 << 20)] for at in range(0, len(value), 1 << 20))
                yield from long_document(blocks, reader, origin, origin)
            else:
                text = reader.decoded(value, lambda: f"{name}:{row}")  # noqa: B023
                if text is not None:
                    yield Document(text, origin)


class _Parquet:
    def __init__(self, file: BufferedReader, reader: UnitReader) -> None:
        self._reader = reader
        pa = _arrow()
        try:
            # Pages are read as they are needed: a row group may be larger than memory.
            self._file = pa.parquet.ParquetFile(
                pa.PythonFile(file, mode="r"),
                buffer_size=1 << 20,
                pre_buffer=False,
                page_checksum_verification=True,  # of files that hold checksums
            )
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"not a parquet file: {error}", where=reader.unit.name) from error
        self.schema = self._file.schema_arrow
        metadata = self._file.metadata
        self._groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]

    def sizes(self) -> list[int]:
        """Bytes of the text column as stored, or of all columns if it is missing."""
        return [
            sum(
                column.total_compressed_size
                for column in _columns(group, self._reader.options.text_field)
            )
            for group in self._groups
        ]

    def batches(self, path: list[str]) -> Batches:
        unit = self._reader.unit
        pa = _arrow()
        column = ".".join(path)
        row = sum(group.num_rows for group in self._groups[: unit.begin])
        for number, group in list(enumerate(self._groups))[unit.begin : unit.end]:
            size = sum(each.total_uncompressed_size for each in _columns(group, column))
            rows = max(1, group.num_rows * PARQUET_BATCH_BYTES // max(size, 1))
            at = row
            try:
                for batch in self._file.iter_batches(
                    batch_size=min(rows, PARQUET_BATCH_ROWS),
                    row_groups=[number],
                    columns=[column],
                    use_threads=False,
                ):
                    yield unit.name, at, batch
                    at += len(batch)
            except (pa.ArrowException, OSError) as error:
                what = f"damaged parquet: {error}"
                damaged = BadRecordError("rest of a damaged row group", what, "write it again")
                where = f"{unit.name}: row group {number}"
                self._reader.bad_record(damaged, lambda: where)  # noqa: B023
            row += group.num_rows


def _columns(group: Any, name: str) -> list[Any]:
    """The columns of a row group that make up one of the schema; all if there is none."""
    columns = [group.column(at) for at in range(group.num_columns)]
    return [column for column in columns if column.path_in_schema == name] or columns


class _Arrow:
    """A file or a stream."""

    def __init__(self, file: BufferedReader, reader: UnitReader) -> None:
        self._reader = reader
        pa = _arrow()
        path = getattr(file, "name", None)
        try:
            source = pa.memory_map(path) if isinstance(path, str) else pa.PythonFile(file, mode="r")
            random_access = source.read(6) == b"ARROW1"
            source.seek(0)
            self._file = pa.ipc.open_file(source) if random_access else None
            self._batches: Any = self._file or pa.ipc.open_stream(source)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(
                f"not an Arrow file or stream: {error}", where=reader.unit.name
            ) from error
        self.schema = self._batches.schema

    def sizes(self) -> list[int]:
        """Bytes of all columns."""
        return [batch.nbytes for _, batch in self._numbered(0, None)]

    def batches(self, path: list[str]) -> Batches:
        unit = self._reader.unit
        for number, batch in self._numbered(unit.begin, unit.end):
            yield f"{unit.name}:{number}", 0, batch

    def _numbered(self, begin: int, end: int | None) -> Iterator[tuple[int, Any]]:
        pa = _arrow()
        try:
            if self._file is not None:
                last = self._file.num_record_batches if end is None else end
                yield from ((n, self._file.get_batch(n)) for n in range(begin, last))
            else:
                yield from itertools.islice(enumerate(self._batches), begin, end)
        except (pa.ArrowException, OSError) as error:
            what = f"damaged or truncated Arrow file: {error}"
            raise UsageError(what, where=self._reader.unit.name) from error


_TABLES: dict[str, type[_Parquet] | type[_Arrow]] = {"parquet": _Parquet, "arrow": _Arrow}


def _arrow() -> Any:
    with importing("parquet", "reading parquet and Arrow files needs the package pyarrow"):
        import pyarrow.ipc
        import pyarrow.parquet
    return pyarrow


def saved_files(directory: Path) -> list[Path] | None:
    """The Arrow files, in order, of a directory written by `save_to_disk`; `None` if it is none.

    Raises `UsageError` for a directory of several splits.
    """
    if (directory / "dataset_dict.json").is_file():
        splits = read_json(directory / "dataset_dict.json", dict).get("splits", [])
        raise UsageError(
            f"a data set with the splits {', '.join(map(str, splits)) or '(none)'}",
            where=str(directory),
            do=f"name one of them: {directory}/{splits[0] if splits else 'SPLIT'}",
        )
    state = directory / "state.json"
    if not (state.is_file() and (directory / "dataset_info.json").is_file()):
        return None
    entries = read_json(state, dict)
    if entries.get("_indices_data_files"):
        what = "a saved data set with an index, as old versions of datasets wrote it"
        raise UsageError(what, where=str(directory), do="load it and save it again")
    return [directory / entry["filename"] for entry in entries.get("_data_files", [])]


PREFIX = "hf:"
BATCH_ROWS = 256


def hub_units(index: int, source: str) -> Iterator[Unit]:
    """Ranges of rows of about `UNIT_BYTES`, all columns counted."""
    rows = _loaded(source)
    num_rows = len(rows)
    size = rows.dataset_size or rows.data.nbytes
    step = max(1, num_rows * UNIT_BYTES // max(size, 1))
    # The fingerprint names the data and what was done to it.
    tag = int.from_bytes(hashlib.sha256(rows._fingerprint.encode()).digest()[:6], "little")
    for begin in range(0, num_rows, step):
        end = min(begin + step, num_rows)
        share = size * (end - begin) // num_rows
        yield Unit(index, source, "hf", None, begin, end, share, (num_rows, tag))


def read_hub_rows(reader: UnitReader) -> Iterator[Document]:
    """The text column of the rows [begin, end)."""
    unit, rows = reader.unit, _loaded(reader.unit.name)
    path = text_column(rows.features.arrow_schema, reader)
    if path is None:
        return
    columns = rows.select_columns(path[:1]).with_format("arrow")
    assert unit.end is not None
    for begin in range(unit.begin, unit.end, BATCH_ROWS):
        row = begin
        for batch in columns[begin : min(begin + BATCH_ROWS, unit.end)].to_batches():
            yield from batch_documents(batch, path, row, unit.name, reader)
            row += len(batch)


@lru_cache(maxsize=4)
def _loaded(source: str) -> Any:
    """The data set, memory-mapped; downloaded and converted on first use."""
    with importing("hub", "reading hf: needs the package datasets", where=source):
        import datasets
    name, *rest = source.removeprefix(PREFIX).split(":", 2)
    if not name:
        raise UsageError("no data set named", where=source, do="hf:NAME, hf:NAME:CONFIG:SPLIT")
    if len(rest) == 2 and "[" in rest[0]:
        rest = [":".join(rest)]  # the colon of train[:10%]
    if Path(name).expanduser().exists():
        name = str(Path(name).expanduser())
    try:
        # One name: a configuration if there is one of this name, else a split.
        if len(rest) == 1 and rest[0] not in datasets.get_dataset_config_names(name):
            rest.insert(0, "")
        config, split = (*rest, "", "")[:2]
        return datasets.load_dataset(name, config or None, split=split or "train")
    except (ConnectionError, TimeoutError) as error:
        raise EnvironmentFailed(
            f"cannot reach the hub: {error}", where=source, do="run the same command again"
        ) from error
    except (ValueError, OSError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise UsageError(f"cannot load it: {error}", where=source) from error
