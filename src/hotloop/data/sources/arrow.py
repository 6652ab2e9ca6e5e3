"""Arrow files and streams, and data sets that `datasets` has saved: a unit is a run of batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from hotloop.core.errors import UsageError
from hotloop.data.sources.columns import arrow_library, batch_documents, column_path
from hotloop.data.sources.fields import BadRecordError, refuse_or_count
from hotloop.data.sources.unit import Document, ReadOptions, Report, Unit

_MAGIC = b"ARROW1"


def batch_sizes(file: BinaryIO, name: str, text_field: str) -> list[int]:
    """Bytes of each record batch of a file or stream, all columns."""
    return [batch.nbytes for batch in _batches(file, name, 0, None)[1]]


def read_batches(
    file: BinaryIO, unit: Unit, options: ReadOptions, report: Report
) -> Iterator[Document]:
    """The text column of the record batches [begin, end)."""
    schema, batches = _batches(file, unit.name, unit.begin, unit.end)
    try:
        path = column_path(schema, options.text_field)
    except BadRecordError as error:
        if unit.begin == 0 or not options.skip_bad:
            refuse_or_count(error, options, report, lambda: unit.name)
        return
    number = unit.begin
    for batch in batches:
        name = f"{unit.name}:{number}"
        yield from batch_documents(batch, path, 0, name, options, report)
        number += 1


def _batches(file: BinaryIO, name: str, begin: int, end: int | None) -> tuple[Any, Iterator[Any]]:
    """(schema, the batches [begin, end)) of a file or a stream."""
    pa = arrow_library("Arrow files")
    import pyarrow.ipc

    try:
        source: Any = pa.memory_map(file.name) if _is_path(file) else pa.PythonFile(file, mode="r")
        random_access = source.read(len(_MAGIC)) == _MAGIC
        source.seek(0)
        if random_access:
            reader: Any = pyarrow.ipc.open_file(source)
            last = reader.num_record_batches if end is None else end
            batches: Iterator[Any] = (reader.get_batch(number) for number in range(begin, last))
        else:
            reader = pyarrow.ipc.open_stream(source)
            batches = _of_stream(reader, begin, end)
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"not an Arrow file or stream: {error}", where=name) from error
    return reader.schema, _reported(batches, name)


def _of_stream(reader: Any, begin: int, end: int | None) -> Iterator[Any]:
    for number, batch in enumerate(reader):
        if end is not None and number >= end:
            return
        if number >= begin:
            yield batch


def _reported(batches: Iterator[Any], name: str) -> Iterator[Any]:
    pa = arrow_library("Arrow files")
    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"damaged or truncated Arrow file: {error}", where=name) from error


def _is_path(file: BinaryIO) -> bool:
    return isinstance(getattr(file, "name", None), str)


def saved_files(directory: Path) -> list[Path] | None:
    """The Arrow files, in order, of a directory written by `save_to_disk`; `None` if it is none.

    Raises `UsageError` for a directory of several splits.
    """
    if (directory / "dataset_dict.json").is_file():
        splits = _json(directory / "dataset_dict.json").get("splits", [])
        raise UsageError(
            f"a data set with the splits {', '.join(map(str, splits)) or '(none)'}",
            where=str(directory),
            do=f"name one of them: {directory}/{splits[0] if splits else 'SPLIT'}",
        )
    state = directory / "state.json"
    if not (state.is_file() and (directory / "dataset_info.json").is_file()):
        return None
    entries = _json(state)
    if entries.get("_indices_data_files"):
        raise UsageError(
            "a saved data set with an index, as old versions of datasets wrote it",
            where=str(directory),
            do="load it and save it again",
        )
    return [directory / entry["filename"] for entry in entries.get("_data_files", [])]


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read: {error}", where=str(path)) from error
    if not isinstance(values, dict):
        raise UsageError("not a JSON object", where=str(path))
    return values
