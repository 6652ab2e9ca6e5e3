"""Hugging Face data sets, `hf:NAME[:CONFIG][:SPLIT]`: a unit is a range of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.data.sources.columns import batch_documents, column_path
from hotloop.data.sources.fields import BadRecordError, refuse_or_count
from hotloop.data.sources.unit import UNIT_BYTES, Document, ReadOptions, Report, Unit

PREFIX = "hf:"
DEFAULT_SPLIT = "train"
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


def read_hub_rows(unit: Unit, options: ReadOptions, report: Report) -> Iterator[Document]:
    """The text column of the rows [begin, end)."""
    rows = _loaded(unit.name)

    def where() -> str:
        return unit.name

    try:
        path = column_path(rows.features.arrow_schema, options.text_field)
    except BadRecordError as error:
        if unit.begin == 0 or not options.skip_bad:
            refuse_or_count(error, options, report, where)
        return
    columns = rows.select_columns(path[:1]).with_format("arrow")
    assert unit.end is not None
    for begin in range(unit.begin, unit.end, BATCH_ROWS):
        table = columns[begin : min(begin + BATCH_ROWS, unit.end)]
        row = begin
        for batch in table.to_batches():
            yield from batch_documents(batch, path, row, unit.name, options, report)
            row += len(batch)


@lru_cache(maxsize=4)
def _loaded(source: str) -> Any:
    """The data set, memory-mapped; downloaded and converted on first use."""
    try:
        import datasets
    except ImportError as error:
        raise UsageError(
            "reading hf: needs the package datasets", where=source, do="pip install 'hotloop[hub]'"
        ) from error
    name, config, split = _names(source, datasets)
    try:
        return datasets.load_dataset(name, config, split=split)
    except (ConnectionError, TimeoutError) as error:
        raise EnvironmentFailed(
            f"cannot reach the hub: {error}", where=source, do="run the same command again"
        ) from error
    except (ValueError, OSError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise UsageError(f"cannot load it: {error}", where=source) from error


def _names(source: str, datasets: Any) -> tuple[str, str | None, str]:
    """(name, config, split) of a source. Raises `UsageError` for a data set that is not there."""
    name, *rest = source.removeprefix(PREFIX).split(":", 2)
    if not name:
        raise UsageError("no data set named", where=source, do="hf:NAME, hf:NAME:CONFIG:SPLIT")
    if "[" in source and len(rest) == 2 and "[" in rest[0]:
        rest = [f"{rest[0]}:{rest[1]}"]  # the colon of train[:10%]
    if Path(name).expanduser().exists():
        name = str(Path(name).expanduser())
    if len(rest) == 2:
        return name, rest[0] or None, rest[1] or DEFAULT_SPLIT
    if not rest:
        return name, None, DEFAULT_SPLIT
    # One name: a configuration if there is one of this name, else a split.
    try:
        configs = datasets.get_dataset_config_names(name)
    except (ConnectionError, TimeoutError) as error:
        raise EnvironmentFailed(f"cannot reach the hub: {error}", where=source) from error
    except (ValueError, OSError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise UsageError(f"cannot load it: {error}", where=source) from error
    if rest[0] in configs:
        return name, rest[0], DEFAULT_SPLIT
    return name, None, rest[0] or DEFAULT_SPLIT
