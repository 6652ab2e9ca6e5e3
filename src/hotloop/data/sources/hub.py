"""Hugging Face data sets, `hf:NAME[:CONFIG][:SPLIT]`, as `datasets` keeps them: a unit is a range of rows.

Not its streaming: that has no rows that could be shared out or gone on from, and no `train[:10%]`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.data.sources.arrow import batch_documents, text_column
from hotloop.data.sources.unit import UNIT_BYTES, Document, Unit
from hotloop.data.sources.unit_reader import UnitReader

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
    try:
        import datasets
    except ImportError as error:
        raise UsageError(
            "reading hf: needs the package datasets", where=source, do="pip install 'hotloop[hub]'"
        ) from error
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
