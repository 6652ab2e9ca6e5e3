"""How a file is cut into units: by bytes, by row groups, by record batches, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hotloop.core.errors import UsageError
from hotloop.data.sources.arrow import part_sizes
from hotloop.data.sources.files import opened
from hotloop.data.sources.unit import (
    REMOTE_UNIT_BYTES,
    UNIT_BYTES,
    WHOLE_FILE,
    ReadOptions,
    Report,
    Unit,
    is_url,
)
from hotloop.data.sources.unit_reader import UnitReader

_CUT_ANYWHERE = frozenset({"text", "tree-text", "jsonl"})


def split(whole: Unit, options: ReadOptions, report: Report) -> Iterator[Unit]:
    """The units of one file, of about `UNIT_BYTES` where it can be cut so small."""
    unit_bytes = REMOTE_UNIT_BYTES if is_url(whole.name) else UNIT_BYTES
    empty = not whole.num_bytes
    one_document = whole.format != "jsonl" and options.separator == WHOLE_FILE
    if whole.format in ("parquet", "arrow"):
        yield from _in_parts(whole, unit_bytes, options, report)
    elif whole.format not in _CUT_ANYWHERE or whole.compression or one_document or empty:
        yield whole
    else:
        for begin in range(0, whole.num_bytes, unit_bytes):
            end = min(begin + unit_bytes, whole.num_bytes)
            yield replace(whole, begin=begin, end=end, num_bytes=end - begin)


def _in_parts(whole: Unit, unit_bytes: int, options: ReadOptions, report: Report) -> Iterator[Unit]:
    """Runs of row groups or batches, none of which can be cut."""
    try:
        reader = UnitReader(whole, options, report)
        with opened(reader) as file:
            sizes = part_sizes(file, reader)
    except UsageError as error:
        if not options.skip_bad or "pip install" in (error.do or ""):
            raise
        report.add("damaged file", f"{whole.name}: {error.what}")
        return
    begin = size = 0
    for number, more in enumerate(sizes):
        if number > begin and size + more > unit_bytes:
            yield replace(whole, begin=begin, end=number, num_bytes=size)
            begin, size = number, 0
        size += more
    # A file without rows is read as well: it may lack the column.
    yield replace(whole, begin=begin, end=len(sizes), num_bytes=size)
